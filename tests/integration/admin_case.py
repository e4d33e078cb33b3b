"""Fixture for tests of a receiver's operations: an operator that calls by reflection, and weights
compared by their SHA-256."""

from __future__ import annotations

import hashlib
from typing import Any, Mapping, Optional

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually
from tests.integration.reflection_client import ReflectionClient

ADMIN = "dws.v1.AdminService"
SHAPES = {"a": (500, 700), "b": (33,), "c": (7, 5, 3)}
MODEL_BYTES = 4 * sum(int(np.prod(shape)) for shape in SHAPES.values())


class AdminCase(IntegrationCase):
    """One trainer, one receiver, one engine in this process."""

    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(23)
        self.version = 0

    def begin(self) -> None:
        """Starts all and commits version 1."""
        self.start()
        self.register()
        self.attach()
        self.publish()
        self.await_version(self.dws_engine, 1)
        self.await_ready()  # the engine learns of its release before

    def register(self) -> None:
        self.dws_trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = self.dws_trainer.register(weights)

    def attach(self) -> None:
        self.dws_engine = self.engine()
        self.live = self.dws_engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})

    def publish(self) -> int:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, 0.01)
        self.dws_trainer.publish(self.version)
        return self.version

    def await_counted(self, version: int) -> None:
        """Waits for the commit count, which grows after the release, once the ledger has it."""
        eventually(
            lambda: self.status().receiver.last_commit.version == version,
            lambda: str(self.status()),
        )

    def operator(self, daemon: Optional[Daemon] = None) -> ReflectionClient:
        client = ReflectionClient(f"unix:{(daemon or self.cluster.receivers[0]).socket}")
        self.addCleanup(client.close)
        return client

    def status(self) -> Any:
        # A new connection each time: open connections would reach the daemon's limit.
        with self.operator() as operator:
            return operator.call(ADMIN, "Status")

    def last(self, method: str, **request: Any) -> Any:
        """Returns the operation's only final message."""
        messages = list(self.operator().call(ADMIN, method, **request))
        self.assertTrue(messages[-1].finished)
        self.assertFalse(any(message.finished for message in messages[:-1]))
        return messages[-1]

    def flip(self, name: str, index: int = 0) -> None:
        """Flips one bit of live memory, as a stray write of the engine's process would."""
        self.live[name].reshape(-1).view(np.uint32)[index] ^= 1 << 9

    def assert_same_sha(self) -> None:
        with self.dws_engine.running(60):
            self.assertEqual(sha256(self.live), sha256(self.source))

    def await_ready(self) -> None:
        eventually(lambda: bool(self.status().ready), lambda: str(self.status()))


def sha256(tensors: Mapping[str, Any]) -> str:
    """Over the tensors' names and bytes."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(np.ascontiguousarray(tensors[name]).tobytes())
    return sha.hexdigest()


__all__ = ["ADMIN", "MODEL_BYTES", "SHAPES", "AdminCase", "dws", "eventually", "sha256"]
