"""Units gathered from real senders of several trainer ranks, as a sender gathers them for its own rank."""

from __future__ import annotations

import ctypes
import os
import subprocess
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.integration_case import IntegrationCase, change, eventually

PROGRAM = "tests/sender_daemon/on_demand/gather_program"
RANKS = 3
ROWS = (400, 0, 700)  # of "w", by rank
COLUMNS = 1001


def has_fabric() -> bool:
    try:
        ctypes.CDLL("libfabric.so.1")
    except OSError:
        return False
    return True


class GatherTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        for rank in range(RANKS):
            self.cluster.start_sender(rank, *(("--insecure", "--fabric=tcp") if has_fabric() else ("--insecure",)))
        self.stream = dws.Stream.new()
        self.random = np.random.default_rng(7)
        self.trainers = [self.trainer(rank, RANKS, self.stream) for rank in range(RANKS)]
        # Rank 1 has nothing of "w", and "v" alone.
        whole = self.random.integers(0, 1 << 16, (sum(ROWS), COLUMNS), np.uint16)
        cuts = {"w": [dws.Cut((ROWS[0],))]}
        self.parts = [
            self.trainers[0].register({"w": whole}, shards={"w": (0, 1)}, cuts=cuts)["w"],
            self.trainers[1].register({"v": self.random.standard_normal((77,), np.float32)})["v"],
            self.trainers[2].register({"w": whole}, shards={"w": (1, 1)}, cuts=cuts)["w"],
        ]

    def publish(self, version: int, *ranks: int) -> None:
        for rank in ranks or range(RANKS):
            change(self.parts[rank], self.random, 0.02)
            self.trainers[rank].publish(version)

    def start_gather(self, tensor: str, version: int, *flags: str) -> "subprocess.Popen[str]":
        command = [PROGRAM, f"--tensor={tensor}", f"--version={version}", f"--out={self.cluster.folder}/{tensor}"]
        command += [f"--owner={sender.address}" for sender in self.cluster.senders]
        command += [f"--incarnation={self.stream.incarnation}", f"--id-hi={self.stream.id >> 64}"]
        command += [f"--id-lo={self.stream.id & (1 << 64) - 1}", *flags]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def gather(self, tensor: str, version: int, *flags: str) -> str:
        """Returns the bytes by way, as the program prints them."""
        with self.start_gather(tensor, version, *flags) as program:
            out, error = program.communicate(timeout=60)
        self.assertEqual(program.returncode, 0, error)
        return out

    def assert_gathered(self, tensor: str, wanted: Any) -> None:
        with open(os.path.join(self.cluster.folder, tensor), "rb") as file:
            self.assertEqual(file.read()[: wanted.nbytes], wanted.tobytes())

    def test_every_byte_comes_from_its_owners_by_each_way(self) -> None:
        for version in (1, 2):
            self.publish(version)
            whole = np.concatenate([self.parts[0], self.parts[2]])
            for way in ("same-host", "fabric", "grpc"):
                if way == "fabric" and not has_fabric():
                    continue
                with self.subTest(way=way, version=version):
                    self.assertIn(f"{way} full {whole.nbytes}\n", self.gather("w", version, f"--way={way}"))
                    self.assert_gathered("w", whole)
                    self.assertIn(f"{way} full {77 * 4}\n", self.gather("v", version, f"--way={way}"))
                    self.assert_gathered("v", self.parts[1])

    def test_a_unit_waits_for_its_own_owners_alone(self) -> None:
        self.publish(1)
        self.publish(2, 0, 1)
        self.gather("v", 2)
        self.assert_gathered("v", self.parts[1])
        with self.start_gather("w", 2) as program:
            self.publish(2, 2)
            _, error = program.communicate(timeout=60)
        self.assertEqual(program.returncode, 0, error)
        self.assert_gathered("w", np.concatenate([self.parts[0], self.parts[2]]))

    def test_an_owner_that_is_killed_is_named_and_waited_for(self) -> None:
        self.publish(1)
        self.publish(2, 0, 1)
        dead = self.cluster.senders[2]
        dead.kill()
        with self.start_gather("w", 2, "--timeout-ms=1500") as program:
            _, error = program.communicate(timeout=60)
        self.assertEqual(program.returncode, 1)
        self.assertIn("DEADLINE_EXCEEDED", error)
        self.assertIn(f"trainer rank 2 at {dead.address}", error)

    def test_a_gather_is_no_receiver(self) -> None:
        self.publish(1)
        self.gather("w", 1)
        sender = self.cluster.senders[0]
        eventually(lambda: sender.logged("train_peer_connected") > 0, lambda: sender.log_tail())
        self.assertEqual(sender.logged("receiver_connected"), 0)
        self.assertEqual(sender.metric("dws_sender_receivers", 'state="present"'), 0)


if __name__ == "__main__":
    unittest.main()
