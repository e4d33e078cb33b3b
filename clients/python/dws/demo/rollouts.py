"""An engine of the demo: a process of its own that samples answers with whatever version it has."""

from __future__ import annotations

import dataclasses
import signal
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import dws
from dws.demo import policy

WAIT_SECONDS = 60.0
_BATCH = 2048


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """Answers that were sampled with one version.

    Attributes:
      state_token: of the weights in the engine's memory, as its receiver has proved it.
      sha256: of those weights, as the engine itself has read them.
    """

    version: int
    state_token: str
    sha256: str
    prompts: np.ndarray[Any, Any]
    answers: np.ndarray[Any, Any]


def run_engine(socket: str, seed: int, pipe: "Connection") -> None:
    """Answers each message with Rollouts, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C ends the trainer, which closes its end
    random = np.random.default_rng(seed)
    with dws.Engine(socket) as engine:
        views = engine.attach({name: np.zeros(shape, np.uint16) for name, shape in policy.SHAPES.items()})
        while _asked(pipe):
            prompts = random.integers(0, policy.PROMPTS, _BATCH)
            with engine.running(WAIT_SECONDS) as grant:
                answers = policy.sample(views, prompts, random)
                sha256 = policy.sha256(views)
            pipe.send(Rollouts(grant.version, grant.state_token, sha256, prompts, answers))


def _asked(pipe: "Connection") -> bool:
    try:
        pipe.recv()
        return True
    except EOFError:
        return False
