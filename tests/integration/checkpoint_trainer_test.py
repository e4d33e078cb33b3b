"""slime's version folders reach live memory: follower, checkpoint, sender, receiver, engine."""

import os
import pathlib
import shutil
import subprocess
import sys
import unittest
import unittest.mock
from typing import Any

import numpy as np

import dws
from dws import checkpoint_trainer
from tests.integration.cluster import RECEIVER, Daemon
from tests.integration.integration_case import IntegrationCase, eventually
from tests.integration.slime_writer import SlimeWriter


class CheckpointTrainerTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(7)
        self.versions, self.local = self.path("versions"), self.path("local")
        os.makedirs(self.versions)
        weights = {
            f"layer.{i}.w": self.random.integers(0, 1 << 16, (90 + i, 300)).astype(np.uint16)
            for i in range(5)
        }
        self.writer = SlimeWriter(self.versions, weights)
        self.writer.checkpoint(self.local)
        self.start()

    def path(self, name: str) -> str:
        return os.path.join(self.cluster.folder, name)

    def follow(self) -> Daemon:
        os.makedirs(self.path("f"))
        command = [RECEIVER, "--job-id=job", "--receiver-id=follower", "--slime-poll-ms=20"]
        command += [f"--slime-dir={self.versions}", f"--checkpoint={self.local}"]
        daemon = Daemon("follower", self.path("f"), command)
        daemon.start()
        self.addCleanup(daemon.release_ports)
        self.addCleanup(lambda: daemon.process is not None and daemon.stop())
        return daemon

    def publish(self) -> int:
        changes = {}
        for name, weight in self.writer.weights.items():
            if self.random.random() < 0.6:
                changes[name] = weight ^ (self.random.random(weight.shape) < 0.02)
        self.writer.publish(changes)
        return self.writer.version

    def live(self, engine: dws.Engine) -> Any:
        return engine.attach({n: np.zeros_like(w) for n, w in self.writer.weights.items()})

    def applied(self, version: int) -> bool:
        found = checkpoint_trainer.settled_version(self.local)
        return found is not None and found.version == version

    def test_an_engine_gets_every_version_into_its_live_memory(self) -> None:
        self.follow()
        command = [sys.executable, "-m", "dws.checkpoint_trainer", "--poll-ms=20"]
        command += [f"--checkpoint={self.local}", f"--socket={self.cluster.senders[0].socket}"]
        program = subprocess.Popen(
            command + ["--job-id=test"], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        engine = self.engine()
        first = self.publish()
        live = self.live(engine)
        self.await_version(engine, first)
        self.assert_same_weights(engine, live, self.writer.weights)
        for _ in range(3):
            version = self.publish()
            self.await_version(engine, version)
            self.assert_same_weights(engine, live, self.writer.weights)

    def test_a_version_that_changes_while_it_is_read_is_not_published(self) -> None:
        self.follow()
        self.publish()
        eventually(lambda: self.applied(1), lambda: "version 1 applied")
        trainer = checkpoint_trainer.CheckpointTrainer(self.local, self.trainer())
        marker = os.path.join(self.local, ".weight_sync", "redo", "weight_v000002")
        read = checkpoint_trainer.CheckpointFiles.read

        def interrupted(files: Any, name: str) -> Any:
            os.makedirs(marker, exist_ok=True)
            with open(os.path.join(marker, checkpoint_trainer.INDEX), "w", encoding="utf-8"):
                return read(files, name)

        with unittest.mock.patch.object(checkpoint_trainer.CheckpointFiles, "read", interrupted):
            self.assertIsNone(trainer.step())
        self.assertIsNone(trainer.step())  # still being changed
        shutil.rmtree(os.path.dirname(marker))
        self.assertEqual(trainer.step(), 1)
        self.assertIsNone(trainer.step())
        engine = self.engine()
        live = self.live(engine)
        self.await_version(engine, 1)
        self.assert_same_weights(engine, live, self.writer.weights)

    def test_a_change_that_begins_and_ends_during_the_last_check_is_detected(self) -> None:
        self.follow()
        self.publish()
        eventually(lambda: self.applied(1), lambda: "version 1 applied")
        trainer = checkpoint_trainer.CheckpointTrainer(self.local, self.trainer())
        looks = []
        look = checkpoint_trainer.glob.glob

        def slow_look(pattern: str) -> list[str]:
            looks.append(pattern)
            if len(looks) == 2:  # after everything was read; no marker exists before or after
                self.publish()
                eventually(lambda: '"000002"' in state.read_text(), lambda: "version 2 applied")
                eventually(lambda: not look(pattern), lambda: "the marker is gone")
            return look(pattern)

        state = pathlib.Path(self.local, ".weight_sync", "state.json")
        with unittest.mock.patch.object(checkpoint_trainer.glob, "glob", slow_look):
            self.assertIsNone(trainer.step())
        self.assertEqual(trainer.step(), 2)

    def test_the_base_is_not_published(self) -> None:
        self.follow()
        eventually(lambda: self.applied(0), lambda: "the base looked at")
        trainer = checkpoint_trainer.CheckpointTrainer(self.local, self.trainer())
        self.assertIsNone(trainer.step())


if __name__ == "__main__":
    unittest.main()
