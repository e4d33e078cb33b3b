"""Full tensors by each way: from the sender's memory, over its connection; while the trainer goes on; when the
better way does not work."""

from __future__ import annotations

import os
import threading
import time
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

# Several blocks a slice, odd tails.
SHAPES = {"a": (1500, 701), "b": (33,), "c": (900, 400)}
WAYS = ("same-host", "grpc")


class FullWaysTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(23)
        self.version = 0

    def begin(self, *sender_flags: str) -> None:
        """Brings a trainer to version 1."""
        self.sender = self.cluster.start_sender(0, *sender_flags)
        self.dws_trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = self.dws_trainer.register(weights)
        self.publish()

    def publish(self, share: float = 0.3) -> None:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, share)
        self.dws_trainer.publish(self.version)

    def join(self, name: str, *flags: str) -> tuple[Daemon, dws.Engine, dict[str, Any]]:
        receiver = self.cluster.start_receiver(name, *flags)
        engine = self.engine(receiver)
        live = engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        return receiver, engine, live

    def came_by(self, receiver: Daemon, way: str) -> float:
        return receiver.metric("dws_receiver_source_bytes_total", f'content="full",source="{way}"')

    def nacks(self, daemon: Daemon, side: str) -> list[str]:
        """Its counts of refused versions, one for each reason, that are not 0."""
        lines = daemon.page("/metrics").splitlines()
        counts = [line for line in lines if line.startswith(f"dws_{side}_nacks_total{{")]
        self.assertTrue(counts)
        return [line for line in counts if not line.endswith(" 0")]

    def assert_nothing_refused(self, receiver: Daemon) -> None:
        self.assertEqual(self.nacks(receiver, "receiver"), [])

    def model_bytes(self) -> int:
        return sum(array.nbytes for array in self.source.values())

    def test_each_way_brings_every_byte_and_says_which_it_was(self) -> None:
        self.begin()
        for flags, way in (((), "same-host"), (("--full-way=grpc",), "grpc")):
            receiver, engine, live = self.join(way, *flags)
            self.await_version(engine, 1)
            self.assert_same_weights(engine, live, self.source)
            for each in WAYS:
                self.assertEqual(
                    self.came_by(receiver, each), self.model_bytes() if each == way else 0
                )
            self.assertIn(f'"full_way":"{way}"', receiver.page("/status").replace(" ", ""))
        served = self.sender.metric("dws_sender_served_bytes_total", 'kind="full"')
        self.assertEqual(served, self.model_bytes())

    def test_a_joiner_gets_one_version_while_the_trainer_publishes_without_a_pause(self) -> None:
        self.begin()
        done = threading.Event()

        def train() -> None:
            while not done.is_set():
                self.publish(0.01)

        trainer = threading.Thread(target=train)
        trainer.start()
        joined = []
        try:
            for turn in range(4):
                for way in ("auto", "grpc"):
                    receiver, engine, live = self.join(f"{way}-{turn}", f"--full-way={way}")
                    engine.wait_ready(60)
                    joined.append((receiver, engine, live))
        finally:
            done.set()
            trainer.join()
        self.publish()
        for receiver, engine, live in joined:
            self.await_version(engine, self.version)
            self.assert_same_weights(engine, live, self.source)
            self.assert_nothing_refused(receiver)

    def test_memory_brings_every_byte_of_a_version_that_the_trainer_has_left(self) -> None:
        self.begin()
        done = threading.Event()

        def train() -> None:
            while not done.wait(0.03):
                self.publish(0.01)

        trainer = threading.Thread(target=train)
        trainer.start()
        try:
            for turn in range(6):
                receiver, engine, _ = self.join(f"auto-{turn}")
                engine.wait_ready(60)
                # A version that it takes in full later counts here, too.
                self.assertGreaterEqual(self.came_by(receiver, "same-host"), self.model_bytes())
                self.assertEqual(self.came_by(receiver, "grpc"), 0, receiver.log_tail())
        finally:
            done.set()
            trainer.join()

    def test_while_the_trainer_publishes_a_required_way_brings_every_byte_or_fails_by_name(
        self,
    ) -> None:
        self.begin()
        done = threading.Event()

        def train() -> None:
            while not done.is_set():
                self.publish()

        trainer = threading.Thread(target=train)
        trainer.start()
        try:
            joined = [self.join(f"strict-{i}", "--full-way=same-host") for i in range(3)]
            said = "may come by same-host only, which brought"
            for receiver, _, _ in joined:
                eventually(
                    lambda: receiver.readyz()[0] == 200 or said in receiver.readyz()[1],
                    receiver.log_tail,
                )
        finally:
            done.set()
            trainer.join()
        failed = 0
        for receiver, engine, live in joined:
            self.await_version(engine, self.version)
            self.assert_same_weights(engine, live, self.source)
            self.assertEqual(self.came_by(receiver, "grpc"), 0)
            self.assertGreaterEqual(self.came_by(receiver, "same-host"), self.model_bytes())
            failed += receiver.log_tail(100_000).count(said)
        self.assertEqual(failed > 0, self.nacks(self.sender, "sender") != [])
        served = self.sender.metric("dws_sender_served_bytes_total", 'kind="full"')
        self.assertEqual(served, 0)

    def test_where_memory_cannot_be_mapped_the_connection_is_used_and_named(self) -> None:
        self.begin()
        os.unlink(f"{self.sender.socket}.handles")
        receiver, engine, live = self.join("auto")
        self.await_version(engine, 1)
        self.assert_same_weights(engine, live, self.source)
        self.assertEqual(self.came_by(receiver, "grpc"), self.model_bytes())
        self.assertIn("handle socket cannot be reached", receiver.page("/status"))

    def test_a_way_that_is_required_is_the_only_one(self) -> None:
        self.begin()
        os.unlink(f"{self.sender.socket}.handles")
        receiver, engine, _ = self.join("strict", "--full-way=same-host")
        said = "may come by same-host only"
        eventually(lambda: said in receiver.log_tail(), receiver.log_tail)
        time.sleep(0.5)
        self.assertIsNone(engine.grant)
        self.assertEqual(self.came_by(receiver, "grpc"), 0)
        self.assertIn("brought 0 of", receiver.readyz()[1])

    def test_a_sender_that_starts_again_has_another_memory(self) -> None:
        self.begin()
        receiver, engine, live = self.join("auto")
        self.await_version(engine, 1)
        for _ in range(3):
            self.sender.kill()
            self.sender.start()
            self.dws_trainer.reconnect()
            self.publish(0.9)
            self.await_version(engine, self.version)
            self.assert_same_weights(engine, live, self.source)
        # Every version after a restart is full; what the old memory had is never taken for it.
        self.assertEqual(self.came_by(receiver, "same-host"), 4 * self.model_bytes())
        self.assert_nothing_refused(receiver)

    def test_the_egress_limit_holds_for_all_receivers_together(self) -> None:
        self.begin("--insecure", "--egress-limit=8MiB")
        begin = time.monotonic()
        joined = [self.join(f"far-{i}", "--insecure") for i in range(3)]
        for _, engine, live in joined:
            self.await_version(engine, 1)
            self.assert_same_weights(engine, live, self.source)
        seconds = time.monotonic() - begin
        self.assertGreater(seconds, 0.9 * 3 * self.model_bytes() / (8 << 20))


if __name__ == "__main__":
    unittest.main()
