"""dws.lease, and dws.Engine.running: threads, and tasks of asyncio, inside one gate."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
import unittest
from concurrent import futures
from typing import Any, AsyncIterator, Coroutine, Iterator, Optional
from unittest import mock

import dws
from dws.engine import Running
from dws.lease import ExecutionLease

WAIT_SECONDS = 20.0


def grant(version: int) -> dws.Grant:
    return dws.Grant(version, dws.Stream(1, 2), f"{version:032x}")


def opened() -> ExecutionLease:
    lease = ExecutionLease()
    lease.open(grant(1))
    return lease


def running(lease: ExecutionLease, timeout: Optional[float] = WAIT_SECONDS) -> Running:
    """As Engine.running, without a receiver."""
    link: Any = lease
    return Running(link, lease, timeout)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, WAIT_SECONDS))


class ExecutionLeaseTest(unittest.TestCase):
    def test_a_new_lease_is_shut_and_says_why(self) -> None:
        with self.assertRaisesRegex(dws.EnginePaused, "never released"):
            ExecutionLease().enter(timeout=0)

    def test_a_shut_lease_is_empty_only_after_those_inside_have_left(self) -> None:
        lease = opened()
        block = lease.enter(0)
        lease.shut("commit")
        self.assertFalse(lease.wait_empty(0))
        with self.assertRaises(dws.StateError):
            lease.open(grant(2))
        lease.leave(block)
        self.assertTrue(lease.wait_empty(0))
        with self.assertRaisesRegex(dws.EnginePaused, "commit"):
            lease.enter(0)

    def test_a_thread_inside_may_enter_again_while_the_lease_is_shut(self) -> None:
        lease = opened()
        outer = lease.enter(0)
        lease.shut("commit")
        inner = lease.enter(0)
        self.assertIs(inner.grant, outer.grant)
        lease.leave(inner)
        self.assertFalse(lease.wait_empty(0))
        for _ in range(20):  # any number of times
            lease.leave(lease.enter(0))
        lease.leave(outer)
        self.assertTrue(lease.wait_empty(0))

    def test_a_pause_is_measured_from_when_the_last_one_has_left(self) -> None:
        now = [100.0]
        lease = ExecutionLease(lambda: now[0])
        lease.open(grant(1))
        block = lease.enter(0)
        now[0] = 110
        lease.shut("commit")
        now[0] = 112
        self.assertEqual(lease.stopped_seconds, 0)
        lease.leave(block)
        now[0] = 115
        self.assertEqual(lease.stopped_seconds, 3)
        lease.open(grant(2))
        self.assertEqual(lease.stopped_seconds, 0)
        now[0] = 120
        lease.shut("commit")
        now[0] = 121
        stats = lease.stats()
        self.assertEqual((stats.grants, stats.paused_seconds, stats.granted_seconds), (2, 4, 17))
        self.assertEqual((stats.last_pause_seconds, stats.longest_pause_seconds), (3, 3))

    def test_a_block_is_entered_and_left_once(self) -> None:
        lease = opened()
        block = running(lease)
        with block:
            with self.assertRaisesRegex(dws.StateError, "once"), block:
                pass
        one = lease.enter(0)
        lease.leave(one)
        with self.assertRaisesRegex(dws.StateError, "left before"):
            lease.leave(one)

    def test_a_generator_that_another_thread_closes_leaves(self) -> None:
        lease = opened()

        def steps() -> Iterator[int]:
            with running(lease) as held:
                yield held.version

        generator = steps()
        self.assertEqual(next(generator), 1)
        lease.shut("commit")
        with futures.ThreadPoolExecutor(1) as other:
            other.submit(generator.close).result(WAIT_SECONDS)
        self.assertTrue(lease.wait_empty(0))
        self.assertFalse(lease.inside)

    def test_generators_of_one_thread_that_always_overlap_are_refused_by_name(self) -> None:
        lease = opened()

        def steps() -> Iterator[None]:
            while True:
                with running(lease):
                    yield

        generators = [steps() for _ in range(3)]
        for _ in range(100):  # while nothing is committed they may
            for one in generators:
                next(one)
        lease.shut("commit")
        with self.assertRaisesRegex(dws.StateError, "MainThread' overlap.*commit"):
            for _ in range(100):
                for one in generators:
                    next(one)
        for one in generators:
            one.close()
        self.assertTrue(lease.wait_empty(0))

    def test_a_block_counts_in_an_empty_context_too(self) -> None:
        lease = opened()
        with running(lease):
            with self.assertRaisesRegex(dws.StateError, "thread 'MainThread' is inside"):
                contextvars.Context().run(lease.enter, 0)


class TasksTest(unittest.TestCase):
    def commit(self, lease: ExecutionLease, version: int) -> None:
        """Does it like the lease thread."""
        lease.shut("the receiver commits a version")
        if not lease.wait_empty(WAIT_SECONDS):
            raise AssertionError(f"the gate never became empty: {lease.reason}")
        lease.open(grant(version))

    def test_tasks_that_overlap_let_a_commit_happen(self) -> None:
        lease = opened()

        async def request(number: int) -> int:
            steps = 0
            await asyncio.sleep(0.002 * number)
            while True:
                async with running(lease) as held:
                    steps += 1
                    await asyncio.sleep(0.02)
                    if held.version == 2:
                        return steps

        async def serve() -> None:
            requests = [asyncio.create_task(request(number)) for number in range(8)]
            await asyncio.sleep(0.05)  # they overlap now
            await asyncio.to_thread(self.commit, lease, 2)
            self.assertGreater(min(await asyncio.gather(*requests)), 1)

        run(serve())
        self.assertTrue(lease.wait_empty(0))

    def test_a_task_waits_without_the_loop_and_without_polling(self) -> None:
        lease = ExecutionLease()
        with mock.patch.object(lease, "_let_in", wraps=lease._let_in) as tries:

            async def main() -> None:
                async def enter() -> int:
                    async with running(lease, None) as held:
                        return held.version

                waiting = asyncio.create_task(enter())
                for _ in range(100):
                    await asyncio.sleep(0)
                self.assertEqual(tries.call_count, 1)
                threading.Thread(target=lease.open, args=(grant(3),)).start()
                self.assertEqual(await waiting, 3)

            run(main())
        self.assertEqual(tries.call_count, 2)

    def test_a_wait_of_a_task_that_takes_too_long_says_why(self) -> None:
        lease = ExecutionLease()
        lease.shut("for the test")

        async def main() -> None:
            for timeout in (0, 0.01):
                with self.assertRaisesRegex(dws.EnginePaused, "for the test"):
                    async with running(lease, timeout):
                        pass

        run(main())
        self.assertEqual(lease._waiting, set())

    def test_a_lease_that_ends_lets_nothing_in_and_wakes_all_that_wait(self) -> None:
        lease = ExecutionLease()

        async def enter() -> None:
            with self.assertRaisesRegex(dws.EnginePaused, "a copy of a weight"):
                async with running(lease, None):
                    pass

        async def main() -> None:
            waiting = asyncio.create_task(enter())
            while not lease._waiting:
                await asyncio.sleep(0)
            lease.end("a copy of a weight")
            await waiting

        with futures.ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(lease.enter, None)
            run(main())
            with self.assertRaisesRegex(dws.EnginePaused, "a copy of a weight"):
                blocked.result(WAIT_SECONDS)
        lease.end("closed")
        lease.open(grant(2))
        lease.shut("commit")
        run(enter())
        self.assertIsNone(lease.wait_until(lambda held: True, 3600))

    def test_a_task_that_is_cancelled_leaves_nothing_behind(self) -> None:
        lease = ExecutionLease()

        async def main() -> None:
            async def enter() -> None:
                async with running(lease, None):
                    await asyncio.sleep(WAIT_SECONDS)

            async def cancelled() -> None:
                task = asyncio.create_task(enter())
                for _ in range(5):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

            await cancelled()  # while it waits
            self.assertEqual(lease._waiting, set())
            lease.open(grant(1))
            self.assertTrue(lease.wait_empty(0))
            await cancelled()  # inside
            self.assertTrue(lease.wait_empty(0))

            task = asyncio.create_task(enter())
            lease.shut("commit")
            for _ in range(5):
                await asyncio.sleep(0)
            lease.open(grant(2))
            task.cancel()  # when the gate has opened for it
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self.assertTrue(lease.wait_empty(0))
            self.assertEqual(lease._waiting, set())

        run(main())

    def test_a_body_that_raises_leaves(self) -> None:
        lease = opened()

        async def main() -> None:
            with self.assertRaisesRegex(ValueError, "the model"):
                async with running(lease):
                    raise ValueError("the model")

        run(main())
        self.assertTrue(lease.wait_empty(0))

    def test_a_with_beside_another_task_is_refused_by_name(self) -> None:
        lease = opened()

        async def main() -> None:
            inside, leave = asyncio.Event(), asyncio.Event()

            async def first() -> None:
                with running(lease):
                    inside.set()
                    await leave.wait()

            async def second() -> None:
                with running(lease):
                    pass

            holder = asyncio.create_task(first(), name="holder")
            await inside.wait()
            for _ in range(2):  # with the gate open, and shut
                with self.assertRaisesRegex(dws.StateError, "task 'holder' .* is inside.*async with"):
                    await asyncio.create_task(second())
                self.assertTrue(lease.inside)  # calls that wait for a commit are refused too
                lease.shut("commit")
            leave.set()
            await holder
            self.assertTrue(lease.wait_empty(0))
            # With nobody inside it only stops the loop.
            threading.Timer(0.01, lease.open, (grant(2),)).start()
            await second()

        run(main())

    def test_what_a_block_starts_is_part_of_it(self) -> None:
        lease = opened()

        async def child(depth: int) -> int:
            async with running(lease, 0) as held:
                if depth:
                    return int(await asyncio.create_task(child(depth - 1)))
                return held.version

        def on_thread() -> int:
            with running(lease, 0) as held:
                return held.version

        async def plain_child() -> int:
            return on_thread()

        async def main() -> None:
            async with running(lease):
                lease.shut("commit")
                # More than blocks that overlap may continue each other.
                self.assertEqual(await asyncio.create_task(child(20)), 1)
                self.assertEqual(await asyncio.create_task(plain_child()), 1)
                self.assertEqual(await asyncio.to_thread(on_thread), 1)
                self.assertEqual(await asyncio.gather(child(1), child(2)), [1, 1])
            self.assertTrue(lease.wait_empty(0))

        run(main())

    def test_what_a_block_has_started_waits_once_the_block_has_ended(self) -> None:
        lease = opened()

        async def main() -> None:
            ended = asyncio.Event()

            async def child() -> None:
                await ended.wait()
                async with running(lease, 0):
                    pass

            async with running(lease):
                task = asyncio.create_task(child())
            lease.shut("commit")
            ended.set()
            with self.assertRaisesRegex(dws.EnginePaused, "commit"):
                await task

        run(main())

    def test_a_thread_of_an_executor_waits_and_is_told_for_whom(self) -> None:
        lease = opened()

        def on_thread() -> None:
            with running(lease, 0.01):
                pass

        async def main() -> None:
            async with running(lease):
                lease.shut("commit")
                loop = asyncio.get_running_loop()
                with self.assertRaisesRegex(dws.EnginePaused, "1 running.. blocks have not.*task '"):
                    await loop.run_in_executor(None, on_thread)

        run(main())

    def test_blocks_that_start_each_other_let_a_commit_happen(self) -> None:
        lease = opened()

        async def main() -> None:
            begun = 0
            over = asyncio.Event()

            async def step() -> None:
                nonlocal begun
                async with running(lease) as held:
                    begun += 1
                    if held.version == 2:
                        return over.set()
                    task = asyncio.create_task(step())
                    await asyncio.sleep(0.01)
                    tasks.append(task)

            tasks = [asyncio.create_task(step())]
            while begun < 3:
                await asyncio.sleep(0)
            await asyncio.to_thread(self.commit, lease, 2)
            await over.wait()
            for task in tasks:
                await task

        run(main())

    def test_tasks_that_share_a_context_are_counted_apart(self) -> None:
        lease = opened()
        if not hasattr(asyncio, "Runner"):
            self.skipTest("tasks of this Python have contexts of their own")

        async def main() -> None:
            both = contextvars.copy_context()

            async def request() -> int:
                while True:
                    async with running(lease) as held:
                        await asyncio.sleep(0.01)
                        if held.version == 2:
                            return 2

            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(request(), context=both) for _ in range(2)]  # type: ignore[call-arg]
            await asyncio.sleep(0.02)
            await asyncio.to_thread(self.commit, lease, 2)
            self.assertEqual(await asyncio.gather(*tasks), [2, 2])

        run(main())

    def test_a_generator_that_the_loop_closes_leaves(self) -> None:
        lease = opened()

        async def steps() -> AsyncIterator[int]:
            async with running(lease) as held:
                yield held.version

        async def main() -> None:
            generator = steps()
            self.assertEqual(await generator.__anext__(), 1)
            closing: Any = generator
            await asyncio.create_task(closing.aclose())
            self.assertTrue(lease.wait_empty(0))
            self.assertFalse(lease.inside)

        run(main())

    def test_loops_and_threads_wait_together(self) -> None:
        lease = ExecutionLease()

        async def enter() -> int:
            async with running(lease) as held:
                return held.version

        async def both() -> list[int]:
            return list(await asyncio.gather(enter(), enter()))

        def on_thread() -> list[int]:
            with running(lease) as held:
                return [held.version]

        async def left_behind() -> None:
            task = asyncio.create_task(enter())
            await asyncio.sleep(0)
            self.assertEqual(len(lease._waiting), 1)
            task.get_loop().stop()

        with contextlib.closing(asyncio.new_event_loop()) as loop:  # with a task that still waits
            loop.create_task(left_behind())
            loop.run_forever()
            abandoned = asyncio.all_tasks(loop)
        with futures.ThreadPoolExecutor(4) as threads:
            waiting = [threads.submit(run, both()) for _ in range(2)]
            waiting += [threads.submit(on_thread) for _ in range(2)]
            deadline = time.monotonic() + WAIT_SECONDS
            while len(lease._waiting) < 5 and time.monotonic() < deadline:
                time.sleep(0.001)
            lease.open(grant(5))
            seen = [one.result(WAIT_SECONDS) for one in waiting]
        self.assertEqual(seen, [[5, 5], [5, 5], [5], [5]])
        for task in abandoned:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def test_async_with_outside_of_a_task_is_refused(self) -> None:
        lease = opened()
        with self.assertRaisesRegex(dws.StateError, "task of asyncio"):
            running(lease).__aenter__().send(None)


if __name__ == "__main__":
    unittest.main()
