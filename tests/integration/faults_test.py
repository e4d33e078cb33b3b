"""Deaths and late arrivals: afterwards every engine is on the newest version, bit for bit."""

import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.engine_process import EngineProcess
from tests.integration.integration_case import IntegrationCase, change, eventually

SHAPES = {"a": (500, 700), "b": (33,)}
FULL_BYTES = (500 * 700 * 4, 33 * 4)


class FaultsTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(11)
        self.version = 0

    def registered(self, weights: Any = None) -> dws.Trainer:
        trainer = self.trainer()
        if weights is None:
            weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = trainer.register(weights)
        return trainer

    def copy(self) -> Any:
        """The trainer's weights as a checkpoint keeps them."""
        return {name: array.copy() for name, array in self.source.items()}

    def attached(self, **options: Any) -> tuple[dws.Engine, Any]:
        engine = self.engine(**options)
        return engine, engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})

    def publish(self, trainer: dws.Trainer) -> int:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, 0.01)
        trainer.publish(self.version)
        return self.version

    def assert_newest(self, engine: dws.Engine, live: Any) -> None:
        self.await_version(engine, self.version)
        self.assert_same_weights(engine, live, self.source)

    def test_a_late_joiner_gets_the_newest_version_in_full_and_then_deltas(self) -> None:
        self.start(receivers=2)
        trainer = self.registered()
        early, early_live = self.attached()
        for _ in range(5):
            trainer.wait(self.publish(trainer), "any")
        late, late_live = self.attached(receiver=self.cluster.receivers[1])
        self.assert_newest(late, late_live)
        self.publish(trainer)
        result = trainer.wait(self.version, 2)
        self.assertEqual(sorted(result.committed), ["receiver-0", "receiver-1"])
        self.assert_newest(early, early_live)
        self.assert_newest(late, late_live)

    def test_a_restarted_sender_continues_with_the_registered_memory(self) -> None:
        self.start()
        trainer = self.registered()
        engine, live = self.attached()
        trainer.wait(self.publish(trainer))
        self.await_version(engine, 1)  # it may learn of its release after the trainer does
        self.cluster.senders[0].kill()
        with self.assertRaises(dws.RegistrationLostError):
            trainer.publish(self.version + 1)
        self.assertEqual(engine.wait_ready(0).version, 1)
        self.cluster.senders[0].start()
        trainer.reconnect()
        self.assertEqual(trainer.last_version, 1)
        trainer.wait(self.publish(trainer))
        self.assert_newest(engine, live)
        trainer.wait(self.publish(trainer))
        self.assert_newest(engine, live)

    def test_an_engine_outlives_its_receiver_and_attaches_again(self) -> None:
        self.start()
        trainer = self.registered()
        engine, live = self.attached()
        trainer.wait(self.publish(trainer))
        self.await_version(engine, 1)
        receiver = self.cluster.receivers[0]
        receiver.kill()
        eventually(lambda: not engine.stats().connected, lambda: "the loss is seen")
        self.assertEqual(engine.wait_ready(0).version, 1)
        self.publish(trainer)
        self.publish(trainer)
        receiver.start()
        self.assert_newest(engine, live)
        self.assertEqual(engine.stats().reattachments, 1)
        trainer.wait(self.publish(trainer))
        self.assert_newest(engine, live)

    def test_a_killed_engine_is_replaced(self) -> None:
        self.start()
        trainer = self.registered()
        socket = self.cluster.receivers[0].socket
        first = EngineProcess(socket, SHAPES)
        self.addCleanup(first.kill)
        self.publish(trainer)
        self.assertEqual(first.look()[0], 1)
        # Killed while it holds the execution lease and a commit waits for it.
        first.look_and_stay_inside()
        self.publish(trainer)
        first.kill()
        second = EngineProcess(socket, SHAPES)
        self.addCleanup(second.kill)
        looks: list[Any] = []

        def arrived() -> bool:
            looks.append(second.look())  # runs version 1 if version 2 is not staged yet
            return bool(looks[-1][0] == 2)

        eventually(arrived, lambda: f"{[version for version, _ in looks]}")
        for name, array in self.source.items():
            np.testing.assert_array_equal(looks[-1][1][name], array)

    def test_a_flipped_bit_is_repaired_before_a_commit_builds_on_it(self) -> None:
        self.start()
        trainer = self.registered()
        engine, live = self.attached()
        trainer.wait(self.publish(trainer))
        with engine.running(60):
            live["a"].view(np.uint32)[0, 0] ^= 1
        # A change beside the flipped bit: the delta then finds another base than it was made for.
        self.source["a"][0, 0] += 1
        trainer.wait(self.publish(trainer))
        self.assert_newest(engine, live)

    def test_all_processes_recover_after_a_restart_at_once(self) -> None:
        self.start()
        trainer = self.registered()
        engine, live = self.attached()
        trainer.wait(self.publish(trainer))
        for daemon in self.cluster.daemons:
            daemon.kill()
        for daemon in self.cluster.senders + self.cluster.receivers:
            daemon.start()
        trainer.reconnect()
        self.publish(trainer)
        self.assert_newest(engine, live)

    def test_a_new_incarnation_of_the_trainer_takes_over(self) -> None:
        self.start()
        trainer = self.registered()
        engine, live = self.attached()
        for _ in range(3):
            trainer.wait(self.publish(trainer))
        old_stream = trainer.stream
        trainer.close()
        trainer, self.version = self.registered(), 0
        self.assertGreater(trainer.stream, old_stream)
        trainer.wait(self.publish(trainer))
        self.assert_newest(engine, live)
        self.assertEqual(engine.wait_ready(0).stream, trainer.stream)
        # The old trainer wakes up and gets an error; nothing of it reaches the engine.
        with self.assertRaises(dws.DwsError):
            late = dws.Trainer(self.cluster.senders[0].socket, "test", stream=old_stream)
            self.addCleanup(late.close)
            late.register({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        self.assert_newest(engine, live)

    def test_a_new_stream_transfers_only_the_tensors_that_differ(self) -> None:
        self.start()
        trainer = self.registered()
        engine, live = self.attached()
        trainer.wait(self.publish(trainer))
        weights = self.copy()
        weights["b"] += 1
        trainer.close()
        trainer, self.version = self.registered(weights), 1
        trainer.publish(1)
        trainer.wait(1)
        self.assert_newest(engine, live)
        self.assertEqual(engine.wait_ready(0).stream, trainer.stream)
        receiver = self.cluster.receivers[0]
        full_bytes = receiver.metric("dws_receiver_fetched_bytes_total", 'kind="full"')
        self.assertLess(full_bytes, sum(FULL_BYTES) + FULL_BYTES[1] + 1000)  # and frames
        trainer.wait(self.publish(trainer))
        self.assert_newest(engine, live)

    def test_a_run_whose_processes_all_ended_resumes_from_its_checkpoint(self) -> None:
        self.start()
        trainer = self.registered()
        first = EngineProcess(self.cluster.receivers[0].socket, SHAPES)
        self.addCleanup(first.kill)
        for version in (1, 2, 3, 4):
            self.publish(trainer)
            while first.look()[0] != version:
                pass
            if version == 2:
                checkpoint = self.copy()
        for daemon in self.cluster.daemons:
            daemon.kill()
        first.kill()
        trainer.close()
        for daemon in self.cluster.senders + self.cluster.receivers:
            daemon.start()
        # Numbers start again, with older weights: what was version 2 is version 1 of another stream.
        trainer, self.version = self.registered(checkpoint), 0
        engine, live = self.attached()
        self.assertIsNone(engine.grant)
        for _ in range(5):
            trainer.wait(self.publish(trainer))
            self.assert_newest(engine, live)
            self.assertEqual(engine.wait_ready(0).stream, trainer.stream)


if __name__ == "__main__":
    unittest.main()
