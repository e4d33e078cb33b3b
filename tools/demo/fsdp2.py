"""The demo's trainer as processes of FSDP2: each has its shards of the FP32 weights, learns from
its rows of every batch, and publishes its part of the BF16 cast through its own sender.

The demo's own process is process 0. It tells the others what to do, and all do it. Needs torch 2.6
or newer.
"""

from __future__ import annotations

import multiprocessing
from typing import Any, Callable

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from dws.digest import Digest
from dws.results import PublishStats, WaitResult
from dws.trainers.publisher import Publisher
from tools.demo import tensor_parallel
from tools.demo.expected import Expected, rank_token
from tools.demo.learner import Learner
from tools.demo.policy import Policy
from tools.demo.publisher import WAIT_SECONDS, Committed, Published
from tools.demo.ranks import Ranks
from tools.demo.trainer import TrainerOptions

_JOIN_SECONDS = 10.0


class ShardedLearner(Learner):
    """A Learner whose masters are the policy's own sharded weights. All processes make the same
    calls with the same whole batches; seeds are the same, too."""

    def __init__(self, options: TrainerOptions, rank: int) -> None:
        self._rows = slice(rank, None, len(options.sockets))
        self._ranks = len(options.sockets)
        super().__init__(lambda: Policy(options.config), options.seed)

    def weights(self) -> dict[str, torch.Tensor]:
        """The whole BF16 cast, gathered. A collective call."""
        return {
            name: parameter.detach().full_tensor().to(torch.bfloat16)
            for name, parameter in self.policy.named_parameters()
        }

    def _prepared(self, policy: nn.Module) -> tuple[nn.Module, list[nn.Parameter]]:
        mesh = init_device_mesh("cpu", (self._ranks,))
        precision = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
        for module in (*policy.blocks, policy):
            fully_shard(module, mesh=mesh, mp_policy=precision)
        return policy, list(policy.parameters())

    def _hand_over_gradients(self) -> None:
        """They are the masters'."""

    def _cast(self) -> None:
        """FSDP2 casts the tensors that it gathers, and the publisher those that it publishes."""


class Process:
    """The work of one process of the trainer. Each method is a collective call.

    Attributes:
      report: told of the warm-up.
    """

    def __init__(self, options: TrainerOptions, rank: int) -> None:
        self.report: Callable[[int, float], None] = lambda step, loss: None
        torch.set_num_threads(1)
        self.ranks = Ranks(rank, len(options.sockets), options.store)
        self._learner = ShardedLearner(options, rank)
        self.parameter_count = self._learner.parameter_count
        weights = dict(self._learner.policy.named_parameters())
        cuts = tensor_parallel.cuts(weights, options.engine_ranks)
        self._publisher = Publisher(
            options.sockets[rank], options.job_id, cuts=cuts, dtype=torch.bfloat16
        )
        self._publisher.register(self._learner.policy)

    def warm_up(self, steps: int) -> None:
        self._learner.warm_up(steps, self.report)

    def improve(self, *batch: Any) -> None:
        self._learner.improve(*batch)

    def cast(self) -> tuple[dict[str, torch.Tensor], list[Digest]]:
        """The whole cast, and by rank the state token of its part."""
        weights = self._learner.weights()
        assert self._publisher.trainer is not None
        token = rank_token(self._publisher.trainer.layout, weights)
        return weights, self.ranks.gathered(token)

    def publish(self, version: int) -> list[PublishStats]:
        """By rank."""
        return self.ranks.gathered(self._publisher.publish(version))

    def wait(self, version: int) -> list[WaitResult]:
        """By rank."""
        assert self._publisher.trainer is not None
        result = self._publisher.trainer.wait(version, "all", WAIT_SECONDS)
        return self.ranks.gathered(result)

    def close(self) -> None:
        self._publisher.close()
        self.ranks.end()


def _follow(options: TrainerOptions, rank: int) -> None:
    """A process other than process 0: makes the calls that it makes, until `close`."""
    process = Process(options, rank)
    name = ""
    while name != "close":
        name, arguments = process.ranks.of_first(None)
        getattr(process, name)(*arguments)


class Fsdp2Trainer:
    """See tools.demo.trainer.Trainer."""

    def __init__(self, options: TrainerOptions) -> None:
        context = multiprocessing.get_context("spawn")
        self._followers = [
            context.Process(target=_follow, args=(options, rank), daemon=True)
            for rank in range(1, len(options.sockets))
        ]
        for follower in self._followers:
            follower.start()
        self._process = Process(options, 0)
        self._in_step = True  # whether the others wait for the next call
        self.parameter_count = self._process.parameter_count
        self.expected = Expected(options.engine_ranks)

    def warm_up(self, steps: int, report: Callable[[int, float], None]) -> None:
        self._process.report = report
        self._on_all("warm_up", steps)

    def improve(self, *batch: Any) -> None:
        self._on_all("improve", *batch)

    def publish(self, version: int) -> Published:
        # First: an engine may have the version before all processes have returned.
        self.expected.add(version, *self._on_all("cast"))
        stats = self._on_all("publish", version)
        return Published.of(stats, max(each.stall_seconds for each in stats))

    def wait(self, version: int) -> Committed:
        return Committed.of(self._on_all("wait", version))

    def close(self) -> None:
        if self._in_step:
            self._on_all("close")
            for follower in self._followers:
                follower.join(_JOIN_SECONDS)
        for follower in self._followers:
            follower.kill()
            follower.join()

    def _on_all(self, name: str, *arguments: Any) -> Any:
        """A call of Process on all processes; what this one returns."""
        self._in_step = False
        self._process.ranks.of_first((name, arguments))
        result = getattr(self._process, name)(*arguments)
        self._in_step = True
        return result
