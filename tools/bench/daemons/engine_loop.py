"""An engine in a process of its own that makes a token every few milliseconds and tells how long it
could not: from the last token before a commit to the first one allowed after."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import numpy as np
import torch
import xxhash

import dws

TOKEN_SECONDS = 0.002
WAIT_SECONDS = 600.0


def _digest(tensor: Any) -> int:
    return xxhash.xxh3_64_intdigest(tensor.view(torch.int16).numpy().data)


def _run(socket: str, shapes: dict[str, int], idle: bool, pipe: Any) -> None:
    engine = dws.Engine(socket)
    zeros = {name: torch.zeros(count, dtype=torch.bfloat16) for name, count in shapes.items()}
    live = engine.attach(zeros, timeout=WAIT_SECONDS)
    del zeros
    version, last_token = 0, 0.0
    while not pipe.poll(None if idle else 0):
        with engine.running(WAIT_SECONDS) as grant:
            if grant.version != version:
                pipe.send((grant.version, time.monotonic() - last_token))
                version = grant.version
            time.sleep(TOKEN_SECONDS)  # the token
            last_token = time.monotonic()
    pipe.recv()
    with engine.running(WAIT_SECONDS):
        pipe.send({name: _digest(tensor) for name, tensor in live.items()})
    engine.close()


class EngineLoop:
    """Starts at once. `idle`: it generates no tokens, so no commit has to wait."""

    def __init__(self, socket: str, specs: list[dws.TensorSpec], idle: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        shapes = {spec.name: int(np.prod(spec.shape)) for spec in specs}
        self._process = context.Process(target=_run, args=(socket, shapes, idle, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def pause_of(self, version: int) -> float:
        """Seconds without a token because of this commit; of the first version without meaning."""
        while True:
            if not self._pipe.poll(WAIT_SECONDS):
                raise RuntimeError(f"the engine has not reached version {version}")
            reached, seconds = self._pipe.recv()
            if reached >= version:
                return float(seconds)

    def finish(self, views: dict[str, Any]) -> None:
        """Ends the engine. Raises RuntimeError if its weights differ from those of `views`."""
        self._pipe.send("stop")
        digests = self._pipe.recv()
        self._process.join()
        for name, view in views.items():
            if digests[name] != xxhash.xxh3_64_intdigest(view.data):
                raise RuntimeError(f"the engine's '{name}' is not what the trainer published")
