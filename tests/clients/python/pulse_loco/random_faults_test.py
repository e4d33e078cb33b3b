"""Rounds with random faults, each from a seed: workers are killed before and after they contribute, come too late, miss
the sums, and attempts are abandoned. What a worker's steps moved is always what was counted of it, plus its residual.
"""

from __future__ import annotations

import random
import unittest

import numpy as np
from dws.digest import digest_hex
from dws.dtypes import DType
from dws.on_demand.pulse_loco import PulseLoCo, Residual, Settings, ShardSum

from tests.clients.python.pulse_loco.reference import F32, Array, local_steps, weights

SHARDS = [300, 200]
ELEMENTS = sum(SHARDS)
WORKERS = 4
ROUNDS = 20


class Job:
    """The workers, and the books: `moved` and `counted` for each worker, FP64."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.generator = np.random.default_rng(seed)
        theta = weights(self.generator, ELEMENTS)
        settings = Settings(0.7, 0.9, DType.BF16 if seed % 2 else DType.F32)
        self.workers = [PulseLoCo(theta, rank=rank, shards=SHARDS, settings=settings) for rank in range(WORKERS)]
        self.moved = np.zeros((WORKERS, ELEMENTS))
        self.counted = np.zeros((WORKERS, ELEMENTS))
        self.seen: dict[str, int] = {}

    def saw(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def happens(self, what: str, probability: float) -> bool:
        if self.chance.random() >= probability:
            return False
        self.saw(what)
        return True

    def run_round(self) -> None:
        thetas = [local_steps(self.generator, worker.theta_g) for worker in self.workers]
        attempt = 1
        while not self.run_attempt(thetas, attempt):
            attempt += self.chance.randrange(1, 4)
            if self.happens("other samples", 0.5):
                thetas = [local_steps(self.generator, worker.theta_g) for worker in self.workers]

    def run_attempt(self, thetas: list[Array], attempt: int) -> bool:
        for worker in self.workers:
            worker.abandon()
            worker.begin(attempt)
        before = [PulseLoCo.from_state(worker.state()) for worker in self.workers]
        objects: dict[int, list[bytes]] = {}
        for rank, theta in enumerate(thetas):
            if not self.happens("no contribution", 0.05):
                objects[rank] = self.workers[rank].contribute(theta)
            if self.happens("killed with its state saved", 0.1):
                self.workers[rank] = PulseLoCo.from_state(self.workers[rank].state())
        if self.happens("abandoned", 0.3) or not objects:
            if self.happens("all in full in an attempt", 0.3):
                assert self.workers[1].take(self.workers[0].full()) is Residual.KEPT
            return False
        late = {rank for rank in objects if len(objects) > 1 and self.happens("late", 0.1)}
        ranks = sorted(set(objects) - late) or sorted(objects)
        sums = self.sums(objects, ranks)
        for rank in objects:
            self.moved[rank] += self.workers[rank].theta_g.astype(np.float64) - thetas[rank]
        keeper = self.chance.choice(ranks)
        self.workers[keeper].apply(sums)
        for rank in set(range(WORKERS)) - {keeper}:
            self.end_for(rank, sums, before[rank], rank in objects, rank in ranks, self.workers[keeper])
        return True

    def sums(self, objects: dict[int, list[bytes]], ranks: list[int]) -> list[bytes]:
        """Owners get the contributions in any order, and what they count goes into the books."""
        worker, out, end = self.workers[0], [], 0
        for shard, size in enumerate(SHARDS):
            owner = ShardSum(worker.theta_g[end : end + size], worker.address(shard), worker.settings.values)
            for rank in self.chance.sample(sorted(objects), len(objects)):
                owner.add(objects[rank][shard], f"worker {rank}")
            out.append(owner.total(ranks))
            for rank in ranks:
                self.counted[rank, end : end + size] += owner.values(rank)
            end += size
        return out

    def end_for(self, rank: int, sums: list[bytes], before: PulseLoCo, contributed: bool, counted: bool,
                keeper: PulseLoCo) -> None:
        worker = self.workers[rank]
        if self.happens("killed with an older state", 0.1):
            outcome = before.take(keeper.full())
            assert outcome is (Residual.DROPPED if counted else Residual.KEPT), outcome
            self.workers[rank] = before
            if counted:
                self.moved[rank] = self.counted[rank]
            elif contributed:  # these steps are gone, with the process that made them
                self.moved[rank] = self.counted[rank] + before.residual
        elif self.happens("missed the sums", 0.2):
            outcome = worker.take(keeper.full())
            assert outcome is (Residual.COUNTED if counted else Residual.KEPT), outcome
        else:
            worker.apply(sums)


class RandomFaultsTest(unittest.TestCase):
    def test_what_was_moved_is_counted_once_or_in_the_residual(self) -> None:
        seen: dict[str, int] = {}
        for seed in range(4):
            job = Job(seed)
            for number in range(ROUNDS):
                job.run_round()
                digests = {digest_hex(worker.digest()) for worker in job.workers}
                self.assertEqual(len(digests), 1, f"seed {seed}, round {number}")
                for rank, worker in enumerate(job.workers):
                    lost = job.moved[rank] - job.counted[rank] - worker.residual
                    # FP32's rounding of the residual, against steps of 2e-5.
                    self.assertLess(float(np.abs(lost).max()), 1e-7, f"seed {seed}, round {number}, worker {rank}")
            for what, times in job.seen.items():
                seen[what] = seen.get(what, 0) + times
            self.assertTrue((job.workers[0].theta_g != F32(0)).any())
        self.assertEqual(sorted(what for what, times in seen.items() if times > 2), [
            "abandoned", "all in full in an attempt", "killed with an older state", "killed with its state saved", "late",
            "missed the sums", "no contribution", "other samples"])


if __name__ == "__main__":
    unittest.main()
