"""An engine in a process of its own, for tests that kill it."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np

import dws


def _run(socket: str, shapes: dict[str, tuple[int, ...]], pipe: Any) -> None:
    engine = dws.Engine(socket)
    live = engine.attach({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    while True:
        with engine.running(60) as grant:
            pipe.send((grant.version, {name: array.copy() for name, array in live.items()}))
        if pipe.recv() == "stay inside":
            with engine.running(60):
                pipe.send("inside")
                pipe.recv()


class EngineProcess:
    """Attaches float32 arrays and answers `look` with the version and a copy of them."""

    def __init__(self, socket: str, shapes: dict[str, tuple[int, ...]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(socket, shapes, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def look(self) -> tuple[int, dict[str, Any]]:
        """Weights between two commits. The first answer comes after the first release."""
        seen: tuple[int, dict[str, Any]] = self._pipe.recv()
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
