"""Rounds of PULSELoCo that are tried again, or run again after an error: no step counts twice, none is lost, nobody hangs."""

from __future__ import annotations

import threading
import time
import unittest
from concurrent import futures
from typing import Any, Callable, Optional
from unittest import mock

import numpy as np

import dws
from dws.dtypes import DType
from dws.on_demand.pulse_loco import LocalRounds, PulseLoCo, Residual, Round
from dws.on_demand.pulse_loco import rounds as module
from dws.on_demand.pulse_loco.exchange import Found, Wanted
from tests.clients.python.pulse_loco.reference import Array, Reference, local_steps
from tests.integration.trainers.local_rounds_case import SECONDS, LocalRoundsCase
from tests.integration.trainers.local_rounds_worker import make_worker, steps_of


def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"not in {SECONDS:g} s")
        time.sleep(0.01)


class AgainCase(LocalRoundsCase):
    def setUp(self) -> None:
        super().setUp()
        self.pool = futures.ThreadPoolExecutor(4)
        self.addCleanup(self.pool.shutdown)
        self.start_senders(3)

    def start_run(self, rank: int, theta_r: Optional[Array] = None) -> futures.Future[Round]:
        """run in a thread; without theta_r with the steps of the round."""
        rounds = self.rounds[rank]
        if theta_r is None:
            theta_r = steps_of(rank, rounds.worker.round, rounds.theta_g)
        return self.pool.submit(rounds.run, theta_r)

    def restart_sender(self, rank: int) -> None:
        self.cluster.senders[rank].kill()
        threading.Timer(0.5, self.cluster.senders[rank].start).start()

    def check_all(self, reference: Reference) -> None:
        for rounds in self.rounds.values():
            self.check(rounds.worker, reference)


class TakenTest(AgainCase):
    """Rank 2 takes theta_g in full, and then the attempt fails."""

    def setUp(self) -> None:
        super().setUp()
        for rank in (0, 1):
            self.join(make_worker(rank, DType.BF16), missing_after=0.2, on_contributed=self.on_contributed)
        self.when_taken: Optional[Callable[[], None]] = None
        self.results = self.run_until(1)[0]
        self.rounds[0]._missing_after = SECONDS

    def on_contributed(self, worker: PulseLoCo) -> None:
        if worker.rank == 1 and self.when_taken is not None:
            until(lambda: self.rounds[2].worker.round == 1)
            when_taken, self.when_taken = self.when_taken, None
            when_taken()

    def check_rounds(self, result: Round) -> None:
        """The steps are in the residual of rank 2, once."""
        self.assertEqual((result.counted, result.residual), ((0, 1), Residual.KEPT))
        reference = self.reference(DType.BF16)
        self.reference_rounds(reference, self.results)
        reference.residuals[2] = reference.residuals[2] + (self.before - self.theta_r)
        self.reference_rounds(reference, [result])
        self.check_all(reference)
        self.reference_rounds(reference, self.run_until(3)[0])
        self.check_all(reference)

    def start_away(self, **options: Any) -> list[futures.Future[Round]]:
        self.join(make_worker(2, DType.BF16), **options)
        self.before = self.rounds[2].theta_g
        self.theta_r = steps_of(2, 0, self.before)
        return [self.start_run(0), self.start_run(1), self.start_run(2, self.theta_r)]

    def test_steps_in_the_residual_are_not_contributed_when_the_round_is_tried_again(self) -> None:
        self.when_taken = lambda: self.restart_sender(1)
        results = [each.result(SECONDS) for each in self.start_away()]
        self.assertTrue(results[2].abandoned)
        self.check_rounds(results[2])

    def test_steps_in_the_residual_are_not_contributed_by_another_call_of_run(self) -> None:
        raised = threading.Event()
        self.when_taken = lambda: self.assertTrue(raised.wait(SECONDS))
        *others, away = self.start_away(timeout=2.0)
        with self.assertRaises(dws.DeadlineError):
            away.result(SECONDS)
        raised.set()
        self.rounds[2]._timeout = SECONDS
        result = self.start_run(2, self.theta_r).result(SECONDS)
        for each in others:
            each.result(SECONDS)
        self.check_rounds(result)


class DecidedTest(AgainCase):
    def setUp(self) -> None:
        super().setUp()
        for rank in range(3):
            self.join(make_worker(rank, DType.BF16), missing_after=SECONDS)

    def test_a_sender_that_is_killed_after_the_decision_does_not_undo_it(self) -> None:
        put, killed = self.rounds[1]._exchange.put, []

        def watched(process: int, name: str, *rest: Any) -> None:
            if name == "done" and not killed:
                killed.append(name)
                self.restart_sender(1)
            put(process, name, *rest)

        self.rounds[1]._exchange.put = watched  # type: ignore[method-assign]
        results = self.run_until(3)
        self.assertEqual(killed, ["done"])
        reference = self.reference(DType.BF16)
        self.assertEqual([result.number for result in results[1]], [1, 2, 3])
        self.reference_rounds(reference, results[1])
        self.check_all(reference)

    def run_undecided(self) -> Array:
        """Rank 2 is counted in round 0, and does not hear that before its `run` raises. Returns its weights."""
        exchange = self.rounds[2]._exchange
        fetch = exchange.fetch

        def deaf(wanted: Wanted, timeout: float) -> Found:
            if wanted.name == "decided":
                until(lambda: self.rounds[0].worker.round == 1)
                raise dws.DeadlineError("deaf")
            return fetch(wanted, timeout)

        exchange.fetch = deaf  # type: ignore[method-assign]
        theta_r = steps_of(2, 0, self.rounds[2].theta_g)
        runs = [self.start_run(rank) for rank in range(3)]
        for each in runs[:2]:
            self.assertEqual(each.result(SECONDS).counted, (0, 1, 2))
        with self.assertRaisesRegex(dws.DeadlineError, "deaf"):
            runs[2].result(SECONDS)
        exchange.fetch = fetch  # type: ignore[method-assign]
        return theta_r

    def test_later_weights_than_those_that_were_counted(self) -> None:
        first = self.run_undecided()
        before = self.rounds[2].theta_g
        reference = self.reference(DType.BF16)
        sent, _ = reference.sent(2, first)
        reference.round_of({rank: steps_of(rank, 0, reference.theta) for rank in range(3)})
        later = local_steps(np.random.default_rng(5), first)
        results = [each.result(SECONDS) for each in (self.start_run(0), self.start_run(1), self.start_run(2, later))]
        self.assertEqual((results[2].counted, results[2].residual), ((0, 1), Residual.COUNTED))
        reference.residuals[2] = (before - later) - sent
        self.reference_rounds(reference, [results[0], *self.run_until(3)[0]])
        self.check_all(reference)


class HelloTest(AgainCase):
    """Rank 0 has heard rank 1, and waits for rank 2, when something happens."""

    def start_two(self, **options: Any) -> list[futures.Future[Round]]:
        for rank in range(3):
            self.join(make_worker(rank, DType.BF16), missing_after=SECONDS, **options if rank == 0 else {})
            self.rounds[rank]._exchange.attached(SECONDS)
        runs = [self.start_run(0), self.start_run(1)]
        until(lambda: 1 in self.rounds[0]._heard)
        return runs

    def check_rounds(self, runs: list[futures.Future[Round]]) -> None:
        """Later rounds do not take an old hello for a new one."""
        results = [each.result(20.0) for each in runs]
        reference = self.reference(DType.BF16)
        self.assertEqual({result.counted for result in results}, {(0, 1, 2)})
        more = self.run_until(3)
        self.assertEqual([result.abandoned for found in more.values() for result in found], [()] * 6)
        self.reference_rounds(reference, [results[0], *more[0]])
        self.check_all(reference)

    def test_rank_0_hears_the_others_again_when_its_sender_is_back(self) -> None:
        runs = self.start_two()
        self.restart_sender(0)
        until(lambda: self.lost.found)
        time.sleep(1.0)
        self.check_rounds([*runs, self.start_run(2)])

    def test_rank_0_hears_the_others_again_when_it_runs_again(self) -> None:
        with mock.patch.object(module, "_HELLO_AGAIN_SECONDS", 0.5):
            first, second = self.start_two(timeout=1.2)
            with self.assertRaisesRegex(dws.DeadlineError, "'hello' number 0 of rank 2"):
                first.result(SECONDS)
            self.rounds[0]._timeout = SECONDS
            self.check_rounds([self.start_run(0), second, self.start_run(2)])

    def test_hellos_that_were_said_again_are_over_with_the_plan(self) -> None:
        with mock.patch.object(module, "_HELLO_AGAIN_SECONDS", 0.2):
            runs = self.start_two()
            heard = self.rounds[0]._heard[1][1]
            until(lambda: self.rounds[1]._next > heard + 2)
            for each in [*runs, self.start_run(2)]:
                each.result(SECONDS)
        early = self.start_run(0)
        time.sleep(0.5)
        for each in [early, self.start_run(1), self.start_run(2)]:
            self.assertEqual(each.result(SECONDS)[2:], ((0, 1, 2), (0, 1, 2), None, ()))

    def test_a_plan_that_answers_an_old_hello_is_given_up(self) -> None:
        for each in [*self.start_two(), self.start_run(2)]:
            each.result(SECONDS)
        process, number = self.rounds[0]._heard[1]
        self.rounds[0]._heard[1] = process, number - 1
        runs = [self.start_run(0), self.start_run(2)]
        until(lambda: self.rounds[2]._heard[0][1] > self.rounds[2].worker.last_attempt)
        time.sleep(0.5)
        results = [each.result(20.0) for each in [*runs, self.start_run(1)]]
        self.assertEqual({result.counted for result in results}, {(0, 1, 2)})
        self.assertRegex(str(results[0].abandoned), "rank 1 .* the plan answers a hello that is over")

    def test_a_worker_that_is_waited_for_in_vain_is_named(self) -> None:
        for rank in range(2):
            self.join(make_worker(rank, DType.BF16), timeout=0.7)
            self.rounds[rank]._exchange.attached(SECONDS)
        with self.assertRaisesRegex(dws.DeadlineError, "rank 0 has planned no round with this worker of rank 1 in 0.7 s"):
            self.rounds[1].run(None)

    def test_missing_after_is_counted_from_when_a_worker_is_found_missing(self) -> None:
        for rank in range(2):
            self.join(make_worker(rank, DType.BF16), missing_after=1.5)
            self.rounds[rank]._exchange.attached(SECONDS)
        runs = [self.start_run(0)]
        time.sleep(2.0)
        runs.append(self.start_run(1))
        until(lambda: 1 in self.rounds[0]._heard)
        time.sleep(0.3)
        self.join(make_worker(2, DType.BF16))
        runs.append(self.start_run(2))
        self.assertEqual([each.result(SECONDS).counted for each in runs], [(0, 1, 2)] * 3)


if __name__ == "__main__":
    unittest.main()
