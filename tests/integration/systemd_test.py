"""The daemons as systemd sees them: ready, status, watchdog, reload, stop."""

import os
import signal
import time
import unittest
from typing import Any
from unittest import mock

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually
from tests.integration.notify_socket import NotifySocket

WATCHDOG_SECONDS = 0.4


class SystemdCase(IntegrationCase):
    """A test with notify sockets like systemd's."""

    def listen(self, folder: str = "", watchdog_seconds: float = WATCHDOG_SECONDS) -> NotifySocket:
        notify = NotifySocket(folder or self.cluster.folder, watchdog_seconds)
        self.addCleanup(notify.close)
        return notify

    def await_lines(self, notify: NotifySocket, name: str, value: str, count: int) -> None:
        eventually(
            lambda: notify.count(name, value) >= count,
            lambda: f"{count} times {name}={value} in {notify.messages[-20:]}",
        )

    def await_status(self, notify: NotifySocket, text: str) -> None:
        eventually(
            lambda: text in notify.last("STATUS"),
            lambda: f"{text!r}, not {notify.last('STATUS')!r}",
        )

    def signal(self, daemon: Daemon, number: int) -> None:
        assert daemon.process is not None
        daemon.process.send_signal(number)


class NotifyTest(SystemdCase):
    def check_reload_and_stop(self, daemon: Daemon, notify: NotifySocket) -> None:
        ready = notify.count("READY", "1")
        before = time.monotonic_ns() // 1000
        self.signal(daemon, signal.SIGHUP)
        self.await_lines(notify, "RELOADING", "1", 1)
        self.await_lines(notify, "READY", "1", ready + 1)
        at = next(int(m["MONOTONIC_USEC"]) for m in notify.messages if "RELOADING" in m)
        self.assertTrue(before <= at <= time.monotonic_ns() // 1000, at)
        self.assertEqual(notify.count("STOPPING", "1"), 0)
        daemon.stop()
        self.assertEqual(notify.count("STOPPING", "1"), 1)

    def test_a_pair_reports_every_state_to_systemd(self) -> None:
        with self.listen() as of_sender:
            sender = self.cluster.start_sender(0)
        with self.listen() as of_receiver:
            receiver = self.cluster.start_receiver("receiver-0")
        for daemon, notify in ((sender, of_sender), (receiver, of_receiver)):
            self.await_lines(notify, "READY", "1", 1)
            assert daemon.process is not None
            self.assertEqual(notify.last("MAINPID"), str(daemon.process.pid))
            self.await_lines(notify, "WATCHDOG", "1", 3)
        self.await_status(of_sender, "not ready: waiting for trainer rank 0")
        self.await_status(of_receiver, "not ready: ")

        trainer, engine = self.trainer(), self.engine()
        source = trainer.register({"w": np.ones((64, 64), np.float32)})
        engine.attach({"w": np.zeros((64, 64), np.float32)})
        change(source["w"], np.random.default_rng(1), 0.1)
        trainer.publish(1)
        trainer.wait(1, timeout=60)
        self.await_status(of_sender, "version 1, receivers 1")
        self.await_status(of_receiver, "version 1, lag 0, engine ranks 1 of 1")

        self.check_reload_and_stop(receiver, of_receiver)
        self.await_status(of_sender, "version 1, receivers 0")
        self.check_reload_and_stop(sender, of_sender)

    def test_an_abstract_notify_socket_works_without_a_watchdog(self) -> None:
        notify = NotifySocket()
        self.addCleanup(notify.close)
        with notify:
            self.cluster.start_sender(0)
        self.await_lines(notify, "READY", "1", 1)
        self.assertEqual(notify.count("WATCHDOG", "1"), 0)

    def test_the_watchdog_of_another_process_is_not_fed(self) -> None:
        os.environ["WATCHDOG_PID"] = "1"
        self.addCleanup(os.environ.pop, "WATCHDOG_PID", None)
        with self.listen() as notify:
            sender = self.cluster.start_sender(0)
        self.await_lines(notify, "READY", "1", 1)
        sender.stop()
        self.assertEqual(notify.count("WATCHDOG", "1"), 0)


class WatchdogTest(SystemdCase):
    """The watchdog of a stuck daemon is not fed; that of one that waits for an engine is."""

    def begin(self) -> tuple[NotifySocket, dws.Trainer, dws.Engine, Any]:
        self.cluster.start_sender(0)
        self.use_failpoints("RECEIVER")
        self.hold = os.path.join(self.cluster.folder, "hold")
        variables = {
            "DWS_FAILPOINT": "receiver.commit.after_scatter:hold",
            "DWS_FAILPOINT_HOLD": self.hold,
        }
        with self.listen() as notify, mock.patch.dict(os.environ, variables):
            self.cluster.start_receiver("receiver-0", "--stall-timeout=3")
        trainer, engine = self.trainer(), self.engine()
        weights = trainer.register({"w": np.ones((64, 64), np.float32)})["w"]
        engine.attach({"w": np.zeros((64, 64), np.float32)})
        trainer.publish(1)
        eventually(lambda: os.path.exists(self.hold), lambda: "the commit is held")
        return notify, trainer, engine, weights

    def test_the_watchdog_is_not_fed_while_a_commit_is_stuck(self) -> None:
        notify, trainer, _, _ = self.begin()
        log = self.cluster.receivers[0].log_tail
        eventually(lambda: " stuck work='the commit worker'" in log(), lambda: log())
        fed = notify.count("WATCHDOG", "1")
        deadline = time.monotonic() + 5 * WATCHDOG_SECONDS
        while time.monotonic() < deadline:
            self.assertEqual(notify.count("WATCHDOG", "1"), fed)
            time.sleep(0.05)
        os.unlink(self.hold)
        trainer.wait(1, timeout=60)
        self.await_lines(notify, "WATCHDOG", "1", fed + 3)

    def test_the_watchdog_is_fed_during_a_long_pause(self) -> None:
        notify, trainer, engine, weights = self.begin()
        os.unlink(self.hold)
        self.await_version(engine, 1)
        receiver = self.cluster.receivers[0]
        with engine.running(60):
            change(weights, np.random.default_rng(1), 0.1)
            trainer.publish(2)
            self.await_status(notify, "committing")
            eventually(lambda: engine.grant is None, lambda: "the pause is asked for")
            # Earlier steps may have logged a stuck commit; only the pause is checked from here on.
            os.truncate(receiver.log_path, 0)
            # Four times --stall-timeout inside the pause.
            self.await_lines(notify, "WATCHDOG", "1", notify.count("WATCHDOG", "1") + 60)
            self.assertEqual(receiver.logged("stuck"), 0)
        trainer.wait(2, timeout=60)


if __name__ == "__main__":
    unittest.main()
