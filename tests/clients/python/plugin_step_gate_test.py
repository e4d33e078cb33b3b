"""dws.plugins.step_gate: ranks that wait for each other, each with its own lease."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import unittest
from concurrent import futures
from typing import Any, Iterator, Optional, Sequence

import dws
from dws.lease import ExecutionLease
from dws.plugins.step_gate import Minimum, StepGate

WAIT_SECONDS = 20.0


def grant(version: int) -> dws.Grant:
    return dws.Grant(version, dws.Stream(1, 2), f"{version:032x}")


class LeaseOnly:
    """A stand-in for Engine with only what a gate calls; the test controls its lease."""

    stopped: Optional[str] = None

    def __init__(self) -> None:
        self.lease = ExecutionLease()
        self.passes = 0

    def passed(self) -> None:
        self.passes += 1

    @contextlib.contextmanager
    def inside(self, timeout: Optional[float] = None) -> Iterator[dws.Grant]:
        block = self.lease.enter(timeout)
        try:
            yield block.grant
        finally:
            self.lease.leave(block)


class Ranks:
    """The minimum over threads, in the place of a process group's over processes."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=WAIT_SECONDS)
        self._values: dict[int, Sequence[int]] = {}
        self.rounds = 0

    def of(self, rank: int) -> Minimum:
        def minimum(values: Sequence[int]) -> Sequence[int]:
            self._values[rank] = values
            self._barrier.wait()
            lowest = [min(column) for column in zip(*self._values.values())]
            if self._barrier.wait() == 0:
                self.rounds += 1
            return lowest

        return minimum


class StepGateTest(unittest.TestCase):
    def setUp(self) -> None:
        self.ranks = Ranks(2)
        self.engines = [LeaseOnly(), LeaseOnly()]
        self.threads = futures.ThreadPoolExecutor(2)
        self.addCleanup(self.threads.shutdown)

    def gate(self, rank: int, timeout: float = WAIT_SECONDS) -> StepGate:
        engine: Any = self.engines[rank]
        return StepGate(engine, self.ranks.of(rank), timeout)

    def run_both(self, step: Any, timeout: float = WAIT_SECONDS) -> list[Any]:
        gates = [self.gate(rank, timeout) for rank in range(2)]
        return [self.threads.submit(step, gate) for gate in gates]

    def test_no_rank_runs_before_all_have_the_same_weights(self) -> None:
        self.engines[0].lease.open(grant(1))
        self.engines[1].lease.open(grant(2))

        def version(gate: StepGate) -> int:
            with gate.step() as held:
                return held.version

        running = self.run_both(version)
        while self.ranks.rounds < 3:
            time.sleep(0.001)
        self.assertFalse(any(one.done() for one in running))
        # Version 2 is committed on rank 0 while its pass waits, so the lease must become free.
        self.engines[0].lease.shut("commit")
        self.assertTrue(self.engines[0].lease.wait_empty(WAIT_SECONDS))
        self.engines[0].lease.open(grant(2))
        self.assertEqual([one.result(WAIT_SECONDS) for one in running], [2, 2])

    def test_a_rank_that_is_inside_leaves_when_another_rank_is_paused(self) -> None:
        self.engines[0].lease.open(grant(1))
        running = self.run_both(lambda gate: gate.wrap(lambda: "ran")())
        while self.ranks.rounds < 3:
            time.sleep(0.001)
        self.engines[0].lease.shut("commit")
        self.assertTrue(self.engines[0].lease.wait_empty(WAIT_SECONDS))
        for engine in self.engines:
            engine.lease.open(grant(2))
        self.assertEqual([one.result(WAIT_SECONDS) for one in running], ["ran", "ran"])
        self.assertEqual([engine.passes for engine in self.engines], [1, 1])  # rounds are none

    def test_all_give_up_together_and_say_why(self) -> None:
        self.engines[0].lease.open(grant(1))
        self.engines[1].lease.shut("closed for the test")
        first, second = self.run_both(lambda gate: gate.wrap(lambda: "ran")(), timeout=0.05)
        with self.assertRaisesRegex(dws.EnginePaused, "another rank"):
            first.result(WAIT_SECONDS)
        with self.assertRaisesRegex(dws.EnginePaused, "closed for the test"):
            second.result(WAIT_SECONDS)
        self.assertTrue(self.engines[0].lease.wait_empty(0))

    def test_when_one_rank_has_stopped_none_waits(self) -> None:
        self.engines[0].lease.open(grant(1))
        self.engines[1].lease.shut("it has a copy of a weight")
        self.engines[1].stopped = "it has a copy of a weight"
        first, second = self.run_both(lambda gate: gate.wrap(lambda: "ran")(), timeout=3600)
        with self.assertRaisesRegex(dws.EnginePaused, "another rank"):
            first.result(WAIT_SECONDS)
        with self.assertRaisesRegex(dws.EnginePaused, "it has a copy of a weight"):
            second.result(WAIT_SECONDS)

    def test_a_pass_inside_a_pass_needs_no_agreement(self) -> None:
        for engine in self.engines:
            engine.lease.open(grant(1))

        def nested(gate: StepGate) -> tuple[int, int]:
            with gate.step() as outer, gate.step() as inner:
                return outer.version, inner.version

        results = [one.result(WAIT_SECONDS) for one in self.run_both(nested)]
        self.assertEqual((results, self.ranks.rounds), ([(1, 1), (1, 1)], 1))

    def test_a_pass_that_fails_leaves_the_lease(self) -> None:
        for engine in self.engines:
            engine.lease.open(grant(1))

        def fails() -> None:
            raise ValueError("the model")

        for one in self.run_both(lambda gate: gate.wrap(fails)()):
            with self.assertRaisesRegex(ValueError, "the model"):
                one.result(WAIT_SECONDS)
        self.assertTrue(all(engine.lease.wait_empty(0) for engine in self.engines))

    def test_a_step_of_two_calls_agrees_once_and_holds_the_lease_between_them(self) -> None:
        for engine in self.engines:
            engine.lease.open(grant(1))
        between = threading.Barrier(3, timeout=WAIT_SECONDS)

        def two_calls(gate: StepGate) -> Any:
            first = gate.opening(lambda: gate.held, lambda held: True)()
            between.wait()  # here the test checks
            between.wait()
            return first, gate.held, gate.closing(lambda: gate.held)(), gate.held

        running = self.run_both(two_calls)
        between.wait()
        for engine in self.engines:
            engine.lease.shut("commit")
            self.assertFalse(engine.lease.wait_empty(0))
        between.wait()
        wanted = (grant(1), grant(1), grant(1), None)
        self.assertEqual([one.result(WAIT_SECONDS) for one in running], [wanted, wanted])
        self.assertEqual(self.ranks.rounds, 1)
        self.assertTrue(all(engine.lease.wait_empty(0) for engine in self.engines))

    def test_the_next_step_leaves_a_step_that_stayed_open(self) -> None:
        for engine in self.engines:
            engine.lease.open(grant(1))
        begun = threading.Barrier(3, timeout=WAIT_SECONDS)

        def again(gate: StepGate) -> Any:
            first = gate.opening(lambda: None, lambda result: True)
            first()
            begun.wait()
            begun.wait()
            first()
            return gate.closing(lambda: gate.held)()

        running = self.run_both(again)
        begun.wait()
        for engine in self.engines:
            engine.lease.shut("commit")
        begun.wait()
        for engine in self.engines:
            self.assertTrue(engine.lease.wait_empty(WAIT_SECONDS))
            engine.lease.open(grant(2))
        self.assertEqual([one.result(WAIT_SECONDS) for one in running], [grant(2), grant(2)])

    def test_calls_inside_a_step_are_part_of_it(self) -> None:
        self.engines[0].lease.open(grant(1))
        engine: Any = self.engines[0]
        gate = StepGate(engine, None, 0.01)
        first = gate.opening(lambda: "opened", lambda result: True)
        self.assertEqual(gate.wrap(first)(), "opened")
        self.assertTrue(engine.lease.wait_empty(0))
        with gate.step():
            first()
            self.assertEqual(gate.closing(lambda: "closed")(), "closed")
            self.assertFalse(engine.lease.wait_empty(0))
        self.assertTrue(engine.lease.wait_empty(0))

    def test_steps_that_overlap_in_one_thread_keep_the_lease_until_all_have_ended(self) -> None:
        self.engines[0].lease.open(grant(1))
        engine: Any = self.engines[0]
        gate = StepGate(engine, None, 0.01)

        def steps() -> Iterator[int]:
            with gate.step() as held:
                yield held.version

        first, second = steps(), steps()
        self.assertEqual((next(first), next(second)), (1, 1))
        first.close()
        engine.lease.shut("commit")
        self.assertFalse(engine.lease.wait_empty(0))
        second.close()
        self.assertTrue(engine.lease.wait_empty(0))

    def test_a_task_beside_a_step_of_another_task_is_refused_on_all_ranks(self) -> None:
        for engine in self.engines:
            engine.lease.open(grant(1))
        gates = [self.gate(rank) for rank in range(2)]

        async def two_tasks() -> None:
            inside, leave = asyncio.Event(), asyncio.Event()

            async def first() -> None:
                with gates[0].step():
                    inside.set()
                    await leave.wait()

            async def second() -> None:
                gates[0].wrap(lambda: None)()

            holder = asyncio.create_task(first())
            await inside.wait()
            with self.assertRaisesRegex(dws.StateError, "is inside a running.. block"):
                await asyncio.create_task(second())
            leave.set()
            await holder

        def two_steps() -> None:
            with gates[1].step():
                pass
            with self.assertRaisesRegex(dws.EnginePaused, "another rank"):
                gates[1].wrap(lambda: None)()

        other = self.threads.submit(two_steps)
        asyncio.run(two_tasks())
        other.result(WAIT_SECONDS)
        self.assertTrue(all(engine.lease.wait_empty(0) for engine in self.engines))

    def test_one_rank_alone_needs_no_agreement(self) -> None:
        self.engines[0].lease.open(grant(3))
        engine: Any = self.engines[0]
        gate = StepGate(engine, None, 0.01)
        self.assertEqual(gate.wrap(lambda x: x + 1)(4), 5)
        engine.lease.shut("commit")
        with self.assertRaisesRegex(dws.EnginePaused, "commit"):
            gate.wrap(lambda: None)()
        self.assertEqual(gate.passes, 1)


if __name__ == "__main__":
    unittest.main()
