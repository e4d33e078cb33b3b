"""Version numbers that a stream uses twice: a sender restarts with an older copy of its state, or with none. No wait
ends because of an old version with such a number, no engine stays ready with it, and it is replaced."""

from __future__ import annotations

import shutil
import unittest

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

SHAPE = (300, 500)


class NumberTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(31)

    def begin(self, shared: bool = False) -> None:
        """Starts an engine that runs version 1."""
        folder = (f"--shared-dir={self.cluster.folder}/shared",) if shared else ()
        poll = ("--shared-poll-ms=20",) if shared else ()
        self.cluster.start_sender(0, *folder)
        self.cluster.start_receiver(
            "receiver-0", "--stale-after=1", *folder, *poll, senders=not shared
        )
        self.dws_trainer = self.trainer()
        self.source = self.dws_trainer.register(
            {"w": self.random.standard_normal(SHAPE, np.float32)}
        )
        self.publish(1)
        self.dws_engine = self.engine()
        self.live = self.dws_engine.attach({"w": np.zeros(SHAPE, np.float32)})
        self.dws_trainer.wait(1, 1)

    @property
    def receiver(self) -> Daemon:
        return self.cluster.receivers[0]

    @property
    def sender(self) -> Daemon:
        return self.cluster.senders[0]

    def publish(self, version: int) -> None:
        change(self.source["w"], self.random, 0.01)
        self.dws_trainer.publish(version)

    def state(self) -> str:
        return f"{self.sender.folder}/state"

    def begin_numbers_again(self, keep_first: bool) -> None:
        """Brings the engine to version 4; then starts the sender with its state at version 1, or with none, and the
        trainer's next process with other weights in the same stream."""
        copy = f"{self.sender.folder}/copy"
        # A file the running sender is about to rename may be gone before it is copied.
        shutil.copytree(self.state(), copy, ignore=shutil.ignore_patterns("*.tmp"))
        for version in (2, 3, 4):
            self.publish(version)
            self.dws_trainer.wait(version, 1)
        self.sender.kill()
        shutil.rmtree(self.state())
        if keep_first:
            shutil.copytree(copy, self.state())
        stream = self.dws_trainer.stream
        self.dws_trainer.close()
        self.sender.start()
        self.dws_trainer = self.trainer(stream=stream)
        self.source = self.dws_trainer.register(
            {"w": self.random.standard_normal(SHAPE, np.float32)}
        )

    def check_goes_on(self, first: int) -> None:
        """Versions from `first` to 3 reach no engine, and /readyz says why; later ones arrive."""
        for version in range(first, 4):
            self.publish(version)
            with self.assertRaises(dws.NotCommittedError):
                self.dws_trainer.wait(version, 1, 1.5)
        eventually(
            lambda: self.receiver.readyz()[0] == 503
            and "up to version 3, the engine has version 4" in self.receiver.readyz()[1],
            lambda: f"not ready: {self.receiver.readyz()}",
        )
        for version in (4, 5, 6):
            self.publish(version)
            self.dws_trainer.wait(version, 1)
            self.assertEqual(self.dws_engine.wait_ready(1).version, version)
            self.assert_same_weights(self.dws_engine, self.live, self.source)
        self.assertEqual(self.receiver.readyz()[0], 200)
        self.assertGreater(
            self.receiver.metric("dws_receiver_digest_mismatches_total", 'source="renumbered"'), 0
        )
        self.assertIn("report_ignored", self.sender.log_tail(1000))

    def test_a_sender_with_an_older_copy_of_its_state_continues(self) -> None:
        self.begin()
        self.begin_numbers_again(keep_first=True)
        self.check_goes_on(2)

    def test_a_sender_without_its_state_continues(self) -> None:
        self.begin()
        self.begin_numbers_again(keep_first=False)
        self.check_goes_on(1)

    def test_a_sender_without_its_state_continues_in_a_shared_directory(self) -> None:
        self.begin(shared=True)
        self.begin_numbers_again(keep_first=True)
        self.check_goes_on(2)


if __name__ == "__main__":
    unittest.main()
