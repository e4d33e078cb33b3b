"""DWS's path: a trainer in this process, dws-sender, dws-receiver, and an engine in a process of its own
whose weights are shared memory."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Optional, Sequence

import dws
from tests.integration.cluster import Cluster
from tests.integration.network_hosts import NetworkHosts
from tools.bench.daemons import weights
from tools.bench.daemons.engine_loop import WAIT_SECONDS, EngineLoop
from tools.bench.end_to_end import wire
from tools.bench.end_to_end.directory import Directory
from tools.bench.end_to_end.published import Published

_POLL = "--shared-poll-ms=10"


class DwsPath:
    """A context manager; inside, version 1 is committed and `views` are the trainer's weights. With
    `shared` the daemons know nothing of each other but that directory, else they are connected: over
    loopback, or between `hosts`. `flags`: more ones, of both daemons."""

    def __init__(
        self,
        specs: list[dws.TensorSpec],
        threads: int,
        shared: Optional[Directory] = None,
        hosts: Optional[NetworkHosts] = None,
        flags: Sequence[str] = (),
    ) -> None:
        self._specs = specs
        self._sender_flags = [f"--threads={threads}", *flags]
        # In addition to the thread that asks for them.
        self._receiver_flags = [f"--threads={threads - 1}", *flags]
        self._hosts = hosts
        self._connected = shared is None
        if shared is not None:
            self._sender_flags.append(f"--shared-dir={shared.near}")
            self._receiver_flags += [f"--shared-dir={shared.far}", _POLL]
        else:
            # Over TCP, as between hosts.
            self._sender_flags.append("--insecure")
            self._receiver_flags.append("--insecure")
        self._version = 1
        self.views: dict[str, Any] = {}

    def __enter__(self) -> "DwsPath":
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster("bench"))
            self._place(cluster, wire.TRAINER_HOST)
            sender = cluster.start_sender(0, *self._sender_flags)
            self._place(cluster, wire.ENGINE_HOST)
            receiver = cluster.start_receiver(
                "engine", *self._receiver_flags, senders=self._connected
            )
            self._trainer = stack.enter_context(dws.Trainer(sender.socket, "bench"))
            self.views = self._trainer.register(self._specs, views="numpy")
            weights.fill(self.views)
            self._trainer.publish(1)
            self._engine = EngineLoop(receiver.socket, self._specs, idle=True)
            self._trainer.wait(1, 1, WAIT_SECONDS)
            self._stack = stack.pop_all()
        return self

    def _place(self, cluster: Cluster, host: int) -> None:
        if self._hosts is not None:
            self._hosts.enter(cluster, host)

    def publish(self, full: bool = False) -> Published:
        """The next version. Returns when the engine's commit is acknowledged."""
        self._version += 1
        begin = time.monotonic()
        stats = self._trainer.publish(self._version, full=full)
        captured = time.monotonic()
        result = self._trainer.wait(self._version, 1, WAIT_SECONDS)
        return Published(
            time.monotonic() - begin, captured - begin, result.wire_bytes, stats.full
        )

    def check(self) -> None:
        """Ends the engine. Raises RuntimeError if its weights are not the trainer's."""
        self._engine.finish(self.views)

    def __exit__(self, *error: Any) -> None:
        self.views = {}
        self._stack.__exit__(*error)
