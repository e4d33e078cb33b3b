"""Rounds of PULSELoCo over real senders: equal to the equations bit for bit, also when workers and senders are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from concurrent import futures
from typing import Any

import numpy as np

import dws
from dws.dtypes import DType
from dws.on_demand.pulse_loco import LocalRounds, PulseLoCo, Residual, Round, Settings
from tests.integration.trainers import local_rounds_worker as workers
from tests.integration.trainers.local_rounds_case import SECONDS, LocalRoundsCase
from tests.integration.trainers.local_rounds_worker import first_theta, make_worker, steps_of


class RoundsTest(LocalRoundsCase):
    def test_rounds_are_the_equations_bit_for_bit(self) -> None:
        self.start_senders(4)
        for values in (DType.F32, DType.BF16):
            with self.subTest(values=values.name):
                self.rounds = {}
                for rank in range(4):
                    self.join(make_worker(rank, values), missing_after=SECONDS)
                results = self.run_until(5)
                reference = self.reference(values)
                for found in results.values():
                    self.assertEqual([result.counted for result in found], [(0, 1, 2, 3)] * 5)
                self.reference_rounds(reference, results[0])
                for rounds in self.rounds.values():
                    self.check(rounds.worker, reference)
                self.each(LocalRounds.close)

    def test_a_worker_that_joins_in_the_middle_and_one_that_differs_take_theta_g_in_full(self) -> None:
        self.start_senders(4)
        for rank in range(3):
            self.join(make_worker(rank, DType.BF16), missing_after=1.0)
        first = self.run_until(2)[0]
        self.rounds[2].worker._u = self.rounds[2].worker.u + np.float32(1e-3)  # as by a broken machine
        zeros = PulseLoCo(np.zeros_like(first_theta()), rank=3, shards=workers.SHARDS, settings=Settings(0.7, 0.9, DType.BF16))
        self.join(zeros)
        third = self.each(lambda rounds: rounds.run(steps_of(rounds.worker.rank, rounds.worker.round, rounds.theta_g)))
        self.assertEqual({rank: result.residual for rank, result in third.items()},
                         {0: None, 1: None, 2: Residual.KEPT, 3: Residual.KEPT})
        self.assertEqual(third[3].members, (0, 1, 2, 3))
        self.assertEqual(third[3].counted, (0, 1))
        results = [*first, third[0], *self.run_until(5)[0]]
        self.assertEqual(results[-1].counted, (0, 1, 2, 3))
        reference = self.reference(DType.BF16)
        self.reference_rounds(reference, results[:2])
        # Their steps are in their residuals; those of the joiner are from its zeros.
        reference.residuals[2] = reference.residuals[2] + (reference.theta - steps_of(2, 2, reference.theta))
        reference.residuals[3] = np.float32(0) - steps_of(3, 0, np.zeros_like(reference.theta))
        self.reference_rounds(reference, results[2:])
        for rounds in self.rounds.values():
            self.check(rounds.worker, reference)

    def test_a_worker_whose_next_theta_g_differs_takes_that_of_the_others(self) -> None:
        self.start_senders(3)
        for rank in range(3):
            self.join(make_worker(rank, DType.BF16), missing_after=SECONDS)
        broken = self.rounds[2].worker

        def fork_wrongly() -> PulseLoCo:
            del broken.fork  # only once
            copy = broken.fork()
            copy._u = copy.u + np.float32(1e-3)
            return copy

        broken.fork = fork_wrongly  # type: ignore[method-assign]
        results = self.run_until(3)
        self.assertEqual([(result.number, result.residual) for result in results[2]], [(2, Residual.COUNTED), (3, None)])
        self.assertRegex(str(results[2][0].abandoned), "rank 2 has digest .* after round 0, most have")
        self.assertEqual([result.counted for result in results[0]], [(0, 1, 2), (0, 1), (0, 1, 2)])
        reference = self.reference(DType.BF16)
        self.reference_rounds(reference, results[0])
        for rounds in self.rounds.values():
            self.check(rounds.worker, reference)


class FaultsTest(LocalRoundsCase):
    def start_process(self, rank: int, until: int, *options: str, values: str = "BF16") -> subprocess.Popen[str]:
        """A worker in a process of its own, with its state in a file."""
        command = [
            sys.executable, "-m", "tests.integration.trainers.local_rounds_worker", f"--until={until}", f"--values={values}",
            f"--socket={self.cluster.senders[rank].socket}", f"--rank={rank}", f"--ranks={self.ranks}",
            f"--state={self.state_of(rank)}", *options,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
        self.addCleanup(process.stdout.close)  # type: ignore[union-attr]
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def state_of(self, rank: int) -> str:
        return f"{self.cluster.folder}/state-{rank}.npz"

    def run_beside(self, until: int) -> futures.Future[dict[int, list[Round]]]:
        """run_until in a thread."""
        pool = futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        return pool.submit(self.run_until, until)

    def killed_at(self, rank: int, until: int, at: str, values: str = "BF16") -> float:
        """Runs a worker until it kills itself. Returns when it was dead."""
        killed = self.start_process(rank, until, f"--kill-at={at}", values=values)
        self.assertEqual(killed.wait(SECONDS), -signal.SIGKILL)
        return time.time()

    def check_named(self, dead: float, rank: int) -> None:
        """Workers of this process have noticed within 2 s that the process was dead, and name it."""
        times = [when for when, why in self.lost.found if f"rank {rank} (pid" in why]
        self.assertTrue(times, self.lost.found)
        self.assertLess(min(times) - dead, 2.0)

    def test_a_round_is_redone_when_a_killed_worker_is_back(self) -> None:
        """Killed before it sends, before its sum, before it is ready: as if it had not been killed."""
        self.start_senders(3)
        for values, places in (("F32", ("part-0", "ready")), ("BF16", ("sum-2",))):
            for rank in (0, 1):
                self.join(make_worker(rank, DType[values]), missing_after=SECONDS)
            until = 0
            found: dict[int, list[Round]] = {0: [], 1: []}
            for at in places:
                until += 2
                beside = self.run_beside(until)
                dead = self.killed_at(2, until, f"{at},{until - 1}", values)
                back = self.start_process(2, until, values=values)
                results = beside.result(SECONDS)
                self.assertEqual(back.wait(SECONDS), 0)
                self.check_named(dead, 2)
                self.assertEqual([len(result.abandoned) > 0 for result in results[1]], [False, True])
                for rank, more in results.items():
                    found[rank] += more
            reference = self.reference(DType[values])
            self.reference_rounds(reference, found[0])
            self.assertEqual([result.counted for result in found[0]], [(0, 1, 2)] * until)
            for worker in (self.rounds[0].worker, self.rounds[1].worker, workers.load(self.state_of(2))):
                self.check(worker, reference)
            self.each(LocalRounds.close)
            self.rounds = {}
            os.unlink(self.state_of(2))

    def test_those_who_are_left_go_on_and_one_that_missed_a_decision_was_counted(self) -> None:
        self.start_senders(3)
        for rank in (0, 1):
            self.join(make_worker(rank, DType.BF16), missing_after=0.5)
            self.rounds[rank]._missing_after = SECONDS
        beside = self.run_beside(2)
        self.killed_at(2, 9, "done,2")  # its contribution counts, and it does not know
        results = beside.result(SECONDS)[0]
        self.rounds[0]._missing_after = 0.2
        results += self.run_until(3)[0]
        self.assertEqual([result.counted for result in results], [(0, 1, 2), (0, 1, 2), (0, 1)])
        self.rounds[0]._missing_after = SECONDS
        back = self.start_process(2, 5)
        results += self.run_until(5)[0]
        output, _ = back.communicate(timeout=SECONDS)
        self.assertEqual(output.split("\n")[:2], ["4 COUNTED", "5 "])
        self.assertEqual([result.counted for result in results[3:]], [(0, 1), (0, 1, 2)])
        reference = self.reference(DType.BF16)
        self.reference_rounds(reference, results)
        for worker in (self.rounds[0].worker, self.rounds[1].worker, workers.load(self.state_of(2))):
            self.check(worker, reference)

    def test_a_round_that_rank_0_was_killed_in_waits_for_it(self) -> None:
        self.start_senders(3)
        for rank in (1, 2):
            self.join(make_worker(rank, DType.F32))
        beside = self.run_beside(3)
        dead = self.killed_at(0, 3, "decided,1", "F32")
        while len(self.lost.found) < 2:
            time.sleep(0.01)
        self.check_named(dead, 0)
        self.assertEqual({rounds.worker.round for rounds in self.rounds.values()}, {1})
        back = self.start_process(0, 3, values="F32")
        results = beside.result(SECONDS)[1]
        self.assertEqual(back.wait(SECONDS), 0)
        reference = self.reference(DType.F32)
        self.reference_rounds(reference, results)
        self.assertEqual([result.counted for result in results], [(0, 1, 2)] * 3)
        for worker in (self.rounds[1].worker, self.rounds[2].worker, workers.load(self.state_of(0))):
            self.check(worker, reference)

    def test_senders_that_are_killed_and_back(self) -> None:
        self.start_senders(3)
        killed = set()

        def kill_once(worker: PulseLoCo) -> None:
            """In the middle of the round with the number of the rank: its own sender."""
            if worker.rank == worker.round and worker.rank not in killed:
                killed.add(worker.rank)
                times[worker.rank] = time.time()
                self.cluster.senders[worker.rank].kill()
                threading.Timer(0.5, self.cluster.senders[worker.rank].start).start()

        times: dict[int, float] = {}
        for rank in range(3):
            self.join(make_worker(rank, DType.BF16), missing_after=SECONDS, on_contributed=kill_once)
        results = self.run_until(4)[0]
        self.assertEqual(killed, {0, 1, 2})
        self.assertEqual([result.counted for result in results], [(0, 1, 2)] * 4)
        for rank, when in times.items():
            later = [at for at, why in self.lost.found if f"trainer rank {rank} at unix:" in why and at > when]
            self.assertLess(min(later, default=float("inf")) - when, 2.0, (rank, self.lost.found))
        reference = self.reference(DType.BF16)
        self.reference_rounds(reference, results)
        for rounds in self.rounds.values():
            self.check(rounds.worker, reference)


class RefusalsTest(LocalRoundsCase):
    def run_alone(self, rank: int, error: type[Exception], why: str, **options: Any) -> None:
        with self.assertRaisesRegex(error, why):
            self.join(make_worker(rank, DType.F32), **options).run(None)

    def test_what_a_sender_refuses(self) -> None:
        self.start_senders(2, "--object-bytes=2000")
        self.run_alone(0, dws.StateError, "serves job 'test', the rank belongs to 'other'", job_id="other")
        self.run_alone(0, dws.StateError, "counts 3 ranks, --train-peers of this sender names 2", ranks=3)
        self.rounds[0]._exchange.close()
        self.run_alone(1, dws.RankLostError, "rank 0: .*no process of rank 0 has attached", timeout=0.3)
        first = self.join(make_worker(1, DType.F32))
        first._exchange.attached(SECONDS)
        self.join(make_worker(1, DType.F32))._exchange.attached(SECONDS)
        with self.assertRaisesRegex(dws.StateError, "another process of the rank has attached"):
            first.run(None)
        self.rounds[1].close()
        with self.assertRaisesRegex(dws.DwsError, "'sum-0' number 1 has .* at most 2000 in all, raise --object-bytes"):
            rounds = self.join(make_worker(0, DType.F32), missing_after=0.0)
            rounds.run(steps_of(0, 0, rounds.theta_g))

    def test_senders_without_objects(self) -> None:
        self.start_senders(1, "--object-bytes=0")
        self.run_alone(0, dws.StateError, "keeps no objects: start it with --train-peers, without --object-bytes=0")

    def test_a_worker_with_other_settings_is_named_and_the_others_go_on(self) -> None:
        self.start_senders(3)
        for rank in (0, 1):
            self.join(make_worker(rank, DType.F32), missing_after=0.5)
        other = PulseLoCo(first_theta(), rank=2, shards=workers.SHARDS, settings=Settings(0.5, 0.9))
        rounds = self.join(other)
        beside = futures.ThreadPoolExecutor(1)
        self.addCleanup(beside.shutdown)
        refused = beside.submit(rounds.run, None)
        del self.rounds[2]
        self.assertEqual(self.run_until(1)[0][0].counted, (0, 1))
        with self.assertRaisesRegex(dws.LayoutError, "rank 2 has outer_lr 0.5, rank 0 has 0.69"):
            refused.result(SECONDS)

    def test_a_worker_that_gives_up_says_why(self) -> None:
        self.start_senders(2)
        for rank in range(2):
            self.join(make_worker(rank, DType.F32), missing_after=0.2)
        gave_up = self.rounds[1]

        def fail(worker: PulseLoCo) -> None:
            raise MemoryError("no room for the state")

        gave_up._on_contributed = fail
        alone = self.rounds[0]
        with futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(alone.run, steps_of(0, 0, alone.theta_g))
            with self.assertRaises(MemoryError):
                gave_up.run(steps_of(1, 0, gave_up.theta_g))
            while not self.lost.found:
                time.sleep(0.01)
            gave_up.close()
            result = first.result(SECONDS)
        self.assertEqual(result.counted, (0,))
        self.assertRegex(str(result.abandoned[0]), "rank 1 .* it gave up: no room for the state")

    def test_a_slow_worker_is_named_when_the_time_is_over(self) -> None:
        self.start_senders(2)
        rounds = self.join(make_worker(0, DType.F32), timeout=0.5)
        self.join(make_worker(1, DType.F32))._exchange.attached(SECONDS)
        with self.assertRaisesRegex(dws.DeadlineError, "'hello' number 0 of rank 1: .* has not put it in 0.. s"):
            rounds.run(None)


if __name__ == "__main__":
    unittest.main()
