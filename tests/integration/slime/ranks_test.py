"""The senders of a trainer with several ranks publish slime's version folders together. The reader is independent of DWS; a
receiver follows the same folder.
"""

from __future__ import annotations

import glob
import os
import threading
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually
from tests.integration.slime_publish_test import INDEX, SlimeReader, read_file, write_checkpoint

RANKS = 2


class RanksTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(23)
        self.versions = os.path.join(self.cluster.folder, "versions")
        self.base = os.path.join(self.cluster.folder, "base")
        self.given: dict[str, Any] = {
            f"stage.{rank}.{name}": self.random.standard_normal(shape).astype(np.float32)
            for rank in range(RANKS)
            for name, shape in (("w", (300, 257)), ("untouched", (100,)))
        }
        write_checkpoint(self.base, self.given)
        with open(os.path.join(self.base, "config.json"), "w", encoding="utf-8") as file:
            file.write("{}")
        self.weights: dict[str, Any] = {}
        self.trainers: list[dws.Trainer] = []

    def start_senders(self, *flags: str) -> list[Daemon]:
        return [
            self.cluster.start_sender(rank, f"--slime-dir={self.versions}", f"--slime-checkpoint={self.base}", *flags)
            for rank in range(RANKS)
        ]

    def register(self, rank: int) -> None:
        if rank < len(self.trainers):
            self.trainers[rank].close()
        trainer = self.trainer(rank, RANKS, self.trainers[0].stream if self.trainers else None)
        of_rank = [name for name in self.given if name.startswith(f"stage.{rank}.")]
        self.weights.update(
            trainer.register({name: self.weights.get(name, self.given[name]).copy() for name in of_rank})
        )
        self.trainers[rank:rank + 1] = [trainer]

    def publish(self, version: int) -> None:
        for name, array in self.weights.items():
            if "untouched" not in name:
                change(array, self.random, 0.01)
        for trainer in self.trainers:
            trainer.publish(version)

    def path(self, version: int) -> str:
        return os.path.join(self.versions, f"weight_v{version:06d}")

    def await_version(self, version: int) -> None:  # type: ignore[override]
        eventually(lambda: os.path.exists(os.path.join(self.path(version), INDEX)), lambda: self.cluster.logs(20))

    def check(self, reader: SlimeReader, version: int) -> bool:
        """Applies the version and compares. Returns whether it is full."""
        self.await_version(version)
        metadata = reader.apply(version)
        for name, array in self.weights.items():
            self.assertEqual(reader.weights[name].tobytes(), array.tobytes(), name)
        return "delta_encoding" not in metadata

    def test_readers_follow_bit_for_bit_and_never_see_a_part(self) -> None:
        senders = self.start_senders()
        reader = SlimeReader(self.versions, self.given)
        for rank in range(RANKS):
            self.register(rank)
        stop, torn = threading.Event(), []

        def watch() -> None:
            """Each version must have its index, and all that this names, as soon as it is seen."""
            while not stop.is_set():
                for name in os.listdir(self.versions) if os.path.isdir(self.versions) else []:
                    if name.startswith("weight_v"):
                        try:
                            SlimeReader(self.versions, self.given).check_files(int(name[8:]))
                        except (AssertionError, OSError, ValueError) as error:
                            torn.append(f"{name}: {error}")

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for version in range(1, 6):
                self.publish(version)
                self.assertEqual(self.check(reader, version), version == 1)
        finally:
            stop.set()
            watcher.join()
        self.assertEqual(torn, [])
        eventually(
            lambda: [sender.metric("dws_sender_slime_newest_version") for sender in senders] == [5, 5],
            lambda: self.cluster.logs(20),
        )
        self.assertEqual([n for n in os.listdir(self.versions) if n.startswith(".weight")], [])
        local = os.path.join(self.cluster.folder, "local")
        write_checkpoint(local, self.given)
        receiver = self.cluster.start_receiver(
            "follower", f"--slime-dir={self.versions}", f"--checkpoint={local}", "--slime-poll-ms=20", senders=False
        )
        eventually(lambda: "dws_follower_version{" in receiver.page("/metrics") and receiver.metric("dws_follower_version") == 5,
                   receiver.log_tail)  # fmt: skip
        held: dict[str, Any] = {}
        for file in os.listdir(local):
            if file.endswith(".safetensors"):
                held.update(read_file(os.path.join(local, file))[1])
        for name, array in self.weights.items():
            self.assertEqual(held[name].tobytes(), array.tobytes(), name)

    def check_killed(self, victim: int, at: int, dies_at: int) -> None:
        """Kills `victim`'s sender at the n-th index that it is about to write, which is of version `dies_at`."""
        senders = self.start_senders()
        senders[victim].stop()
        senders[victim].start_armed(DWS_FAILPOINT=f"slime.write.before_index:kill@{at}")
        reader = SlimeReader(self.versions, self.given)
        for rank in range(RANKS):
            self.register(rank)
        for version in range(1, dies_at):
            self.publish(version)
            self.check(reader, version)
        self.publish(dies_at)
        eventually(lambda: senders[victim].process.poll() is not None, lambda: self.cluster.logs(20))
        self.assertEqual(senders[victim].process.returncode, -9)
        self.assertFalse(os.path.exists(self.path(dies_at)))
        senders[victim].start()
        self.register(victim)
        self.publish(dies_at + 1)
        self.assertTrue(self.check(reader, dies_at + 1))
        self.publish(dies_at + 2)
        self.assertFalse(self.check(reader, dies_at + 2))
        self.assertFalse(os.path.exists(self.path(dies_at)))
        eventually(lambda: not glob.glob(f"{self.versions}/.weight*"), lambda: str(os.listdir(self.versions)))

    def test_rank_0_is_killed_when_it_joins_a_full_version(self) -> None:
        self.check_killed(0, at=1, dies_at=1)

    def test_rank_0_is_killed_when_it_has_written_its_part_of_a_delta(self) -> None:
        self.check_killed(0, at=2, dies_at=2)

    def test_rank_0_is_killed_when_it_joins_a_delta(self) -> None:
        self.check_killed(0, at=3, dies_at=2)

    def test_another_rank_is_killed_when_it_has_written_its_part_of_a_delta(self) -> None:
        self.check_killed(1, at=1, dies_at=2)

    def test_a_rank_that_is_away_is_named_and_holds_up_the_folder_alone(self) -> None:
        senders = self.start_senders("--folder-stale-after=1")
        self.register(0)
        self.register(1)
        for array in self.weights.values():
            change(array, self.random, 0.01)
        self.trainers[0].publish(1)
        eventually(lambda: senders[0].readyz()[0] == 503, lambda: str(senders[0].readyz()))
        self.assertIn("version 1 waits for the parts of 1 of 2 ranks, 1:", senders[0].readyz()[1])
        self.assertEqual(senders[0].metric("dws_sender_newest_version"), 1)
        self.assertFalse(os.path.exists(self.path(1)))
        self.trainers[1].publish(1)
        self.assertTrue(self.check(SlimeReader(self.versions, self.given), 1))
        eventually(lambda: senders[0].readyz()[0] == 200, lambda: str(senders[0].readyz()))


if __name__ == "__main__":
    unittest.main()
