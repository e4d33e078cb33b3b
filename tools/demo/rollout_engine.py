"""A rollout engine process: samples answers with whatever weights DWS has put into its module."""

from __future__ import annotations

import dataclasses
import os
import time
from multiprocessing.connection import Connection
from typing import Any, Optional

import torch

import dws
from tools.demo import task
from tools.demo.policy import Policy, PolicyConfig, sample
from tools.demo.weights_hash import weights_sha256

# The engines are up before the trainer has warmed up.
READY_SECONDS = 600.0
LAST_VERSION_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """What an engine process is told.

    Attributes:
      socket: of its receiver.
      prompts, group_size: of one rollout: so many questions, each answered so often.
      check_every: it hashes its weights at the first version at or above each multiple of this.
      flip_at: flip one bit of the weights at the first check at or above this version.
    """

    name: str
    socket: str
    config: PolicyConfig
    seed: int
    prompts: int
    group_size: int
    check_every: int
    flip_at: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Sampled answers and the pair that names the weights they were sampled with.

    Attributes:
      pause_seconds: how long the engine stood still for its last commit: from the end of the
      forward
        passes before to the release after.
    """

    engine: str
    version: int
    state_token: str
    pause_seconds: float
    questions: Any
    answers: Any
    logprobs: Any


@dataclasses.dataclass(frozen=True)
class Check:
    """SHA-256 of model.parameters() at a version."""

    engine: str
    version: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Finished:
    """The engine's last word.

    Attributes:
      generating_share: of the time since its first release, spent in forward passes.
    """

    engine: str
    version: int
    generating_share: float
    commits: int
    longest_pause_seconds: float


def run_engine(options: EngineOptions, pipe: Connection) -> None:
    """The process. Sends Rollouts and Checks; a number from the trainer is the last version: when
    it is in memory, sends a last Check and Finished, and ends.
    """
    torch.set_num_threads(1)
    os.nice(5)  # the trainer shares the two cores and must not wait
    torch.manual_seed(options.seed)
    policy = Policy(options.config).to(torch.bfloat16)  # random weights, which DWS replaces
    with dws.Engine(options.socket) as engine:
        engine.attach(policy)
        engine.wait_ready(READY_SECONDS)
        _generate(options, engine, policy, pipe)


def _generate(options: EngineOptions, engine: dws.Engine, policy: Policy, pipe: Connection) -> None:
    generator = torch.Generator().manual_seed(options.seed)
    started = time.monotonic()
    generating, next_check, last_version = 0.0, 1, None
    flip_at = options.flip_at
    while True:
        questions = task.prompts(options.prompts, generator)
        questions = questions.repeat_interleave(options.group_size, 0)
        with engine.running(timeout=LAST_VERSION_SECONDS) as lease:
            began = time.monotonic()
            answers, logprobs = sample(policy, questions, task.DIGITS, generator)
            generating += time.monotonic() - began
            pause = engine.stats().lease.last_pause_seconds
            if lease.version >= next_check or lease.version == last_version:
                next_check = (lease.version // options.check_every + 1) * options.check_every
                if flip_at is not None and lease.version >= flip_at:
                    flip_one_bit(policy)
                    flip_at = None
                sha256 = weights_sha256(policy.named_parameters())
                pipe.send(Check(options.name, lease.version, sha256))
        pipe.send(
            Rollout(
                options.name,
                lease.version,
                lease.state_token,
                pause,
                questions.numpy(),
                answers.numpy(),
                logprobs.numpy(),
            )
        )
        if lease.version == last_version:
            break
        if pipe.poll():
            last_version = pipe.recv()
    stats = engine.stats().lease
    share = generating / (time.monotonic() - started)
    longest = stats.longest_pause_seconds
    pipe.send(Finished(options.name, lease.version, share, stats.grants, longest))
    pipe.recv()  # stays attached until the trainer has counted the receivers


def flip_one_bit(policy: Policy) -> None:
    """The lowest bit of one weight, behind DWS's back."""
    bits = policy.blocks[0].up.weight.detach().view(torch.int16)
    bits[0, 0] ^= 1
