"""The best that a user without deltas can do: the trainer's weights as they are over one TCP stream
into the memory of an engine that waits, in a process of its own. Nothing is looked at on the
way."""

from __future__ import annotations

import multiprocessing
import socket
import time
from contextlib import ExitStack
from typing import Any, Optional

import numpy as np
import xxhash

from tests.integration.network_hosts import NetworkHosts
from tools.bench.daemons.streams import TIMEOUT_SECONDS, receive_all
from tools.bench.end_to_end import wire
from tools.bench.end_to_end.published import Published


def _run(connection: socket.socket, sizes: list[int], pipe: Any) -> None:
    live = [np.ones(size, np.uint8) for size in sizes]
    pipe.send("ready")
    connection.settimeout(None)  # versions may be far apart; the process is ended from outside
    while True:
        more = connection.recv(1)
        if not more:
            break
        for tensor in live:
            receive_all(connection, tensor.data)
        connection.sendall(more)
    pipe.send([xxhash.xxh3_128_hexdigest(tensor.data) for tensor in live])


class FullCopy:
    """A context manager around the engine's process. `hosts`: that the stream goes between, else loopback."""

    def __init__(self, views: dict[str, Any], hosts: Optional[NetworkHosts]) -> None:
        self._views = {name: view.reshape(-1).view(np.uint8) for name, view in views.items()}
        self._hosts = hosts

    def __enter__(self) -> "FullCopy":
        with ExitStack() as stack:
            near, far = wire.connect(self._hosts)
            self._stream = stack.enter_context(near)
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            sizes = [view.size for view in self._views.values()]
            with far:
                process = context.Process(target=_run, args=(far, sizes, theirs), daemon=True)
                process.start()
            stack.callback(process.join)
            stack.callback(process.terminate)
            theirs.close()
            self._receive()
            self._stack = stack.pop_all()
        return self

    def publish(self) -> Published:
        """Returns when the engine says that it has everything. The weights may not change meanwhile."""
        begin = time.monotonic()
        self._stream.sendall(b"v")
        for view in self._views.values():
            self._stream.sendall(view.data)
        if self._stream.recv(1) != b"v":
            raise RuntimeError("the full copy's engine has ended")
        seconds = time.monotonic() - begin
        return Published(seconds, seconds, sum(view.size for view in self._views.values()))

    def check(self) -> None:
        """Ends the engine. Raises RuntimeError if its weights are not the trainer's."""
        self._stream.shutdown(socket.SHUT_WR)
        for (name, view), digest in zip(self._views.items(), self._receive()):
            if digest != xxhash.xxh3_128_hexdigest(view.data):
                raise RuntimeError(f"full copy: the engine's '{name}' is not what was published")

    def _receive(self) -> Any:
        if not self._pipe.poll(TIMEOUT_SECONDS):
            raise RuntimeError("the full copy's engine does not answer")
        return self._pipe.recv()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
