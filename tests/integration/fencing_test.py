"""Duplicates: two senders of a rank, two receivers with one name, two engines for one rank. One
of them is followed, the other gets an error, and no engine ever has a mixture."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.fault_proxy import FaultProxy
from tests.integration.integration_case import IntegrationCase, change, eventually

SHAPE = (300, 500)


class FencingTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(23)

    def registered(
        self, sender: Daemon, stream: dws.Stream | None = None
    ) -> tuple[dws.Trainer, Any]:
        trainer = dws.Trainer(sender.socket, "test", 0, 1, stream)
        self.addCleanup(trainer.close)
        return trainer, trainer.register({"w": self.random.standard_normal(SHAPE, np.float32)})

    def attached(self, receiver: Daemon) -> tuple[dws.Engine, Any]:
        engine = self.engine(receiver)
        return engine, engine.attach({"w": np.zeros(SHAPE, np.float32)})

    def publish(self, trainer: dws.Trainer, source: Any, version: int) -> None:
        change(source["w"], self.random, 0.01)
        trainer.publish(version)

    def check(self, engine: dws.Engine, live: Any, trainer: dws.Trainer, source: Any) -> None:
        """Checks that the engine reaches this trainer's newest version."""
        eventually(
            lambda: engine.grant is not None
            and (engine.grant.stream, engine.grant.version)
            == (trainer.stream, trainer.last_version),
            lambda: f"{trainer.stream}, {trainer.last_version}: the engine has {engine.grant}",
        )
        self.assert_same_weights(engine, live, source)

    def take_over(self, stream_of_the_first: bool) -> None:
        """A rank's second sender is followed from its registration on, and the first one no longer."""
        old_sender = self.cluster.start_sender(0)
        new_sender = self.cluster.start_sender(0, name="sender-0-again")
        receiver = self.cluster.start_receiver("receiver-0")
        old, old_source = self.registered(old_sender)
        engine, live = self.attached(receiver)
        for version in (1, 2):
            self.publish(old, old_source, version)
            self.check(engine, live, old, old_source)
        new, new_source = self.registered(new_sender, old.stream if stream_of_the_first else None)
        first = 3 if stream_of_the_first else 1
        for version in range(first, first + 4):
            # The old trainer does not notice, and publishes other weights under its own numbers.
            self.publish(old, old_source, old.last_version + 1)
            self.publish(new, new_source, version)
            new.wait(version, 1)
            self.check(engine, live, new, new_source)
        with self.assertRaises(dws.DwsError):
            old.wait(old.last_version, 1, 0.5)
        self.check(engine, live, new, new_source)

    def test_a_second_sender_with_a_new_stream_takes_over(self) -> None:
        self.take_over(stream_of_the_first=False)

    def test_a_second_sender_in_the_same_stream_takes_over(self) -> None:
        self.take_over(stream_of_the_first=True)

    def test_a_foreign_trainer_that_answers_for_a_while_is_left_by_itself(self) -> None:
        right = self.cluster.start_sender(0, "--insecure")
        foreign = self.cluster.start_sender(0, "--insecure", name="sender-foreign")
        proxy = self.enterContext(FaultProxy(right.ports["sync"]))
        receiver = self.cluster.start_receiver(
            "receiver-0", "--insecure", f"--sender=127.0.0.1:{proxy.port}", senders=False
        )
        trainer, source = self.registered(right)
        engine, live = self.attached(receiver)
        self.publish(trainer, source, 1)
        self.check(engine, live, trainer, source)
        # Another trainer of the job, in the same incarnation.
        stream = dws.Stream(trainer.stream.incarnation, trainer.stream.id ^ 1)
        other, other_source = self.registered(foreign, stream)
        self.publish(other, other_source, 1)
        proxy.lead_to(foreign.ports["sync"])
        proxy.cut()
        refused = "two trainers claim the job"
        eventually(lambda: refused in receiver.page("/status"), receiver.log_tail)
        proxy.lead_to(right.ports["sync"])
        self.publish(trainer, source, 2)
        self.check(engine, live, trainer, source)
        self.assertNotIn(refused, receiver.page("/status"))
        self.assertEqual(receiver.logged("sender_refused"), 1)

    def test_of_two_receivers_with_one_name_the_second_takes_over(self) -> None:
        self.start()
        trainer, source = self.registered(self.cluster.senders[0])
        first, first_live = self.attached(self.cluster.receivers[0])
        self.publish(trainer, source, 1)
        self.check(first, first_live, trainer, source)
        again = self.cluster.start_receiver("receiver-0", name="receiver-0-again")
        second, second_live = self.attached(again)
        for version in range(2, 6):
            self.publish(trainer, source, version)
            self.assertEqual(list(trainer.wait(version, 1).committed), ["receiver-0"])
            self.check(second, second_live, trainer, source)
        # The first receiver keeps its version, logs the reason, retries and gets the newest one too.
        self.assertIn(
            "give one of them another --receiver-id", self.cluster.receivers[0].log_tail(1000)
        )
        self.check(first, first_live, trainer, source)

    def test_a_second_engine_for_an_attached_rank_is_refused(self) -> None:
        self.start()
        trainer, source = self.registered(self.cluster.senders[0])
        engine, live = self.attached(self.cluster.receivers[0])
        self.publish(trainer, source, 1)
        self.check(engine, live, trainer, source)
        with self.assertRaisesRegex(dws.DwsError, "rank 0"):
            self.attached(self.cluster.receivers[0])
        self.publish(trainer, source, 2)
        self.check(engine, live, trainer, source)


if __name__ == "__main__":
    unittest.main()
