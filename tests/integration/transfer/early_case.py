"""A trainer that hands a version over piece by piece, while a receiver takes the pieces that are
there."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, eventually

Shapes = dict[str, tuple[int, ...]]


class EarlyCase(IntegrationCase):
    """`source` has the weights that the trainer puts next, `live` those of the engine."""

    STAGES: tuple[str, ...] = ("fetching",)  # of a receiver to which the version comes

    def connect(self, sender: Daemon, receiver: Daemon, shapes: Shapes) -> None:
        """Starts a trainer and an engine of FP32 tensors, at version 1: random values."""
        self.sender, self.receiver, self.shapes = sender, receiver, shapes
        self.dws_trainer = dws.Trainer(sender.socket, "test", 0, 1, None)
        self.addCleanup(self.dws_trainer.close)
        specs = [dws.TensorSpec(n, np.float32, s) for n, s in shapes.items()]
        self.dws_trainer.register_ring(specs, bucket_bytes=1 << 20)
        self.source = self.values()
        with self.dws_trainer.version(1) as version:
            self.put(version, *shapes)
        self.attach()
        self.check(1)

    def attach(self) -> None:
        self.dws_engine = self.engine(self.receiver)
        self.live = self.dws_engine.attach({n: np.zeros(s, np.float32) for n, s in self.shapes.items()})

    def values(self) -> dict[str, Any]:
        return {n: self.random.standard_normal(s, np.float32) for n, s in self.shapes.items()}

    def put(self, version: Any, *names: str) -> None:
        for name in names:
            version.put(name, self.source[name])

    def check(self, version: int) -> None:
        self.await_version(self.dws_engine, version)
        self.assert_same_weights(self.dws_engine, self.live, self.source)

    def early(self, outcome: str) -> float:
        return self.receiver.metric("dws_receiver_early_versions_total", f'outcome="{outcome}"')

    def fetched(self, kind: str) -> float:
        return self.receiver.metric("dws_receiver_fetched_bytes_total", f'kind="{kind}"')

    def arrived(self) -> int:
        """Bytes of the version that comes."""
        status = json.loads(self.receiver.page("/status"))["receiver"]
        return int(status.get("stage_done_bytes", 0)) if status.get("stage") in self.STAGES else 0

    def await_arrived(self, count: int) -> None:
        eventually(
            lambda: self.arrived() >= count,
            lambda: f"{count} bytes, not {self.arrived()}\n{self.receiver.log_tail(30)}",
        )

    def assert_no_trouble(self, daemon: Daemon) -> None:
        """Neither warnings nor errors, but that a connection is insecure, and what a daemon waits for."""
        trouble = [line for line in daemon.log_tail(1000).splitlines() if line.split()[1] in "WE"]
        expected = (" insecure ", " readiness ")
        self.assertEqual([line for line in trouble if not any(word in line for word in expected)], [])
