"""A rollout engine: samples answers with whatever weights DWS has put into its module.

It is one process, or one for each of its ranks, which hold slices of the weights and compute
together.
"""

from __future__ import annotations

import dataclasses
import os
import time
from multiprocessing.connection import Connection
from typing import Any, Optional

import torch

import dws
from dws.plugins.step_gate import StepGate
from tools.demo import task, tensor_parallel
from tools.demo.policy import Policy, PolicyConfig, sample
from tools.demo.ranks import Ranks
from tools.demo.weights_hash import weights_sha256

# The engines are up before the trainer has warmed up.
READY_SECONDS = 600.0
LAST_VERSION_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """The settings of all processes of an engine.

    Attributes:
      socket: of its receiver.
      ranks: how many processes it has.
      store: a file through which they find each other; not there yet.
      prompts, group_size: of one rollout: so many questions, each answered so often.
      check_every: it hashes its weights at the first version at or above each multiple of this.
      flip_at: flip one bit of the last rank's weights at the first check at or above this version.
    """

    name: str
    socket: str
    config: PolicyConfig
    seed: int
    prompts: int
    group_size: int
    check_every: int
    ranks: int
    store: str
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
    """SHA-256 of model.parameters() of each rank at a version."""

    engine: str
    version: int
    sha256: tuple[str, ...]


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


def run_engine(options: EngineOptions, rank: int, pipe: Optional[Connection]) -> None:
    """The process of a rank. Sends Rollouts and Checks; a number from the trainer is the last
    version: when it is in memory, sends a last Check and Finished, and ends.

    Args:
      pipe: rank 0 has it.
    """
    torch.set_num_threads(1)
    os.nice(5)  # the trainer shares the two cores and must not wait
    torch.manual_seed(options.seed)
    ranks = Ranks(rank, options.ranks, options.store)
    # Random weights, which DWS replaces.
    policy = Policy(options.config, ranks).to(torch.bfloat16)
    with dws.Engine(options.socket, rank, options.ranks) as engine:
        engine.attach(policy, mapping=tensor_parallel.mapping(policy))
        engine.wait_ready(READY_SECONDS)
        _generate(options, engine, policy, pipe)
    ranks.end()


def _generate(
    options: EngineOptions, engine: dws.Engine, policy: Policy, pipe: Optional[Connection]
) -> None:
    ranks = policy.ranks
    gate = StepGate(engine, ranks.lowest if ranks.size > 1 else None, LAST_VERSION_SECONDS)
    generator = torch.Generator().manual_seed(options.seed)  # the same on all ranks
    started = time.monotonic()
    generating, next_check, last_version = 0.0, 1, None
    flip_at = options.flip_at if ranks.rank == ranks.size - 1 else None

    def send(message: Any) -> None:
        if pipe is not None:
            pipe.send(message)

    while True:
        questions = task.prompts(options.prompts, generator)
        questions = questions.repeat_interleave(options.group_size, 0)
        if pipe is not None and pipe.poll():
            last_version = pipe.recv()
        with gate.step() as lease:
            began = time.monotonic()
            last_version = ranks.of_first(last_version)
            answers, logprobs = sample(policy, questions, task.DIGITS, generator)
            generating += time.monotonic() - began
            pause = engine.stats().lease.last_pause_seconds
            if lease.version >= next_check or lease.version == last_version:
                next_check = (lease.version // options.check_every + 1) * options.check_every
                if flip_at is not None and lease.version >= flip_at:
                    flip_one_bit(policy)
                    flip_at = None
                sha256 = ranks.gathered(weights_sha256(policy.named_parameters()))
                send(Check(options.name, lease.version, tuple(sha256)))
        send(
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
    stats = engine.stats().lease
    share = generating / (time.monotonic() - started)
    longest = stats.longest_pause_seconds
    send(Finished(options.name, lease.version, share, stats.grants, longest))
    # All stay attached until the trainer has counted the receivers.
    ranks.of_first(None if pipe is None else pipe.recv())


def flip_one_bit(policy: Policy) -> None:
    """The lowest bit of one weight, behind DWS's back."""
    bits = policy.blocks[0].up.weight.detach().view(torch.int16)
    bits[0, 0] ^= 1
