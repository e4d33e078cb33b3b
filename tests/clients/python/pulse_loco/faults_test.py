"""Workers that are killed, come late, or differ: residuals are neither lost nor added twice, and all become equal.

What is watched is mass: the weights that a worker's steps moved are in what was counted, or in its residual.
"""

from __future__ import annotations

import io
import random
import unittest

import numpy as np
import torch
from dws.digest import digest_hex
from dws.dtypes import DType
from dws.errors import DTypeError, InvalidArgumentError, LayoutError, StateError
from dws.on_demand.pulse_loco import Full, PulseLoCo, Residual, Settings, ShardSum

from tests.clients.python.pulse_loco.reference import F32, Array, Reference, local_steps, same_bits, weights

SHARDS = [700, 500]
ELEMENTS = sum(SHARDS)


def saved(worker: PulseLoCo) -> PulseLoCo:
    """Through a file, as after a restart."""
    file = io.BytesIO()
    np.savez(file, **worker.state())
    file.seek(0)
    with np.load(file) as arrays:
        return PulseLoCo.from_state(arrays)


def sums_of(at: PulseLoCo, objects: dict[int, list[bytes]]) -> list[bytes]:
    out, ends = [], np.cumsum(SHARDS)
    for shard, (size, end) in enumerate(zip(SHARDS, ends)):
        owner = ShardSum(at.theta_g[end - size : end], at.address(shard), at.settings.values)
        for rank, parts in objects.items():
            owner.add(parts[shard], f"worker {rank}")
        out.append(owner.total(list(objects)))
    return out


class FaultCase(unittest.TestCase):
    values = DType.BF16

    def setUp(self) -> None:
        self.generator = np.random.default_rng(11)
        self.theta = weights(self.generator, ELEMENTS)
        self.settings = Settings(0.7, 0.9, self.values)
        self.workers = [PulseLoCo(self.theta, rank=rank, shards=SHARDS, settings=self.settings) for rank in range(3)]
        self.reference = Reference(self.theta, 3, 0.7, 0.9, half=True)

    def steps(self) -> list[Array]:
        return [local_steps(self.generator, worker.theta_g) for worker in self.workers]

    def run_round(self) -> None:
        thetas = self.steps()
        for worker in self.workers:
            worker.begin()
        self.end_round(thetas)

    def end_round(self, thetas: list[Array]) -> None:
        objects = {worker.rank: worker.contribute(theta) for worker, theta in zip(self.workers, thetas)}
        sums = sums_of(self.workers[0], objects)
        self.assertEqual(len({worker.apply(sums) for worker in self.workers}), 1)
        self.reference.round(thetas)
        self.check()

    def check(self) -> None:
        for rank, worker in enumerate(self.workers):
            self.assertTrue(same_bits(worker.theta_g, self.reference.theta))
            self.assertTrue(same_bits(worker.u, self.reference.u))
            self.assertTrue(same_bits(worker.residual, self.reference.residuals[rank]))


class RedoneRoundTest(FaultCase):
    def test_a_round_that_is_redone_is_as_if_it_was_the_first(self) -> None:
        """Worker 1 is killed at each place; others have contributed, or not. The samples are the same, or others."""
        chance = random.Random(1)
        for number in range(12):
            thetas = self.steps()
            before = [worker.residual.copy() for worker in self.workers]
            on_disk = saved(self.workers[1])
            for worker in self.workers:
                worker.begin()
            for worker, theta in zip(self.workers, thetas):
                if chance.random() < 0.6:
                    worker.contribute(theta)
            self.workers[1] = on_disk if number % 2 else saved(self.workers[1])
            for worker, residual in zip(self.workers, before):
                self.assertTrue(same_bits(worker.residual, residual))
                worker.abandon()
                worker.begin(2)
            self.end_round(thetas if number % 3 else self.steps())

    def test_contributing_again_gives_the_same_objects_once(self) -> None:
        self.run_round()
        thetas = self.steps()
        for worker in self.workers:
            worker.begin()
        first = self.workers[1].contribute(thetas[1])
        again = saved(self.workers[1])
        self.assertEqual(again.contribute(thetas[1].copy()), first)
        self.assertEqual(again.contributed, first)
        with self.assertRaisesRegex(StateError, "has a contribution of other weights: call abandon"):
            again.contribute(thetas[2])
        self.assertEqual(again.contribute(thetas[1]), first)
        self.workers[1] = again
        self.end_round(thetas)

    def test_objects_of_an_abandoned_attempt_are_refused(self) -> None:
        thetas = self.steps()
        late = self.workers[0].begin() is not None and self.workers[0].contribute(thetas[0])
        assert late
        self.workers[0].abandon()
        for worker in self.workers:
            worker.begin(2)
        with self.assertRaisesRegex(InvalidArgumentError, "expected attempt 2, found 1"):
            sums_of(self.workers[1], {0: late})
        self.end_round(thetas)

    def test_a_sum_is_applied_once(self) -> None:
        worker = self.workers[0]
        worker.begin()
        sums = sums_of(worker, {0: worker.contribute(self.steps()[0])})
        worker.apply(sums)
        with self.assertRaisesRegex(StateError, "round 1 is not open"):
            worker.apply(sums)
        worker.begin()
        with self.assertRaisesRegex(InvalidArgumentError, "expected round 1, found 0"):
            worker.apply(sums)

    def test_a_worker_whose_contribution_came_too_late_sends_it_in_the_next_round(self) -> None:
        thetas = self.steps()
        for worker in self.workers:
            worker.begin()
        objects = {worker.rank: worker.contribute(theta) for worker, theta in zip(self.workers, thetas)}
        del objects[2]
        sums = sums_of(self.workers[0], objects)
        whole = self.workers[2].theta_g - thetas[2]
        self.assertEqual(len({worker.apply(sums) for worker in self.workers}), 1)
        self.assertTrue(same_bits(self.workers[2].residual, whole))
        self.assertTrue(same_bits(self.workers[0].residual, self.reference.sent(0, thetas[0])[1]))


class JoinTest(FaultCase):
    def commit_without(self, lost: PulseLoCo, counted: bool) -> None:
        """Ends the round of the others; `lost`, which has contributed, does not learn of it."""
        objects = {worker.rank: worker.contributed for worker in self.workers if worker is not lost or counted}
        sums = sums_of(self.workers[0], {rank: parts for rank, parts in objects.items() if parts})
        for worker in self.workers:
            if worker is not lost:
                worker.apply(sums)

    def contribute_all(self) -> list[Array]:
        thetas = self.steps()
        for worker, theta in zip(self.workers, thetas):
            worker.begin()
            worker.contribute(theta)
        return thetas

    def test_killed_after_its_contribution_was_counted(self) -> None:
        self.run_round()
        thetas = self.contribute_all()
        self.commit_without(self.workers[1], counted=True)
        self.workers[1] = saved(self.workers[1])
        self.assertIs(self.workers[1].take(self.workers[0].full()), Residual.COUNTED)
        self.reference.round(thetas)
        self.check()
        self.run_round()

    def test_killed_before_its_contribution_was_counted(self) -> None:
        self.run_round()
        lost = self.workers[1]
        residual = lost.residual.copy()
        thetas = self.contribute_all()
        whole = residual + (lost.theta_g - thetas[1])
        self.commit_without(lost, counted=False)
        self.workers[1] = saved(lost)
        self.assertIs(self.workers[1].take(self.workers[0].full()), Residual.KEPT)
        self.assertTrue(same_bits(self.workers[1].residual, whole))
        self.assertEqual(len({worker.digest() for worker in self.workers}), 1)

    def test_other_weights_than_those_that_were_contributed(self) -> None:
        """What the later steps moved is in the residual, less what was counted; also if the round is not over."""
        self.run_round()
        for counted in (True, False):
            with self.subTest(counted=counted):
                thetas = self.contribute_all()
                lost = saved(self.workers[1])
                self.commit_without(self.workers[1], counted)
                later = local_steps(self.generator, thetas[1])
                whole = lost.residual + (lost.theta_g - later)
                sent = self.reference.sent(1, thetas[1])[0] if counted else np.zeros_like(whole)
                found = lost.take(self.workers[0].full(), later)
                self.assertIs(found, Residual.COUNTED if counted else Residual.KEPT)
                self.assertTrue(same_bits(lost.residual, whole - sent))
                if counted:
                    self.reference.round(thetas)
                self.workers[1], self.reference.residuals[1] = lost, lost.residual.copy()
        lost.begin()
        weights = local_steps(self.generator, lost.theta_g)
        lost.contribute(weights)
        whole = lost.residual + (lost.theta_g - weights)
        self.assertIs(lost.take(self.workers[0].full(), final=True), Residual.KEPT)
        self.assertTrue(same_bits(lost.residual, whole))
        weights[5] = np.nan
        with self.assertRaisesRegex(InvalidArgumentError, "change together has 1 of .* the first is number 5"):
            lost.take(self.workers[0].full(), weights, final=True)

    def test_killed_with_a_state_that_does_not_know_what_was_counted(self) -> None:
        self.run_round()
        old = saved(self.workers[1])
        self.assertTrue(old.residual.any())
        self.contribute_all()
        self.commit_without(self.workers[1], counted=True)
        self.assertIs(old.take(self.workers[0].full()), Residual.DROPPED)
        self.assertFalse(old.residual.any())
        self.assertEqual(old.digest(), self.workers[0].digest())

    def test_another_attempt_than_the_pending_one_was_counted(self) -> None:
        self.contribute_all()
        old = saved(self.workers[1])
        for worker in self.workers:
            worker.abandon()
        self.contribute_all()
        self.commit_without(self.workers[1], counted=True)
        self.assertIs(old.take(self.workers[0].full()), Residual.DROPPED)

    def test_a_round_that_is_not_over_is_not_counted_twice(self) -> None:
        """All in full in the middle of an attempt: the same weights are contributed again, and count once."""
        self.run_round()
        thetas = self.contribute_all()
        self.assertIs(self.workers[1].take(self.workers[0].full()), Residual.KEPT)
        self.assertTrue(same_bits(self.workers[1].residual, self.reference.residuals[1]))
        for worker in self.workers:
            worker.abandon()
            worker.begin(2)
        self.end_round(thetas)

    def test_gone_for_rounds_without_it(self) -> None:
        self.run_round()
        gone = saved(self.workers[2])
        for _ in range(3):
            thetas = self.steps()[:2]
            for worker in self.workers[:2]:
                worker.begin()
            objects = {worker.rank: worker.contribute(theta) for worker, theta in zip(self.workers, thetas)}
            sums = sums_of(self.workers[0], objects)
            for worker in self.workers[:2]:
                worker.apply(sums)
        residual = gone.residual.copy()
        self.assertIs(gone.take(self.workers[0].full()), Residual.KEPT)
        self.assertTrue(same_bits(gone.residual, residual))
        self.assertEqual((gone.round, gone.digest()), (4, self.workers[1].digest()))

    def test_a_new_worker_in_the_middle(self) -> None:
        self.run_round()
        new = PulseLoCo(np.zeros(ELEMENTS, F32), rank=3, shards=SHARDS, settings=self.settings)
        self.assertIs(new.take(self.workers[1].full()), Residual.KEPT)
        self.assertFalse(new.residual.any())
        self.workers.append(new)
        self.reference.residuals.append(np.zeros(ELEMENTS, F32))
        self.run_round()
        self.run_round()

    def test_a_worker_that_differs_takes_all_in_full(self) -> None:
        self.run_round()
        arrays = self.workers[0].full()
        bad = arrays.theta_g.copy()
        bad[7] += F32(1e-3)
        counterfeit = PulseLoCo(bad, rank=2, shards=SHARDS, settings=self.settings)
        counterfeit.round = 1
        self.assertNotEqual(digest_hex(counterfeit.digest()), digest_hex(self.workers[0].digest()))
        counterfeit.begin()
        with self.assertRaisesRegex(InvalidArgumentError, "digest of theta_g .* take theta_g and u in full"):
            self.workers[0].begin()
            sums_of(self.workers[0], {2: counterfeit.contribute(local_steps(self.generator, bad))})
        counterfeit.take(arrays)
        self.assertEqual(counterfeit.digest(), self.workers[0].digest())

    def test_an_open_contribution_that_the_state_does_not_have(self) -> None:
        self.contribute_all()
        sums = sums_of(self.workers[0], {worker.rank: worker.contributed or [] for worker in self.workers})
        fresh = PulseLoCo(self.theta, rank=1, shards=SHARDS, settings=self.settings)
        fresh.begin()
        with self.assertRaisesRegex(StateError, "rank 1, which has made none .* take theta_g and u in full"):
            fresh.apply(sums)

    def test_full_that_is_damaged_or_older(self) -> None:
        old = self.workers[0].full()
        self.run_round()
        full, worker = self.workers[0].full(), self.workers[1]
        before = worker.digest()
        nan = full.theta_g.copy()
        nan[3] = np.nan
        moved = full.u.copy()
        moved[3] += F32(1)
        cases: list[tuple[type[Exception], str, Full]] = [
            (StateError, "round 0 in full, but this worker is at 1", old),
            (InvalidArgumentError, "have digest .* fetch them again", full._replace(u=moved)),
            (InvalidArgumentError, "theta_g has 1 of 1200", full._replace(theta_g=nan)),
            (LayoutError, r"u is \[1199\]", full._replace(u=moved[1:])),
            (DTypeError, "theta_g is float64", full._replace(theta_g=full.theta_g.astype(np.float64))),
            (LayoutError, "counted is int64", full._replace(counted=full.counted[:2])),
        ]
        for error, why, bad in cases:
            with self.subTest(why=why), self.assertRaisesRegex(error, why):
                worker.take(bad)
        self.assertEqual(worker.digest(), before)


class StateTest(FaultCase):
    def test_a_saved_worker_goes_on_as_if_nothing_was(self) -> None:
        for number in range(4):
            self.workers = [saved(worker) for worker in self.workers]
            self.run_round()
            self.assertEqual([worker.round for worker in self.workers], [number + 1] * 3)

    def test_state_as_tensors(self) -> None:
        self.run_round()
        thetas = self.steps()
        for worker in self.workers:
            worker.begin()
        objects = self.workers[0].contribute(thetas[0])
        file = io.BytesIO()
        torch.save({name: torch.from_numpy(array) for name, array in self.workers[0].state().items()}, file)
        file.seek(0)
        self.workers[0] = PulseLoCo.from_state(torch.load(file))
        self.assertEqual(self.workers[0].contributed, objects)
        self.end_round(thetas)

    def test_state_that_later_rounds_do_not_write(self) -> None:
        self.run_round()
        state = self.workers[0].state()
        before = {name: array.copy() for name, array in state.items()}
        self.run_round()
        self.assertTrue(all(np.array_equal(state[name], array) for name, array in before.items()))

    def test_state_that_is_damaged(self) -> None:
        self.run_round()
        self.workers[0].begin()
        self.workers[0].contribute(self.steps()[0])
        sound = self.workers[0].state()
        for name, array in sound.items():
            changed = {**sound, name: array.copy()}
            changed[name].reshape(-1).view(np.uint8)[array.nbytes // 2] ^= 1
            with self.subTest(name=name), self.assertRaisesRegex(InvalidArgumentError, "does not have its digest"):
                PulseLoCo.from_state(changed)
            missing = {key: value for key, value in sound.items() if key != name}
            with self.subTest(missing=name), self.assertRaises(InvalidArgumentError):
                PulseLoCo.from_state(missing)
        with self.assertRaisesRegex(InvalidArgumentError, "lacks theta_g, u"):
            PulseLoCo.from_state({})


if __name__ == "__main__":
    unittest.main()
