"""SIGTERM at every stage of a commit, once and twice: the engine's memory is one published version, the
daemons exit without error and in time, and a restarted pair continues."""

import json
import os
import signal
import threading
import time
import unittest
from typing import Any, Optional
from unittest import mock

import grpc
import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

SHAPES = {"a": (900, 700), "b": (33,)}
STOP_SECONDS = 40.0


class SigtermCase(IntegrationCase):
    """A pair that has committed version 1, with a receiver whose worker a failpoint can hold."""

    def begin(self, failpoint: Optional[str], *flags: str) -> None:
        self.random = np.random.default_rng(3)
        self.hold = os.path.join(self.cluster.folder, "hold")
        self.use_failpoints("RECEIVER")
        self.cluster.start_sender(0)
        armed = {"DWS_FAILPOINT": f"{failpoint}:hold", "DWS_FAILPOINT_HOLD": self.hold}
        with mock.patch.dict(os.environ, armed if failpoint else {}):
            self.receiver = self.cluster.start_receiver("receiver-0", *flags)
        self.driver, self.rollout = self.trainer(), self.engine()
        self.source = self.driver.register({n: np.ones(s, np.float32) for n, s in SHAPES.items()})
        self.live = self.rollout.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        self.published: dict[int, dict[str, Any]] = {}
        self.publish(1)
        self.await_version(self.rollout, 1)

    def publish(self, version: int) -> None:
        for array in self.source.values():
            change(array, self.random, 0.05)
        self.published[version] = {name: array.copy() for name, array in self.source.items()}
        self.driver.publish(version)

    def send(self, daemon: Daemon, number: int = signal.SIGTERM) -> None:
        assert daemon.process is not None
        daemon.process.send_signal(number)

    def await_log(self, daemon: Daemon, text: str) -> None:
        eventually(lambda: text in daemon.log_tail(200), lambda: f"{text!r} in {daemon.log_tail()}")

    def await_end(self, daemon: Daemon) -> None:
        assert daemon.process is not None
        self.assertEqual(daemon.process.wait(STOP_SECONDS), 0)
        daemon.process = None

    def await_held(self) -> None:
        eventually(lambda: os.path.exists(self.hold), lambda: self.receiver.log_tail())

    def await_pause(self) -> None:
        """Waits until the receiver has requested a pause, which a running forward pass delays."""
        eventually(lambda: self.rollout.grant is None, lambda: "a pause is asked for")

    def memory(self) -> Optional[int]:
        """The published version that the engine's memory equals, bit for bit."""
        for version, weights in self.published.items():
            if all(
                np.array_equal(self.live[n].view(np.uint32), w.view(np.uint32))
                for n, w in weights.items()
            ):
                return version
        return None

    def check_goes_on(self) -> None:
        """Checks that a restarted receiver commits the newest version and the next."""
        self.receiver.start()
        newest = max(self.published)
        self.await_version(self.rollout, newest)
        self.publish(newest + 1)
        self.driver.wait(newest + 1, timeout=60)
        self.await_version(self.rollout, newest + 1)
        self.assertEqual(self.memory(), newest + 1)


class ReceiverTest(SigtermCase):
    def test_after_a_fetch_sigterm_lets_the_commit_finish(self) -> None:
        self.begin("receiver.prepare.after_fetch")
        self.publish(2)
        self.await_held()
        self.send(self.receiver)
        self.await_log(self.receiver, " stopping ")
        os.unlink(self.hold)
        self.await_end(self.receiver)
        self.assertEqual(self.memory(), 2)
        self.check_goes_on()

    def test_during_a_fetch_sigterm_ends_it_and_nothing_is_written(self) -> None:
        sender = self.cluster.start_sender(0)
        receiver = self.cluster.start_receiver("receiver-0")
        trainer = self.trainer()
        source = trainer.register({"w": np.ones((64, 64), np.float32)})
        trainer.publish(1)
        engine = self.engine()
        # It is connected, accepts calls and has reported version 1, but will not answer.
        eventually(
            lambda: json.loads(receiver.page("/status"))["receiver"].get("newest_version") == "1",
            lambda: receiver.log_tail(),
        )
        self.send(sender, signal.SIGSTOP)
        self.addCleanup(self.send, sender, signal.SIGCONT)
        live = engine.attach({"w": np.zeros((64, 64), np.float32)})
        self.await_log(receiver, " digests_computed ")
        begin = time.monotonic()
        self.send(receiver)
        self.await_end(receiver)
        self.assertLess(time.monotonic() - begin, 15)  # --stop-timeout is 20
        self.assertFalse(live["w"].any())
        self.send(sender, signal.SIGCONT)
        receiver.start()
        eventually(lambda: np.array_equal(live["w"], source["w"]), lambda: receiver.log_tail())

    def test_after_sigterm_the_engine_may_still_answer_the_pause(self) -> None:
        self.begin(None)
        with self.rollout.running(60):
            self.publish(2)
            self.await_pause()
            self.send(self.receiver)
            self.await_log(self.receiver, " stopping ")
        self.await_end(self.receiver)
        self.assertEqual(self.memory(), 2)
        self.check_goes_on()

    def test_a_receiver_that_waits_for_the_pause_exits_when_the_grace_ends(self) -> None:
        self.begin(None, "--stop-timeout=1")
        with self.rollout.running(60):
            self.publish(2)
            self.await_pause()
            self.send(self.receiver)
            self.await_end(self.receiver)
            self.assertEqual(self.memory(), 1)
        self.check_goes_on()

    def test_a_second_sigterm_ends_the_wait_for_the_engine(self) -> None:
        self.begin(None, "--stop-timeout=3600")
        with self.rollout.running(60):
            self.publish(2)
            self.await_pause()
            self.send(self.receiver)
            self.await_log(self.receiver, " stopping ")
            self.send(self.receiver, signal.SIGINT)
            self.await_end(self.receiver)
            self.assertEqual(self.memory(), 1)
        self.check_goes_on()

    def test_three_sigterms_do_not_tear_a_write(self) -> None:
        self.begin("receiver.commit.inside_scatter", "--stop-timeout=1")
        self.publish(2)
        self.await_held()
        self.send(self.receiver)
        self.await_log(self.receiver, " stopping ")
        self.send(self.receiver)
        self.await_log(self.receiver, " stopping_now ")
        self.send(self.receiver)
        # The grace is over: the engine's lease ends, the write continues.
        eventually(lambda: not self.rollout.stats().connected, lambda: "the lease ends")
        assert self.receiver.process is not None
        self.assertIsNone(self.receiver.process.poll())
        os.unlink(self.hold)
        self.await_end(self.receiver)
        self.assertEqual(self.memory(), 2)
        self.check_goes_on()

    def test_an_idle_receiver_exits_at_once(self) -> None:
        self.begin(None)
        begin = time.monotonic()
        self.receiver.stop()
        self.assertLess(time.monotonic() - begin, 15)  # --stop-timeout is 20
        self.assertEqual(self.memory(), 1)
        self.check_goes_on()


class SenderTest(SigtermCase):
    def test_a_sender_stopped_during_a_publish_leaves_a_published_version(self) -> None:
        self.begin(None)
        failures: list[Exception] = []
        begun = threading.Event()

        def publish_on() -> None:
            try:
                for version in range(2, 1000):
                    begun.set()
                    self.publish(version)
            except dws.DwsError as error:
                failures.append(error)

        thread = threading.Thread(target=publish_on)
        thread.start()
        begun.wait(60)
        self.cluster.senders[0].stop()
        thread.join(60)
        self.assertEqual(len(failures), 1, failures)
        # The engine has a published version, and the pair continues.
        with self.rollout.running(60):  # a receiver may still be writing what it fetched
            self.assertIsNotNone(self.memory())
        self.cluster.senders[0].start()
        newest = max(self.published) + 1
        self.driver = self.trainer()
        self.source = self.driver.register(self.published[newest - 1])
        self.publish(newest)
        self.await_version(self.rollout, newest)
        self.assertEqual(self.memory(), newest)

    def check_watchers(self, daemon: Daemon) -> None:
        """Checks that calls that only watch do not delay the exit of an idle daemon."""
        with grpc.insecure_channel(daemon.address) as channel:
            watches = [
                channel.unary_stream(method)(b"", timeout=60)
                for method in ("/grpc.health.v1.Health/Watch", "/dws.v1.AdminService/Watch")
            ]
            for watch in watches:
                next(watch)
            begin = time.monotonic()
            daemon.stop()
            self.assertLess(time.monotonic() - begin, 15)  # --stop-timeout is 20
            for watch in watches:
                with self.assertRaises(grpc.RpcError):
                    for _ in watch:
                        pass

    def test_watchers_do_not_delay_a_senders_exit(self) -> None:
        self.cluster.start_sender(0, "--insecure")
        self.cluster.start_receiver("receiver-0", "--insecure")
        self.check_watchers(self.cluster.receivers[0])
        self.check_watchers(self.cluster.senders[0])


if __name__ == "__main__":
    unittest.main()
