"""One rank of the engine, in a process of its own: holds shared memory, and tells a digest of it when asked."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch
import xxhash

import dws
from tools.bench.daemons.engine_loop import WAIT_SECONDS
from tools.bench.full_weights.shapes import Shapes


def _run(socket: str, rank: int, shapes: Shapes, pipe: Any) -> None:
    engine = dws.Engine(socket, rank, shapes.tp)
    empty = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.engine_shapes().items()}
    live = engine.attach(empty, shapes.engine_mapping(rank), timeout=WAIT_SECONDS)
    del empty
    while pipe.recv() == "digests":
        with engine.running(WAIT_SECONDS):
            pipe.send({name: digest_of(tensor) for name, tensor in live.items()})
    engine.close()


def digest_of(tensor: Any) -> int:
    return xxhash.xxh3_64_intdigest(tensor.view(torch.int16).numpy().data)


class EngineRank:
    """Starts at once."""

    def __init__(self, socket: str, rank: int, shapes: Shapes) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(socket, rank, shapes, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def digests(self) -> dict[str, int]:
        """By tensor, of the live weights between two commits."""
        self._pipe.send("digests")
        found: dict[str, int] = self._pipe.recv()
        return found

    def stop(self) -> None:
        self._pipe.send("stop")
        self._process.join()
