"""DWS moving full weights from trainer ranks to the ranks of one engine, each on a host of its own."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

import dws
from tests.integration.cluster import Cluster
from tests.integration.network_hosts import NetworkHosts
from tools.bench.full_weights.mesh_job import all_ranks
from tools.bench.full_weights.shapes import Shapes

_WAIT_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Moved:
    """One full version.

    Attributes:
      seconds: from the end of the capture by all trainer ranks to the last COMMITTED.
      sent: bytes over each trainer rank's link, as the kernel counts them.
      received: bytes over each engine rank's link.
    """

    seconds: float
    sent: list[int]
    received: list[int]


class LinkJob:
    """A context manager; inside, version 1 is committed. The first hosts are those of the trainer ranks, the
    next ones those of the engine ranks, whose receivers are a commit group."""

    def __init__(self, shapes: Shapes, hosts: NetworkHosts) -> None:
        self._shapes = shapes
        self._hosts = hosts
        self._version = 0
        self._views: list[dict[str, Any]] = []
        self._live: list[dict[str, Any]] = [{} for _ in range(shapes.tp)]

    def __enter__(self) -> "LinkJob":
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster("bench"))
            self._start(cluster)
            stream = dws.Stream.new()
            self._trainers = [
                stack.enter_context(dws.Trainer(sender.socket, "bench", rank, self._shapes.ranks, stream))
                for rank, sender in enumerate(cluster.senders)
            ]
            for rank, trainer in enumerate(self._trainers):
                self._views.append(
                    trainer.register(self._shapes.specs(), shards=self._shapes.owned(rank), views="numpy")
                )
            self._random = np.random.default_rng(43)
            self._engines = [stack.enter_context(dws.Engine(r.socket)) for r in cluster.receivers]
            all_ranks(self._shapes.tp, self._attach)
            self.publish()
            self._stack = stack.pop_all()
        return self

    def _start(self, cluster: Cluster) -> None:
        for rank in range(self._shapes.ranks):
            self._hosts.enter(cluster, rank)
            cluster.start_sender(rank, "--insecure")
        part = self._shapes.size_bytes // self._shapes.tp
        group = ["--group-id=engine", f"--group-members={self._shapes.tp}"]
        for rank in range(self._shapes.tp):
            self._hosts.enter(cluster, self._shapes.ranks + rank)
            leader = [f"--group-leader={cluster.receivers[0].address}"] if rank else []
            cluster.start_receiver(
                f"engine-{rank}", "--insecure",
                f"--staging-bytes={2 * part + (16 << 20)}", f"--group-index={rank}", *group, *leader,
            )  # fmt: skip

    def _attach(self, rank: int) -> None:
        shapes = self._shapes.engine_shapes()
        empty = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
        mapping = self._shapes.engine_mapping(rank)
        self._live[rank] = self._engines[rank].attach(empty, mapping, timeout=_WAIT_SECONDS)

    def publish(self) -> Moved:
        """A full version, other values everywhere."""
        self._version += 1
        for views in self._views:
            for view in views.values():
                view[...] = self._random.integers(0, 1 << 14, view.shape[-1], np.uint16) + self._version
        before = self._hosts.traffic()
        all_ranks(self._shapes.ranks, self._publish)
        begin = time.monotonic()
        all_ranks(
            self._shapes.ranks,
            lambda rank: self._trainers[rank].wait(self._version, self._shapes.tp, _WAIT_SECONDS),
        )
        seconds = time.monotonic() - begin
        passed = [(now[0] - then[0], now[1] - then[1]) for now, then in zip(self._hosts.traffic(), before)]
        sources = passed[: self._shapes.ranks]
        engines = passed[self._shapes.ranks :]
        return Moved(seconds, [sent for sent, _ in sources], [received for _, received in engines])

    def _publish(self, rank: int) -> None:
        if not self._trainers[rank].publish(self._version, full=True).full:
            raise RuntimeError(f"rank {rank}: version {self._version} is not full")

    def check(self) -> None:
        """Raises RuntimeError if the engine's weights are not the trainer's."""
        for i, spec in enumerate(self._shapes.specs()):
            whole = np.concatenate([views[spec.name] for views in self._views])
            parts = np.split(whole, self._shapes.tp, axis=1 if self._shapes.by_columns(i) else 0)
            for rank, part in enumerate(parts):
                with self._engines[rank].running(_WAIT_SECONDS):
                    live = self._live[rank][spec.name].view(torch.int16).numpy().view(np.uint16)
                    if not np.array_equal(live, part):
                        raise RuntimeError(f"engine rank {rank}: '{spec.name}' is not what the trainers published")

    def __exit__(self, *error: Any) -> None:
        self._views, self._live = [], []
        self._stack.__exit__(*error)
