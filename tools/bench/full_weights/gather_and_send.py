"""The best that a trainer without peer-to-peer transfers can do: one rank gathers the other ranks'
rows and sends every engine rank its part of a tensor as soon as it has the tensor, while it gathers
the next ones. Plain TCP; what arrives is not looked at, and nothing is cut to columns."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from tests.integration.network_hosts import NetworkHosts
from tools.bench.daemons.streams import receive_all
from tools.bench.full_weights.mesh_job import all_ranks
from tools.bench.full_weights.shapes import Shapes

_TIMEOUT_SECONDS = 300.0


class GatherAndSend:
    """Host 0 gathers. A context manager, whose end closes the connections."""

    def __init__(self, shapes: Shapes, hosts: NetworkHosts) -> None:
        self._tensors = len(shapes.specs())
        tensor_bytes = shapes.size_bytes // self._tensors
        self._rows_bytes = tensor_bytes // shapes.ranks
        self._part_bytes = tensor_bytes // shapes.tp
        self._shapes = shapes
        self._hosts = hosts
        self._weights = np.ones((self._tensors, tensor_bytes), np.uint8)
        self._arrived = [0] * self._tensors  # number of ranks whose rows of the tensor have arrived
        self._changed = threading.Condition()

    def __enter__(self) -> "GatherAndSend":
        with ExitStack() as stack:
            with self._hosts.inside(0):
                listener = stack.enter_context(socket.create_server((self._hosts.address(0), 0), backlog=64))
            listener.settimeout(_TIMEOUT_SECONDS)

            def connect(host: int) -> tuple[socket.socket, socket.socket]:
                with self._hosts.inside(host):
                    theirs = stack.enter_context(socket.create_connection(listener.getsockname(), _TIMEOUT_SECONDS))
                ours = stack.enter_context(listener.accept()[0])
                ours.settimeout(_TIMEOUT_SECONDS)
                return ours, theirs

            first = self._shapes.ranks
            self._sources = {rank: connect(rank) for rank in range(1, first)}
            self._engines = [connect(first + rank) for rank in range(self._shapes.tp)]
            self._stack = stack.pop_all()
        return self

    def _hand_over(self, rank: int) -> None:
        rows = np.ones(self._rows_bytes, np.uint8)
        for _ in range(self._tensors):
            self._sources[rank][1].sendall(rows.data)

    def _gather(self, rank: int) -> None:
        for tensor in range(self._tensors):
            begin = rank * self._rows_bytes
            receive_all(self._sources[rank][0], self._weights[tensor, begin : begin + self._rows_bytes].data)
            with self._changed:
                self._arrived[tensor] += 1
                self._changed.notify_all()

    def _send(self, rank: int) -> None:
        for tensor in range(self._tensors):
            with self._changed:
                while self._arrived[tensor] < len(self._sources):
                    if not self._changed.wait(_TIMEOUT_SECONDS):
                        raise TimeoutError(f"tensor {tensor}: no more rows come")
            begin = rank * self._part_bytes
            self._engines[rank][0].sendall(self._weights[tensor, begin : begin + self._part_bytes].data)

    def _load(self, rank: int) -> None:
        part = np.ones(self._part_bytes, np.uint8)
        for _ in range(self._tensors):
            receive_all(self._engines[rank][1], part.data)

    def seconds(self) -> float:
        """Moves the weights once, until the last engine rank has its part."""
        self._arrived = [0] * self._tensors
        jobs = [(work, rank) for rank in self._sources for work in (self._hand_over, self._gather)]
        jobs += [(work, rank) for rank in range(len(self._engines)) for work in (self._send, self._load)]
        begin = time.monotonic()
        all_ranks(len(jobs), lambda job: jobs[job][0](jobs[job][1]))
        return time.monotonic() - begin

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
