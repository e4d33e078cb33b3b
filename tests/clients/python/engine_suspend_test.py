"""dws.Engine.suspend returns after the receiver has released all memory that it was ever handed."""

import tempfile
import threading
import time
import unittest
import warnings
from typing import Any, Callable
from unittest import mock

import numpy as np

import dws
from tests.clients.python.fake_daemons import FakeReceiver, pause, resume

SHORT_SECONDS = 0.1


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.005)


class SuspendTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(self.receiver.stop)
        self.receiver.handles.lets_go = False
        self.engine = dws.Engine(self.receiver.socket)
        self.addCleanup(self.close_quietly)
        self.engine.attach({"a": np.zeros(4, np.float32)})
        self.down, up = self.receiver.leases.get(timeout=20)
        up.get(timeout=20)
        self.down.put(resume(1))
        self.engine.wait_ready(20)

    def close_quietly(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self.engine.close(SHORT_SECONDS)

    def let_go(self, registration: int) -> None:
        self.receiver.handles.connections[registration].close()

    def lose_the_lease(self) -> None:
        """Ends the lease, and waits until the engine has attached again."""
        generation = self.receiver.generation
        self.down.put(None)
        eventually(lambda: self.receiver.generation > generation, "attaches again")

    def lose_the_lease_for_good(self) -> None:
        """Ends the lease while the engine is paused; attaching again fails."""
        self.down.put(pause(9))
        self.down.put(None)

    def test_a_repeated_suspend_also_waits_until_the_receiver_has_released_the_memory(self) -> None:
        for _ in range(2):
            with self.assertRaisesRegex(dws.DeadlineError, "still used"):
                self.engine.suspend(SHORT_SECONDS)
        self.let_go(0)
        self.engine.suspend()

    def test_close_warns_of_memory_that_suspend_has_not_got_back(self) -> None:
        with self.assertRaises(dws.DeadlineError):
            self.engine.suspend(SHORT_SECONDS)
        with self.assertWarnsRegex(ResourceWarning, "may still write"):
            self.engine.close(SHORT_SECONDS)
        self.engine.close()

    def test_suspend_waits_for_earlier_registrations_too(self) -> None:
        self.lose_the_lease()
        down, _ = self.receiver.leases.get(timeout=20)
        down.put(resume(2))
        self.assertEqual(self.engine.wait_ready(20).version, 2)
        self.let_go(1)
        with self.assertRaises(dws.DeadlineError):
            self.engine.suspend(SHORT_SECONDS)
        self.let_go(0)
        self.engine.suspend()

    def test_suspend_waits_for_memory_that_refresh_has_not_got_back(self) -> None:
        self.engine.refresh(SHORT_SECONDS)
        eventually(lambda: self.receiver.generation == 2, "attached again")
        self.receiver.leases.get(timeout=20)
        self.let_go(1)
        with self.assertRaises(dws.DeadlineError):
            self.engine.suspend(SHORT_SECONDS)
        self.let_go(0)
        self.engine.suspend()

    def test_suspend_waits_for_a_registration_in_progress(self) -> None:
        handles = self.receiver.handles
        handles.answers.clear()
        self.lose_the_lease()
        self.let_go(0)
        eventually(lambda: len(handles.connections) == 2, "has the memory")
        suspended = threading.Thread(target=self.engine.suspend)
        suspended.start()
        suspended.join(SHORT_SECONDS)
        self.assertTrue(suspended.is_alive())
        handles.answers.set()  # the receiver has mapped the memory and answers
        suspended.join(SHORT_SECONDS)
        self.assertTrue(suspended.is_alive())
        self.let_go(1)
        suspended.join(20)
        self.assertFalse(suspended.is_alive())
        self.assertTrue(self.receiver.leases.empty())

    def test_close_ends_an_attach_that_is_not_answered(self) -> None:
        self.receiver.has_layout.clear()
        self.addCleanup(self.receiver.has_layout.set)
        self.receiver.waits_for = "no trainer layout yet: \x1b[31m"
        self.let_go(0)
        self.lose_the_lease_for_good()
        eventually(
            lambda: r"attaching: no trainer layout yet: \x1b[31m" in self.engine.stats().last_error,
            "says what the receiver says",
        )
        with self.assertRaisesRegex(dws.EnginePaused, "attaching again; attaching: no trainer layout"):
            self.engine.wait_ready(0.1)
        began = time.monotonic()
        self.engine.close(SHORT_SECONDS)
        self.assertLess(time.monotonic() - began, 10)

    def test_close_ends_a_hand_over_that_is_not_answered(self) -> None:
        handles = self.receiver.handles
        handles.answers.clear()
        self.let_go(0)
        self.lose_the_lease()
        eventually(lambda: len(handles.connections) == 2, "has the memory")
        began = time.monotonic()
        with self.assertWarnsRegex(ResourceWarning, "may still write"):
            self.engine.close(SHORT_SECONDS)
        self.assertLess(time.monotonic() - began, 10)
        self.assertFalse(self.engine._link._thread.is_alive())  # type: ignore[union-attr]

    def test_the_reason_of_a_pause_names_what_the_receiver_waits_for(self) -> None:
        self.receiver.waits_for = "version 7 is being fetched"
        self.down.put(pause(3))
        eventually(lambda: self.engine.grant is None, "paused")
        with self.assertRaises(dws.EnginePaused) as caught:
            self.engine.wait_ready(2)
        self.assertEqual(
            caught.exception.reason, "the receiver commits a version; version 7 is being fetched"
        )

    def test_nothing_is_handed_over_while_suspended(self) -> None:
        self.let_go(0)
        link = self.engine._link
        register = link._register
        begun, go_on = threading.Event(), threading.Event()

        def late(*arguments: Any) -> None:
            begun.set()
            go_on.wait(20)
            register(*arguments)

        with mock.patch.object(link, "_register", late):
            self.down.put(None)
            self.assertTrue(begun.wait(20))
            self.engine.suspend()
            go_on.set()
            eventually(lambda: "being attached" in self.engine.stats().last_error, "given up")
        self.assertEqual(len(self.receiver.handles.received), 1)


if __name__ == "__main__":
    unittest.main()
