"""dwsctl plan of a running job against what its daemons count: bytes by rank, in full and as a delta, and staging."""

from __future__ import annotations

import json
import subprocess
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

ROWS, COLUMNS = 9000, 400
FIRST_ROWS = 3000  # of trainer rank 0, which also has the norm
NORM_BYTES = COLUMNS * 4
MODEL_BYTES = ROWS * COLUMNS * 4 + NORM_BYTES
# In the second receiver the part of trainer rank 0 fits into its half, that of rank 1 does not.
STAGING_BYTES = 16 << 20


def dwsctl(*arguments: str) -> str:
    ran = subprocess.run(["tools/dwsctl/dwsctl", *arguments], capture_output=True, text=True, check=True)
    return ran.stdout


class PlanTest(IntegrationCase):
    """Two trainer ranks of rows; an engine of two ranks with columns and a norm each, and one without the norm."""

    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(31)
        self.version = 0
        self.start(ranks=2, receivers=0)
        for name, flags in (("two", ()), ("one", (f"--staging-bytes={STAGING_BYTES}",))):
            flags = ("--full-way=grpc", "--commit-policy=boundary", *flags)
            self.cluster.start_receiver(name, *flags)
        self.receivers = self.cluster.receivers
        weights = {
            "norm": self.random.standard_normal(COLUMNS, np.float32),
            "w": self.random.standard_normal((ROWS, COLUMNS), np.float32),
        }
        stream = dws.Stream.new()
        self.trainers = [self.trainer(rank, 2, stream) for rank in range(2)]
        cuts = {"w": [dws.Cut((FIRST_ROWS,)), dws.Cut((COLUMNS // 2,), dim=1)]}
        self.parts = [
            trainer.register(
                weights if rank == 0 else {"w": weights["w"]},
                shards={"w": [(rank, 1), (0, 2)]},
                cuts=cuts,
            )
            for rank, trainer in enumerate(self.trainers)
        ]
        for rank in range(2):
            half = {"w": np.zeros((ROWS, COLUMNS // 2), np.float32), "norm": np.zeros(COLUMNS, np.float32)}
            begin = rank * (COLUMNS // 2)
            mapping = {"w": dws.Slice("w", 1, begin, begin + COLUMNS // 2), "norm": "norm"}
            self.engine(self.receivers[0], rank, 2).attach(half, mapping)
        self.engine(self.receivers[1]).attach(
            {"w": np.zeros((ROWS, COLUMNS), np.float32)}, excluded=("norm",)
        )

    def publish(self, share: float, full: bool = False) -> None:
        self.version += 1
        for part in self.parts:
            for array in part.values():
                change(array, self.random, share)
        for trainer in self.trainers:
            trainer.publish(self.version, full=full)

    def plan(self) -> Any:
        sockets = [f"--socket={receiver.socket}" for receiver in self.receivers]
        return json.loads(dwsctl("plan", "--json", *sockets))

    def status(self, receiver: Daemon) -> Any:
        return json.loads(dwsctl("status", "--json", f"--socket={receiver.socket}"))["receiver"]

    def held(self) -> list[int]:
        """What the receivers hold in memory of the version, once both have staged it."""

        def staged(receiver: Daemon) -> bool:
            row = self.status(receiver)
            return row["stage"] == "staged" and int(row["target_version"]) == self.version

        for receiver in self.receivers:
            eventually(lambda: staged(receiver), lambda: f"staged: {self.status(receiver)}")
        return [int(self.status(receiver)["staging_bytes"]) for receiver in self.receivers]

    def commit(self) -> None:
        for receiver in self.receivers:
            dwsctl("boundary", f"--socket={receiver.socket}")
        for trainer in self.trainers:
            trainer.wait(self.version, "all", timeout=60)

    def counted(self, kind: str) -> tuple[list[float], list[float]]:
        """Bytes that each sender has sent, and each receiver fetched."""
        label = f'kind="{kind}"'
        return (
            [each.metric("dws_sender_served_bytes_total", label) for each in self.cluster.senders],
            [each.metric("dws_receiver_fetched_bytes_total", label) for each in self.receivers],
        )

    def test_the_plan_has_the_bytes_and_the_memory_that_daemons_count(self) -> None:
        self.publish(1.0)  # first contact is in full, and nothing of it waits
        self.commit()
        plan = self.plan()
        of_rank = [
            [FIRST_ROWS * COLUMNS * 4 + NORM_BYTES, (ROWS - FIRST_ROWS) * COLUMNS * 4],
            [FIRST_ROWS * COLUMNS * 4, (ROWS - FIRST_ROWS) * COLUMNS * 4],
        ]
        receivers = plan["receivers"]
        self.assertEqual([each["bytes_by_trainer_rank"] for each in receivers], of_rank)
        half = ROWS * COLUMNS * 2 + NORM_BYTES
        self.assertEqual(
            [each["bytes_by_engine_rank"] for each in receivers],
            [[half, half], [MODEL_BYTES - NORM_BYTES]],
        )
        sent, received = self.counted("full")
        self.assertEqual(sent, [sum(of) for of in zip(*of_rank)])
        self.assertEqual(received, [sum(of) for of in of_rank])
        self.assertEqual(plan["full"]["bytes"], sum(sent))
        self.assertEqual(plan["full"]["sent"]["max"], max(sent))
        self.assertAlmostEqual(plan["full"]["sent"]["balance"], 2 * max(sent) / sum(sent))
        self.assertEqual(plan["model_bytes"], MODEL_BYTES)
        self.assertEqual(plan["all_to_each_bytes"], 3 * MODEL_BYTES)
        self.assertIsNone(plan["delta"])
        self.assertEqual(receivers[1]["staging_bytes_max"], STAGING_BYTES)
        self.assertEqual(receivers[1]["staging_file_bytes"], of_rank[1][1])
        self.assertEqual(receivers[1]["staging_bytes_needed"], 2 * of_rank[1][1])
        self.assertEqual(receivers[0]["staging_file_bytes"], 0)
        self.assertLess(receivers[0]["staging_bytes_needed"], receivers[0]["staging_bytes_max"])

        self.publish(0.05)
        held = self.held()
        self.commit()
        sent, received = self.counted("delta")
        plan = self.plan()
        deltas = [each["delta"] for each in plan["receivers"]]
        self.assertEqual([delta["version"] for delta in deltas], [2, 2])
        by_sender = zip(*(delta["bytes_by_trainer_rank"] for delta in deltas))
        self.assertEqual([sum(of) for of in by_sender], sent)
        self.assertEqual([sum(delta["bytes_by_trainer_rank"]) for delta in deltas], received)
        self.assertEqual(plan["delta"]["bytes"], sum(received))
        self.assertEqual([delta["staging_bytes"] for delta in deltas], held)

        self.publish(1.0, full=True)
        self.assertEqual([each["staging_bytes"] for each in plan["receivers"]], self.held())
        self.commit()
        after = self.plan()
        self.assertEqual(after["full"], plan["full"])
        self.assertEqual([each["delta"] for each in after["receivers"]], deltas)


if __name__ == "__main__":
    unittest.main()
