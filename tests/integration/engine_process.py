"""An engine in its own process, for tests that kill it."""

from __future__ import annotations

import multiprocessing
from typing import Any, Callable

import numpy as np

import dws

Weights = dict[str, Any]


def answer(engine: dws.Engine, weights: Callable[[], Weights], pipe: Any) -> None:
    """Serves an EngineProcess forever; `weights` copies the attached weights."""
    while True:
        with engine.running(60) as grant:
            pipe.send((grant.version, weights()))
        if pipe.recv() == "stay inside":
            with engine.running(60):
                pipe.send("inside")
                pipe.recv()


def _run(socket: str, shapes: dict[str, tuple[int, ...]], pipe: Any) -> None:
    engine = dws.Engine(socket)
    live = engine.attach({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    answer(engine, lambda: {name: array.copy() for name, array in live.items()}, pipe)


class EngineProcess:
    """Attaches float32 arrays and answers `look` with the version and a copy of them."""

    _run = staticmethod(_run)

    def __init__(self, socket: str, shapes: dict[str, tuple[int, ...]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=self._run, args=(socket, shapes, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def look(self) -> tuple[int, Weights]:
        """Version and weights between two commits. The first answer comes after the first release."""
        seen: tuple[int, Weights] = self._pipe.recv()
        self._pipe.send("look again")
        return seen

    def look_and_stay_inside(self) -> None:
        """Leaves the process inside `engine.running()`."""
        self._pipe.recv()
        self._pipe.send("stay inside")
        assert self._pipe.recv() == "inside"

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join()
