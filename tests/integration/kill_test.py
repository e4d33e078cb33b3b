"""kill -9 of the receiver at every point of its way to a commit: an engine never runs with a mixture, and the
next receiver brings it to the newest version."""

import os
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.integration_case import IntegrationCase, change, eventually

SHAPES = {"a": (900, 700), "b": (33,), "c": (7, 5, 3)}


class KillTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(5)
        self.use_failpoints("RECEIVER")

    def begin(self, failpoint: str, *flags: str) -> tuple[dws.Trainer, dws.Engine, Any]:
        """Starts a trainer, and an engine whose receiver dies at `failpoint`."""
        self.cluster.start_sender(0)
        os.environ["DWS_FAILPOINT"] = f"{failpoint}:kill"
        self.cluster.start_receiver("receiver-0", *flags)
        del os.environ["DWS_FAILPOINT"]
        trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = trainer.register(weights)
        engine = self.engine()
        live = engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        return trainer, engine, live

    def publish(self, trainer: dws.Trainer, version: int) -> None:
        for array in self.source.values():
            change(array, self.random, 0.02)
        trainer.publish(version)

    def await_death(self, engine: dws.Engine) -> None:
        process = self.cluster.receivers[0].process
        assert process is not None
        self.assertEqual(process.wait(60), -9)
        eventually(lambda: not engine.stats().connected, lambda: "the engine sees it")

    def recover(self, trainer: dws.Trainer, engine: dws.Engine, live: Any, version: int) -> None:
        """Checks that the next receiver finishes `version` and that later versions arrive."""
        self.cluster.receivers[0].start()
        self.await_version(engine, version)
        self.assert_same_weights(engine, live, self.source)
        self.publish(trainer, version + 1)
        trainer.wait(version + 1, timeout=60)
        self.await_version(engine, version + 1)
        self.assert_same_weights(engine, live, self.source)

    def check_first_contact(self, point: str) -> None:
        trainer, engine, live = self.begin(point)
        self.publish(trainer, 1)
        self.await_death(engine)
        self.assertIsNone(engine.grant)
        self.recover(trainer, engine, live, 1)

    def check_delta(self, point: str, *flags: str, runs_on: bool) -> None:
        trainer, engine, live = self.begin(point, *flags)
        self.publish(trainer, 1)
        trainer.wait(1, timeout=60)
        self.await_version(engine, 1)
        before = {name: array.copy() for name, array in self.source.items()}
        self.publish(trainer, 2)
        self.await_death(engine)
        self.assertEqual(engine.grant is not None, runs_on)
        if runs_on:
            self.assert_same_weights(engine, live, before)
        self.recover(trainer, engine, live, 2)

    def test_a_receiver_killed_after_fetching_full_tensors_recovers(self) -> None:
        self.check_first_contact("receiver.prepare.after_fetch_full")

    def test_a_receiver_killed_after_staging_recovers(self) -> None:
        self.check_first_contact("receiver.commit.after_staged")

    def test_a_receiver_killed_after_recording_the_intent_recovers(self) -> None:
        self.check_first_contact("receiver.commit.after_intent")

    def test_a_receiver_killed_in_the_pause_recovers(self) -> None:
        self.check_first_contact("receiver.commit.after_pause")

    def test_a_receiver_killed_while_writing_full_tensors_recovers(self) -> None:
        self.check_first_contact("receiver.commit.inside_apply")

    def test_a_receiver_killed_after_the_writes_recovers(self) -> None:
        self.check_first_contact("receiver.commit.after_scatter")

    def test_a_receiver_killed_between_resume_and_record_recovers(self) -> None:
        trainer, engine, live = self.begin("receiver.commit.after_resume")
        self.publish(trainer, 1)
        self.await_death(engine)
        # The release may still be in transfer when the receiver dies.
        if engine.grant is not None:
            self.assert_same_weights(engine, live, self.source)
        self.recover(trainer, engine, live, 1)

    def test_a_receiver_killed_after_fetching_a_delta_recovers(self) -> None:
        self.check_delta("receiver.prepare.after_fetch", runs_on=True)

    def test_a_receiver_killed_while_writing_a_delta_recovers(self) -> None:
        self.check_delta("receiver.commit.inside_scatter", runs_on=False)


if __name__ == "__main__":
    unittest.main()
