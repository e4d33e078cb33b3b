"""Senders that publish to a directory, and receivers that read it over HTTP."""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

SHAPES = {"a": (1500, 701), "b": (33,), "c": (900, 400)}
POLL = "--shared-poll-ms=20"


class RegionCase(IntegrationCase):
    """`root` is the sender's directory; each test starts its own servers of it."""

    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(37)
        self.root = os.path.join(self.cluster.folder, "served", "dws")
        os.makedirs(self.root)
        self.source: dict[str, Any] = {}
        self.version = 0

    def begin(self, *flags: str, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> Daemon:
        """Starts the sender and publishes the first version."""
        sender = self.cluster.start_sender(0, f"--shared-dir={self.root}", *flags)
        self.dws_trainer = self.trainer()
        weights = {name: self.random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        self.source = self.dws_trainer.register(weights)
        self.publish()
        self.await_published(sender)
        return sender

    def publish(self, share: float = 0.01) -> None:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, share)
        self.dws_trainer.publish(self.version)

    def await_published(self, sender: Optional[Daemon] = None) -> None:
        """The newest version is in the directory."""
        sender = sender or self.cluster.senders[0]
        eventually(
            lambda: any(f"/v{self.version:020d}-" in path for path in self.files("manifest")), lambda: sender.log_tail()
        )

    def files(self, name: str) -> list[str]:
        return [os.path.join(at, name) for at, _, names in os.walk(self.root) if name in names]

    def joins(self, name: str, *flags: str, senders: bool = False) -> tuple[dws.Engine, Any]:
        receiver = self.cluster.start_receiver(name, POLL, *flags, senders=senders)
        engine = self.engine(receiver)
        return engine, engine.attach({n: np.zeros_like(array) for n, array in self.source.items()})

    def assert_at(self, engine: dws.Engine, live: Any) -> None:
        grant = self.await_version(engine, self.version)
        self.assert_same_weights(engine, live, self.source)
        self.assert_token(grant, [self.dws_trainer], [self.source])

    def came(self, receiver: Daemon, source: str, content: str) -> float:
        """Bytes that the receiver took from that source."""
        return receiver.metric("dws_receiver_source_bytes_total", f'content="{content}",source="{source}"')
