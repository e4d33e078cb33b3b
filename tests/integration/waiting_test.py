"""Trainers that wait for receivers that never commit, and engines that wait for a missing trainer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.integration_case import IntegrationCase, eventually

DWSCTL = "tools/dwsctl/dwsctl"
TENSORS = {"w": np.ones(1000, np.float32)}
LAGGARD_SECONDS = 3


class WaitForReceiversTest(IntegrationCase):
    """Two receivers; only the first one's engine is attached."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.start_sender(0, f"--laggard-after={LAGGARD_SECONDS}")
        for name in ("good", "never"):
            self.cluster.start_receiver(name)
        self.dws_trainer = self.trainer()
        self.dws_trainer.register(TENSORS)
        self.engine().attach(TENSORS)
        self.dws_trainer.publish(1)
        self.dws_trainer.wait(1, 1)

    def test_a_receiver_that_never_commits_is_named_and_later_left_out(self) -> None:
        trainer = self.dws_trainer
        with self.assertRaisesRegex(
            dws.DeadlineError,
            "1 of 2 connected receivers have committed it, expected 2: "
            "'never' has committed no version of this stream",
        ) as caught:
            trainer.wait(1, "all", timeout=0.2)
        error = caught.exception
        assert isinstance(error, dws.NotCommittedError)
        self.assertEqual((error.committed_count, error.present), (1, 2))
        self.assertEqual([r.receiver_id for r in error.missing], ["never"])
        result = trainer.wait(1, "all", timeout=60)
        self.assertEqual(result.committed, ("good",))
        self.assertEqual([r.receiver_id for r in result.left_out], ["never"])
        self.assertGreaterEqual(result.left_out[0].behind_seconds, LAGGARD_SECONDS)
        # From now on it delays no wait, and status and metrics show it.
        trainer.publish(2)
        self.assertEqual(trainer.wait(2, "all", timeout=60).committed, ("good",))
        sender = self.cluster.senders[0]
        self.assertEqual(sender.metric("dws_sender_receiver_left_out", 'receiver_id="never"'), 1)
        self.assertEqual(sender.metric("dws_sender_receiver_left_out", 'receiver_id="good"'), 0)
        status = subprocess.run(
            [DWSCTL, "status", f"--socket={sender.socket}"], capture_output=True, text=True
        ).stdout
        self.assertRegex(status, "never +left out")
        # It counts again once it has committed.
        self.engine(self.cluster.receivers[1]).attach(TENSORS)
        trainer.wait(2, 2)
        trainer.publish(3)
        self.assertEqual(trainer.wait(3, "all", timeout=60).committed, ("good", "never"))

    def test_a_wait_says_why_a_receiver_has_no_version_of_the_stream(self) -> None:
        trainer = self.dws_trainer
        # A trainer whose clock went back: both receivers refuse its stream.
        older = dws.Stream(trainer.stream.incarnation - 1, 7)
        trainer.close()
        sender = self.cluster.senders[0]
        sender.stop()
        shutil.rmtree(f"{sender.folder}/state")
        sender.start()
        again = self.trainer(stream=older)
        again.register(TENSORS)
        again.publish(1)
        refused = (
            "'good' has committed no version of this stream .it refuses this sender: stream .* is "
            "older than .*'never' has committed no version of this stream"
        )

        def named(reason: str) -> bool:
            with self.assertRaises(dws.DeadlineError) as caught:
                again.wait(1, "all", timeout=0.1)
            return re.search(reason, str(caught.exception), re.DOTALL) is not None

        eventually(lambda: named(refused), self.cluster.logs)
        # One that does not come back is named with the time.
        self.cluster.receivers[1].stop()
        gone = "not connected: .*'never' for [0-9]+ s"
        eventually(lambda: named(gone), self.cluster.logs)

    def test_a_failed_quorum_reports_how_many_have_committed(self) -> None:
        trainer = self.dws_trainer
        with self.assertRaisesRegex(
            dws.NotCommittedError, "1 of 2 connected receivers have committed it, expected 3: 'never'"
        ):
            trainer.wait(1, 3, timeout=0.2)
        result = trainer.wait(1, 1)
        self.assertEqual((result.committed, result.present), (("good",), 2))
        self.assertEqual(
            [r.receiver_id for r in result.missing + result.left_out], ["never"]
        )
        rows = json.loads(
            subprocess.run(
                [DWSCTL, "versions", "--json", f"--socket={self.cluster.senders[0].socket}"],
                capture_output=True,
                text=True,
            ).stdout
        )
        self.assertEqual(rows["versions"][-1]["committed"], 1)


class EngineWaitsTest(IntegrationCase):
    def test_the_status_names_the_stream_that_is_followed_without_an_engine_too(self) -> None:
        self.start()
        trainer = self.trainer()
        trainer.register(TENSORS)
        trainer.publish(1)
        receiver = self.cluster.receivers[0]

        def status() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(receiver.page("/status"))["receiver"]
            return found

        def names_the_stream() -> bool:
            stream = status().get("stream", {})
            return stream.get("incarnation") == str(trainer.stream.incarnation)

        eventually(names_the_stream, receiver.log_tail)
        engine = self.engine()
        engine.attach(TENSORS)
        self.await_version(engine, 1)
        engine.close()
        eventually(lambda: status()["committed_version"] == "0", receiver.log_tail)
        self.assertTrue(names_the_stream())
        self.assertEqual(status()["commits"], "1")

    def reason(self, engine: dws.Engine) -> str:
        with self.assertRaises(dws.EnginePaused) as caught:
            engine.wait_ready(timeout=2)
        return caught.exception.reason

    def test_an_attach_that_times_out_reports_what_the_receiver_waits_for(self) -> None:
        sender = self.cluster.start_sender(0)
        receiver = self.cluster.start_receiver("receiver-0")
        with self.assertRaisesRegex(dws.DeadlineError, "no trainer layout yet: .*no trainer"):
            self.engine().attach(TENSORS, timeout=3)
        sender.stop()
        with self.assertRaisesRegex(dws.DeadlineError, "no sender is connected: "):
            self.engine().attach(TENSORS, timeout=3)
        # Now an engine that was attached once, and whose receiver starts while there is no trainer.
        sender.start()
        trainer = self.trainer()
        trainer.register(TENSORS)
        engine = self.engine()
        engine.attach(TENSORS)
        self.assertIn("published no version yet", self.reason(engine))
        trainer.close()
        sender.stop()
        receiver.stop()
        sender.start()
        receiver.start()
        eventually(
            lambda: "no trainer layout yet" in engine.stats().last_error,
            lambda: engine.stats().last_error,
        )
        self.assertIn("no trainer layout yet", self.reason(engine))
        self.assertNotIn("Socket closed; lost", self.reason(engine).split("attaching", 1)[1])


class StoppedEngineTest(IntegrationCase):
    def test_a_receiver_whose_engine_has_stopped_is_not_ready_and_says_why(self) -> None:
        self.start()
        trainer, engine = self.trainer(), self.engine()
        trainer.register(TENSORS)
        trainer.publish(1)
        engine.attach(TENSORS)
        self.await_version(engine, 1)
        with engine.running(20):
            engine.stop("'layers.0.copy' keeps old weights")
        receiver = self.cluster.receivers[0]

        def status() -> str:
            command = [DWSCTL, "status", f"--socket={receiver.socket}"]
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout

        wanted = r"not ready: engine rank 0 is not attached: it has stopped:\s+'layers.0.copy' keeps old weights"
        eventually(lambda: re.search(wanted, status()) is not None, status)
        another = self.engine()
        another.attach(TENSORS)
        self.await_version(another, 1)
        eventually(lambda: "it has stopped" not in status(), status)


if __name__ == "__main__":
    unittest.main()
