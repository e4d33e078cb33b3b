"""A sender of resident weights and a receiver with an engine that keeps making tokens, version after
version."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import dws
from tests.integration.cluster import Cluster
from tools.bench.daemons import weights
from tools.bench.daemons.engine_loop import WAIT_SECONDS, EngineLoop


class ResidentRun:
    """A context manager; inside, version 1 is committed."""

    def __init__(self, size_bytes: int, density: float, sender_options: str, receiver_options: str) -> None:
        self._size_bytes = size_bytes
        self._density = density
        self._sender_options = sender_options.split()
        self._receiver_options = receiver_options.split()
        self._version = 1

    def __enter__(self) -> "ResidentRun":
        with ExitStack() as stack:
            specs = weights.specs(self._size_bytes)
            cluster = stack.enter_context(Cluster("bench"))
            self.sender = cluster.start_sender(0, *self._sender_options)
            self.receiver = cluster.start_receiver("engine", *self._receiver_options)
            self._trainer = stack.enter_context(dws.Trainer(self.sender.socket, "bench"))
            self._views = self._trainer.register(specs, views="numpy")
            weights.fill(self._views)
            self._changes = weights.Changes(self._views, self._density)
            self._trainer.publish(1)
            self._engine = EngineLoop(self.receiver.socket, specs)
            self._engine.pause_of(1)
            self._stack = stack.pop_all()
        return self

    def advance(self) -> tuple[float, float]:
        """The next version: seconds that the trainer stalled, and that the engine paused."""
        self._version += 1
        self._changes.flip()
        stall = self._trainer.publish(self._version).stall_seconds
        self._trainer.wait(self._version, timeout=WAIT_SECONDS)
        return float(stall), self._engine.pause_of(self._version)

    def finish(self) -> None:
        """Ends the engine. Raises RuntimeError if its weights are not the trainer's."""
        self._engine.finish(self._views)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
