"""Commits happen only when the engine asks (dws.Engine.let_commit), or at the boundaries that it names
(dws.Boundaries, dws.Engine.boundary)."""

import tempfile
import threading
import unittest
from typing import Any
from unittest import mock

import numpy as np

import dws
from dws._proto import engine_pb2
from tests.clients.python.fake_daemons import FakeReceiver, pause, resume


class RequestTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(self.receiver.stop)
        self.engine = dws.Engine(self.receiver.socket)
        self.addCleanup(self.engine.close, 0.1)
        self.engine.attach({"a": np.zeros(4, np.float32)}, commits_on_request=True)
        self.down, self.up = self.opened()
        self.down.put(resume(1))
        self.engine.wait_ready(20)

    def opened(self) -> tuple[Any, Any]:
        down, up = self.receiver.leases.get(timeout=20)
        self.assertEqual(up.get(timeout=20).WhichOneof("message"), "open")
        return down, up

    def asked(self, up: Any) -> int:
        message = up.get(timeout=20)
        self.assertEqual(message.WhichOneof("message"), "commit_request")
        return int(message.commit_request.version)

    def test_it_asks_waits_for_the_version_and_asks_no_more(self) -> None:
        self.assertTrue(self.receiver.attached.commits_on_request)
        found: list[dws.Grant] = []
        thread = threading.Thread(target=lambda: found.append(self.engine.let_commit(3, 20)))
        thread.start()
        self.assertEqual(self.asked(self.up), 3)
        for number, version in enumerate((2, 3), 1):
            self.down.put(pause(number))
            self.assertEqual(self.up.get(timeout=20).paused.pause_id, number)
            self.down.put(resume(version, number))
        thread.join(20)
        self.assertEqual([grant.version for grant in found], [3])
        self.assertEqual(self.asked(self.up), 0)

    def test_the_version_that_is_there_is_returned_at_once(self) -> None:
        self.assertEqual(self.engine.let_commit(1, 20).version, 1)
        self.assertEqual(self.engine.let_commit(1, 20, dws.Stream(1, 2)).version, 1)

    def test_numbers_of_another_stream_do_not_count(self) -> None:
        with self.assertRaisesRegex(dws.DeadlineError, "memory has version 1 of stream 1:"):
            self.engine.let_commit(1, 0.05, dws.Stream(9, 2))

    def test_a_version_that_does_not_come_is_an_error_and_the_request_is_taken_back(self) -> None:
        with self.assertRaisesRegex(dws.DeadlineError, "version 2 was not committed within 0.05 s"):
            self.engine.let_commit(2, 0.05)
        self.assertEqual([self.asked(self.up), self.asked(self.up)], [2, 0])
        with self.engine.running(20) as grant:  # it goes on with its version
            self.assertEqual(grant.version, 1)

    def test_a_receiver_that_comes_back_is_asked_again(self) -> None:
        found: list[dws.Grant] = []
        thread = threading.Thread(target=lambda: found.append(self.engine.let_commit(2, 20)))
        thread.start()
        self.assertEqual(self.asked(self.up), 2)
        self.down.put(None)
        down, up = self.opened()
        self.assertEqual(self.asked(up), 2)
        down.put(resume(2))
        thread.join(20)
        self.assertEqual([grant.version for grant in found], [2])

    def test_a_version_of_the_wrong_type_leaves_no_request_behind(self) -> None:
        with self.assertRaises(TypeError):
            self.engine.let_commit("7", 20)  # type: ignore[arg-type]
        self.assertEqual(self.asked(self.up), 0)
        self.down.put(None)
        down, up = self.opened()  # it attaches again
        down.put(resume(1))
        self.assertEqual(self.engine.let_commit(1, 20).version, 1)
        self.assertEqual(self.asked(up), 1)

    def test_inside_running_it_is_refused(self) -> None:
        with self.engine.running(20):
            with self.assertRaisesRegex(dws.StateError, "outside of running"):
                self.engine.let_commit(2, 20)


class BoundariesTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(lambda: self.receiver.stop())
        self.boundaries = dws.Boundaries(self.receiver.socket)
        self.addCleanup(self.boundaries.close)

    def said(self) -> Any:
        return self.receiver.boundaries.get(timeout=20)

    def attached(self) -> dws.Engine:
        engine = dws.Engine(self.receiver.socket)
        self.addCleanup(engine.close, 0.1)
        engine.attach({"a": np.zeros(4, np.float32)})
        down, _ = self.receiver.leases.get(timeout=20)
        down.put(resume(3))
        engine.wait_ready(20)
        return engine

    def test_a_boundary_that_passes_returns_the_version(self) -> None:
        self.assertEqual(self.boundaries.passed(20), 7)
        first = self.said()
        self.assertEqual(self.boundaries.passed(20), 7)
        second = self.said()
        self.assertNotEqual(first.boundary_id, second.boundary_id)
        for request in (first, second):
            self.assertTrue(0 < request.boundary_id < 1 << 63)
            self.assertFalse(request.stays)

    def test_one_that_takes_too_long_is_taken_back(self) -> None:
        self.receiver.holds = True
        with self.assertRaisesRegex(dws.DeadlineError, "did not commit the version that it holds back within 0.2 s of this"):
            self.boundaries.passed(0.2)
        begun, ended = self.said(), self.said()
        self.assertEqual(begun.boundary_id, ended.boundary_id)

    def test_one_that_stays_is_ended_and_its_error_is_the_blocks(self) -> None:
        with self.assertRaisesRegex(ValueError, "the batch failed"):
            with self.boundaries.stay(20):
                begun = self.said()
                self.assertTrue(begun.stays)
                raise ValueError("the batch failed")
        self.assertEqual(self.said().boundary_id, begun.boundary_id)
        self.assertNotIn("dws-boundary", [thread.name for thread in threading.enumerate()])

    def test_one_that_stays_is_over_even_where_its_begin_comes_after_its_end(self) -> None:
        begins, ended, hung_up = threading.Event(), threading.Event(), threading.Event()

        def begin(_: Any, __: Any, context: Any) -> engine_pb2.BoundaryReply:
            context.add_callback(hung_up.set)
            begins.set()
            ended.wait(20)  # opens the boundary only then
            hung_up.wait(20)
            return engine_pb2.BoundaryReply()

        def end(*_: Any) -> engine_pb2.BoundaryReply:
            ended.set()
            return engine_pb2.BoundaryReply()

        with mock.patch.multiple(FakeReceiver, Boundary=begin, EndBoundary=end):
            late = tempfile.TemporaryDirectory()
            self.addCleanup(late.cleanup)
            receiver = FakeReceiver(late.name)
            self.addCleanup(receiver.stop)
            self.addCleanup(hung_up.set)
            boundaries = dws.Boundaries(receiver.socket)
            self.addCleanup(boundaries.close)
            with boundaries.stay(20):
                self.assertTrue(begins.wait(20))
                self.assertFalse(hung_up.is_set())
            self.assertTrue(hung_up.wait(4))
        self.assertNotIn("dws-boundary", [thread.name for thread in threading.enumerate()])

    def test_one_that_stays_is_named_again_to_a_receiver_that_comes_back(self) -> None:
        with self.boundaries.stay(20):
            first = self.said()
            folder = self.receiver.socket.rsplit("/", 1)[0]
            self.receiver.stop()
            self.receiver = FakeReceiver(folder)
            again = self.said()
            self.assertNotEqual(again.boundary_id, first.boundary_id)
        self.assertEqual(self.said().boundary_id, again.boundary_id)

    def test_a_receiver_that_is_away_is_an_error_here_and_none_for_an_engine(self) -> None:
        engine = self.attached()
        self.assertEqual(engine.boundary(20).version, 3)
        self.receiver.stop()
        with self.assertRaisesRegex(dws.DaemonUnavailableError, "naming a boundary: no daemon"):
            self.boundaries.passed(5)
        self.assertEqual(engine.boundary(20).version, 3)  # it generates with its version
        with engine.at_boundary(20):
            pass

    def test_a_receiver_that_was_away_is_told_as_soon_as_it_is_back(self) -> None:
        for _ in range(5):
            folder = self.receiver.socket.rsplit("/", 1)[0]
            self.receiver.stop()
            with self.assertRaises(dws.DaemonUnavailableError):
                self.boundaries.passed(5)
            self.receiver = FakeReceiver(folder)
            self.assertEqual(self.boundaries.passed(20), 7)

    def test_an_engine_names_them_when_it_is_attached_and_outside_of_passes(self) -> None:
        unattached = dws.Engine(self.receiver.socket)
        self.addCleanup(unattached.close, 0.1)
        with self.assertRaisesRegex(dws.StateError, "attach"):
            unattached.boundary()
        engine = self.attached()
        with engine.running(20):
            with self.assertRaisesRegex(dws.StateError, r"at_boundary\(\) lets commits happen"):
                with engine.at_boundary():
                    pass
        with engine.at_boundary(20):
            self.assertTrue(self.said().stays)


if __name__ == "__main__":
    unittest.main()
