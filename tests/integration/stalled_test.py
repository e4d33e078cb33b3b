"""Daemons that are stopped in the middle of a client's call: SIGSTOP, then SIGCONT. Calls return within
their timeouts, and no mixture of versions is ever published or used by an engine."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import unittest
import warnings
from typing import Any, Iterator

import numpy as np

import dws
from dws.sender_link import SETTLE_GRACE_SECONDS
from tests.integration.cluster import Daemon
from tests.integration.integration_case import WAIT_SECONDS, IntegrationCase, eventually

# A large tensor: reading it takes long enough for a change to fall into it.
ELEMENTS = 8_000_000
# What a busy machine may add to a call's time.
SLACK_SECONDS = 5.0


@contextlib.contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    assert daemon.process is not None
    os.kill(daemon.process.pid, signal.SIGSTOP)
    # A thread that is running may still answer a call: this returns when every one has stopped.
    _, status = os.waitpid(daemon.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    try:
        yield
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


class _Writer:
    """Fills an array with one value after the other, from 1000 on, until it is stopped."""

    def __init__(self, weights: Any) -> None:
        self._weights = weights
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        value = 1000
        while not self._end.is_set():
            self._weights[:] = value
            value += 1

    def end(self) -> None:
        self._end.set()
        self._thread.join()


class _Watcher:
    """Checks until stopped that all of an engine's weights are equal between commits."""

    def __init__(self, engine: dws.Engine, live: Any) -> None:
        self.torn: list[int] = []  # versions
        self._engine, self._live = engine, live
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(dws.EnginePaused), self._engine.running(1) as grant:
                if self._live.min() != self._live.max():
                    self.torn.append(grant.version)
            time.sleep(0.001)  # commits happen in between

    def end(self) -> list[int]:
        self._end.set()
        self._thread.join()
        return self.torn


class StalledSenderTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.start()
        self.sender = self.cluster.senders[0]

    def within(self, seconds: float, call: Any) -> BaseException:
        """Returns what `call` raises within at most so many seconds."""
        began = time.monotonic()
        with self.assertRaises(dws.DwsError) as caught:
            call()
        self.assertLess(time.monotonic() - began, seconds + SLACK_SECONDS)
        return caught.exception

    def attached(self) -> tuple[dws.Engine, Any]:
        engine = self.engine()
        return engine, engine.attach({"w": np.zeros(ELEMENTS, np.float32)})["w"]

    def check_whole(self, engine: dws.Engine, live: Any, version: int, value: float) -> None:
        self.await_version(engine, version)
        with engine.running(WAIT_SECONDS):
            self.assertEqual((live.min(), live.max()), (value, value))

    def test_a_publish_that_timed_out_is_published_completely_or_not_at_all(self) -> None:
        trainer = self.trainer()
        weights = trainer.register({"w": np.ones(ELEMENTS, np.float32)})["w"]
        engine, live = self.attached()
        trainer.publish(1)
        self.check_whole(engine, live, 1, 1)
        watcher = _Watcher(engine, live)
        self.addCleanup(watcher.end)
        for _ in range(4):
            version = trainer.last_version + 1
            weights[:] = version
            with stopped(self.sender):
                error = self.within(
                    1 + SETTLE_GRACE_SECONDS, lambda: trainer.publish(version, timeout=1)
                )
                self.assertIsInstance(error, dws.SenderStalledError)
                self.assertIsInstance(error, dws.DeadlineError)
                self.assertFalse(trainer.connected)
                # As the error says, the weights may be overwritten now: while the sender reads them.
                self.within(0, lambda: trainer.publish(version))
                self.within(1, lambda: trainer.wait(version, timeout=1))
                writer = _Writer(weights)
            try:
                trainer.reconnect(WAIT_SECONDS)
            finally:
                writer.end()
            self.assertIn(trainer.last_version, (version - 1, version))
            after = trainer.last_version + 1
            weights[:] = after
            trainer.publish(after)
            trainer.wait(after)
            self.check_whole(engine, live, after, after)
        self.assertEqual(watcher.end(), [])

    def test_a_ring_version_that_timed_out_leaves_nothing(self) -> None:
        trainer = self.trainer()
        trainer.register_ring({"w": np.zeros(ELEMENTS, np.float32)}, 1 << 20, 2)
        engine, live = self.attached()

        def publish(version: int, timeout: float = 60.0) -> None:
            with trainer.version(version, timeout) as writer:
                writer.put("w", np.full(ELEMENTS, version, np.float32))

        publish(1)
        self.check_whole(engine, live, 1, 1)
        with contextlib.ExitStack() as stop:
            began = time.monotonic()
            with self.assertRaises(dws.SenderStalledError), trainer.version(2, timeout=1) as writer:
                stop.enter_context(stopped(self.sender))
                writer.put("w", np.full(ELEMENTS, 2, np.float32))
            self.assertLess(time.monotonic() - began, 1 + SETTLE_GRACE_SECONDS + SLACK_SECONDS)
        trainer.reconnect(WAIT_SECONDS)
        self.assertEqual(trainer.last_version, 1)
        publish(2)
        trainer.wait(2)
        self.check_whole(engine, live, 2, 2)

    def test_every_call_returns_within_its_timeout(self) -> None:
        trainer = self.trainer()
        with stopped(self.sender):
            tensors = {"w": np.zeros(10, np.float32)}
            self.within(1, lambda: trainer.register(tensors, timeout=1))
        trainer = self.trainer()
        trainer.register(tensors)
        trainer.publish(1)
        with stopped(self.sender):
            self.within(1 + 2, lambda: trainer.wait(1, timeout=1))
            self.within(1, lambda: trainer.reconnect(timeout=1))
            began = time.monotonic()
            trainer.close()
            self.assertLess(time.monotonic() - began, SLACK_SECONDS)

    def test_a_publish_without_the_time_for_it_is_given_up(self) -> None:
        trainer = self.trainer()
        weights = trainer.register({"w": np.ones(ELEMENTS, np.float32)})["w"]
        trainer.publish(1)
        # The sender keeps 0.1 s for its answer; before that it may end at any point of the capture. A
        # version may be published although its answer came too late, so each has its own number.
        timeouts = (0.05, 0.1, 0.11, 0.12, 0.13, 0.14, 0.15, 0.17, 0.2)
        for version, timeout in enumerate(timeouts, start=2):
            weights += 1
            with contextlib.suppress(dws.DeadlineError):
                trainer.publish(version, timeout=timeout)
                self.assertGreater(timeout, 0.1)
            self.assertTrue(trainer.connected)
        version = len(timeouts) + 2
        messages = []
        for _ in range(20):  # a busy machine may need more than 0.09 s for the answer
            with self.assertRaises(dws.DeadlineError) as caught:
                trainer.publish(version, timeout=0.09)
            messages.append(str(caught.exception))
        self.assertTrue(any("the last 0.1 s are kept for the answer" in each for each in messages), messages)
        engine, live = self.attached()
        trainer.publish(version)
        self.check_whole(engine, live, version, weights[0])


class StalledReceiverTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.start()
        self.receiver = self.cluster.receivers[0]
        self.weights = self.trainer().register({"w": np.ones(1000, np.float32)})

    def released(self) -> dws.Engine:
        trainer = self.trainer()
        trainer.register({"w": np.ones(1000, np.float32)})
        engine = self.engine()
        engine.attach({"w": np.zeros(1000, np.float32)})
        trainer.publish(1)
        self.await_version(engine, 1)
        return engine

    def test_close_and_refresh_return_and_report_what_they_left(self) -> None:
        engine = self.released()
        with stopped(self.receiver):
            began = time.monotonic()
            with self.assertRaisesRegex(dws.DeadlineError, "still used the weights 1 s after"):
                engine.suspend(timeout=1)
            engine.refresh(timeout=1)
            self.assertLess(time.monotonic() - began, 2 + SLACK_SECONDS)
        self.await_version(engine, 1)
        with stopped(self.receiver), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            began = time.monotonic()
            engine.close(timeout=1)
            self.assertLess(time.monotonic() - began, 1 + SLACK_SECONDS)

    def test_close_ends_an_attach_that_a_stopped_receiver_does_not_answer(self) -> None:
        engine = self.released()
        with stopped(self.receiver), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            engine.refresh(timeout=0.1)
            eventually(
                lambda: "does not answer" in engine.stats().last_error,
                lambda: engine.stats().last_error,
            )
            began = time.monotonic()
            engine.close(timeout=1)
            self.assertLess(time.monotonic() - began, 1 + SLACK_SECONDS)
            other = self.engine()
            with self.assertRaisesRegex(dws.DeadlineError, "its process stopped"):
                other.attach({"w": np.zeros(1000, np.float32)}, timeout=1)
            self.assertLess(time.monotonic() - began, 3 + 2 * SLACK_SECONDS)


if __name__ == "__main__":
    unittest.main()
