"""DWS moving full weights from trainer ranks to an engine of several ranks: publish to COMMITTED."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from typing import Any, Callable

import numpy as np

import dws
from tests.integration.cluster import Cluster
from tools.bench.daemons.engine_loop import WAIT_SECONDS
from tools.bench.full_weights.engine_rank import EngineRank, digest_of
from tools.bench.full_weights.shapes import Shapes


def all_ranks(ranks: int, call: Callable[[int], Any]) -> None:
    """`call(rank)` for every rank, at the same time."""
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            call(rank)
        except BaseException as error:  # pylint: disable=broad-except
            failed.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


class MeshJob:
    """A context manager; inside, version 1 is committed. `way`: of full tensors."""

    def __init__(self, shapes: Shapes, way: str, threads: int) -> None:
        self._shapes = shapes
        self._way = way
        self._threads = threads
        self._version = 1
        self.views: list[dict[str, Any]] = [{} for _ in range(shapes.ranks)]

    def __enter__(self) -> "MeshJob":
        with ExitStack() as stack:
            self._cluster = stack.enter_context(Cluster("bench"))
            self._senders = [
                self._cluster.start_sender(r, f"--threads={self._threads}", "--insecure")
                for r in range(self._shapes.ranks)
            ]
            stream = dws.Stream.new()
            self._trainers = [
                stack.enter_context(dws.Trainer(s.socket, "bench", r, self._shapes.ranks, stream))
                for r, s in enumerate(self._senders)
            ]
            for rank, trainer in enumerate(self._trainers):
                self.views[rank] = trainer.register(
                    self._shapes.specs(), shards=self._shapes.owned(rank), views="numpy"
                )
            self._random = np.random.default_rng(41)
            self._fill()
            all_ranks(self._shapes.ranks, lambda rank: self._trainers[rank].publish(1))
            self._receivers = 0
            self._engines: list[EngineRank] = []
            self.join()
            self._stack = stack.pop_all()
        return self

    def _fill(self) -> None:
        """Other values everywhere."""
        for views in self.views:
            for view in views.values():
                view[...] = self._random.integers(0, 1 << 14, view.shape[-1], np.uint16) + self._version

    def join(self) -> float:
        """Another engine takes the place of the one before: seconds that its receiver took to fetch, stage and
        commit the newest version."""
        for engine in self._engines:
            engine.stop()
        if self._receivers > 0:
            self._receiver.stop()
        receiver = self._cluster.start_receiver(
            f"engine-{self._receivers}", f"--threads={self._threads - 1}", "--insecure",
            f"--full-way={self._way}", f"--staging-bytes={2 * self._shapes.size_bytes}",
        )  # fmt: skip
        self._receivers += 1
        self._engines = [EngineRank(receiver.socket, rank, self._shapes) for rank in range(self._shapes.tp)]
        self._receiver = receiver
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            status = json.loads(receiver.page("/status"))["receiver"]
            if int(status.get("committed_version", 0)) == self._version:
                last = status["last_commit"]
                return sum(float(last[f"{step}_seconds"]) for step in ("fetch", "stage", "commit"))
            if time.monotonic() > deadline:
                raise RuntimeError(f"version {self._version} was not committed: {status}")
            time.sleep(0.05)

    def publish(self) -> tuple[float, float]:
        """Publishes a full version. Returns the seconds that the call took, and the seconds until
        the engine has committed it."""
        self._version += 1
        self._fill()
        begin = time.monotonic()
        all_ranks(self._shapes.ranks, lambda rank: self._trainers[rank].publish(self._version, full=True))
        published = time.monotonic() - begin
        for trainer in self._trainers:
            trainer.wait(self._version, 1, WAIT_SECONDS)
        return published, time.monotonic() - begin

    def check(self) -> None:
        """Raises RuntimeError if the engine's weights are not the trainer's."""
        found = [engine.digests() for engine in self._engines]
        for i, spec in enumerate(self._shapes.specs()):
            whole = np.concatenate([views[spec.name] for views in self.views])
            for rank in range(self._shapes.tp):
                dim = 1 if self._shapes.by_columns(i) else 0
                part = np.ascontiguousarray(np.split(whole, self._shapes.tp, axis=dim)[rank])
                if found[rank][spec.name] != digest_of(_as_torch(part)):
                    raise RuntimeError(f"the engine's '{spec.name}' is not what the trainers published")

    def __exit__(self, *error: Any) -> None:
        for engine in self._engines:
            engine.stop()
        self.views = []
        self._stack.__exit__(*error)


def _as_torch(array: Any) -> Any:
    import torch  # the engine's processes import it anyway

    return torch.from_numpy(array.view(np.int16))
