"""Receivers that have lost their senders, and senders that have lost their receivers: nobody keeps running old
weights unnoticed, even when either restarts."""

from __future__ import annotations

import os
import shutil
import signal
import time
import unittest
from pathlib import Path

import grpc
import numpy as np

import dws
from tests.integration.admin_case import ADMIN, AdminCase, eventually
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase

# The time that docs/runbook.md names; more on a busy machine.
NOTICED_SECONDS = 10.0
SLACK_SECONDS = 4.0


class StaleTest(AdminCase):
    def start(self, ranks: int = 1, receivers: int = 1, flags: tuple[str, ...] = ()) -> None:
        super().start(ranks, receivers, ("--stale-after=1", *flags))

    @property
    def receiver(self) -> Daemon:
        return self.cluster.receivers[0]

    @property
    def sender(self) -> Daemon:
        return self.cluster.senders[0]

    def await_stale(self, reason: str) -> None:
        eventually(
            lambda: self.receiver.readyz()[0] == 503 and reason in self.receiver.readyz()[1],
            lambda: f"{reason}: {self.receiver.readyz()}",
        )

    def test_an_engine_whose_only_sender_is_gone_runs_on_but_is_not_ready(self) -> None:
        self.begin()
        self.assertEqual(self.receiver.metric("dws_receiver_seconds_without_sender"), 0)
        self.sender.kill()
        self.await_stale("no accepted sender for more than 1 s: sender unix:/")
        status = self.status()
        self.assertFalse(status.ready)
        self.assertTrue(status.receiver.stale)
        self.assertIn("no accepted sender", status.reason)
        self.assertGreater(self.receiver.metric("dws_receiver_seconds_without_sender"), 1)
        self.assertGreater(self.receiver.metric("dws_receiver_seconds_since_version"), 1)
        self.assertEqual(self.receiver.metric("dws_ready"), 0)
        self.assertRegex(self.receiver.log_tail(), r"(?m)^\S+ W dws-receiver readiness ready=false")
        with self.assertRaises(KeyError):  # 0 would say that the engine has the newest version
            self.receiver.metric("dws_receiver_version_lag")
        self.assertFalse(status.receiver.HasField("version_lag"))
        self.assertEqual(self.dws_engine.wait_ready(0).version, 1)
        self.sender.start()
        self.dws_trainer.reconnect()
        eventually(lambda: self.receiver.readyz()[0] == 200, lambda: str(self.receiver.readyz()))
        self.assertEqual(self.receiver.metric("dws_receiver_seconds_without_sender"), 0)

    def test_a_sender_refused_for_a_lower_incarnation_does_not_keep_an_engine_ready(
        self,
    ) -> None:
        self.begin()
        self.sender.kill()
        shutil.rmtree(os.path.join(self.sender.folder, "state"))
        self.sender.start()
        incarnation = self.dws_trainer.stream.incarnation - 1
        late = self.trainer(stream=dws.Stream.new(incarnation))
        late.register({name: array.copy() for name, array in self.source.items()})
        late.publish(1)
        self.await_stale("an old trainer is running again")
        self.assertEqual(self.dws_engine.wait_ready(0).version, 1)
        # The next trainer of that sender is accepted on the connection that was refused.
        late.close()
        self.register()
        self.publish()
        eventually(lambda: self.receiver.readyz()[0] == 200, lambda: str(self.receiver.readyz()))
        self.await_version(self.dws_engine, self.version)
        self.assert_same_weights(self.dws_engine, self.live, self.source)

    def test_a_hung_receiver_is_noticed_within_ten_seconds(self) -> None:
        self.begin()
        assert self.receiver.process is not None
        present = "dws_sender_receiver_present"
        self.assertEqual(self.sender.metric(present), 1)
        self.receiver.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        try:
            eventually(lambda: self.sender.metric(present) == 0, lambda: "it is absent")
            took = time.monotonic() - began
        finally:
            self.receiver.process.send_signal(signal.SIGCONT)
        self.assertLess(took, NOTICED_SECONDS + SLACK_SECONDS)
        eventually(lambda: self.sender.metric(present) == 1, lambda: "it is back")

    def lose_the_receiver_over_a_restart(self) -> None:
        """Restarts the sender; the second of its two receivers does not return."""
        self.begin()
        self.second = self.cluster.start_receiver("receiver-1", "--stale-after=1")
        eventually(
            lambda: self.sender.metric("dws_sender_receivers", 'state="present"') == 2,
            lambda: self.cluster.logs(),
        )
        # The receivers are on disk within a second, even if the sender is then killed.
        known = os.path.join(self.sender.folder, "state", "receivers.known")
        eventually(lambda: b"receiver-1".hex() in Path(known).read_text(), lambda: known)
        self.sender.kill()
        self.second.kill()
        self.sender.start()
        self.dws_trainer.reconnect()
        self.publish()
        self.await_version(self.dws_engine, self.version)

    def test_a_restarted_sender_waits_for_a_missing_receiver_and_names_it(self) -> None:
        self.lose_the_receiver_over_a_restart()
        self.assertEqual(
            self.sender.metric("dws_sender_receiver_present", 'receiver_id="receiver-1"'), 0
        )
        with self.assertRaisesRegex(dws.DeadlineError, "'receiver-1'.*not back since the sender's restart"):
            self.dws_trainer.wait(self.version, "all", 1)
        self.assertEqual(list(self.dws_trainer.wait(self.version, 1).committed), ["receiver-0"])
        with self.assertRaisesRegex(grpc.RpcError, "which a sender does"):
            list(self.operator(self.receiver).call(ADMIN, "Evict", receiver_id="receiver-1"))
        told = list(self.operator(self.sender).call(ADMIN, "Evict", receiver_id="receiver-1"))
        self.assertTrue(told[-1].finished)
        self.assertEqual(list(self.dws_trainer.wait(self.version).committed), ["receiver-0"])
        with self.assertRaises(KeyError):
            self.sender.metric("dws_sender_receiver_present", 'receiver_id="receiver-1"')

    def test_a_receiver_that_returns_late_is_waited_for(self) -> None:
        self.lose_the_receiver_over_a_restart()
        with self.assertRaises(dws.DeadlineError):
            self.dws_trainer.wait(self.version, "all", 1)
        self.second.start()
        engine = self.engine(self.second)
        engine.attach({name: array.copy() for name, array in self.source.items()})
        committed = self.dws_trainer.wait(self.version).committed
        self.assertEqual(sorted(committed), ["receiver-0", "receiver-1"])


class KeptReadyTest(AdminCase):
    """A stale engine stays ready if its receiver has the option for that."""

    def start(self, ranks: int = 1, receivers: int = 1, flags: tuple[str, ...] = ()) -> None:
        super().start(ranks, receivers, ("--stale-after=1", "--stale-keeps-ready"))

    def test_status_and_metrics_show_that_a_ready_engine_is_stale(self) -> None:
        self.begin()
        (receiver,) = self.cluster.receivers
        self.cluster.senders[0].kill()
        eventually(lambda: self.status().receiver.stale, lambda: str(self.status()))
        status = self.status()
        self.assertTrue(status.ready)
        self.assertIn("no accepted sender for more than 1 s", status.reason)
        self.assertEqual(receiver.readyz()[0], 200)
        self.assertGreater(receiver.metric("dws_receiver_seconds_without_sender"), 1)


class UnreadableDirectoryTest(IntegrationCase):
    """A receiver that knows its senders by a shared directory only."""

    def test_an_engine_whose_directory_cannot_be_read_is_not_ready(self) -> None:
        root = os.path.join(self.cluster.folder, "shared")
        self.cluster.start_sender(0, f"--shared-dir={root}")
        receiver = self.cluster.start_receiver(
            "receiver-0",
            f"--shared-dir={root}",
            "--shared-poll-ms=20",
            "--stale-after=1",
            senders=False,
        )
        trainer = self.trainer()
        trainer.register({"w": np.ones(1000, np.float32)})
        trainer.publish(1)
        engine = self.engine(receiver)
        engine.attach({"w": np.zeros(1000, np.float32)})
        self.await_version(engine, 1)
        eventually(lambda: receiver.readyz()[0] == 200, lambda: str(receiver.readyz()))
        age = "dws_receiver_seconds_since_version"  # no new version for long is not staleness
        eventually(lambda: receiver.metric(age) > 1.5, lambda: str(receiver.metric(age)))
        self.assertEqual(receiver.readyz()[0], 200)
        os.rename(root, root + "-unmounted")
        eventually(
            lambda: receiver.readyz()[0] == 503 and "no accepted sender" in receiver.readyz()[1],
            lambda: str(receiver.readyz()),
        )
        self.assertEqual(engine.wait_ready(0).version, 1)
        shutil.rmtree(root, ignore_errors=True)  # a daemon may have made it again
        os.rename(root + "-unmounted", root)
        eventually(lambda: receiver.readyz()[0] == 200, lambda: str(receiver.readyz()))


if __name__ == "__main__":
    unittest.main()
