"""The ways in which the demo trains the same model, one object of each on every rank."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import dws
from tools.demo.on_demand.model import Minibatch, Transformer
from tools.demo.on_demand.settings import LOCKSTEP, plan_of

_RATE = 3e-3
_NORM_MAX = 1.0
_BF16 = torch.bfloat16


class Way:
    """One way of training.

    Attributes:
      seconds: of the step before.
      waited: seconds of it in which this rank waited for others; None: it is not known.
    """

    def __init__(self, name: str, ranks: int, rank: int, seed: int) -> None:
        self.name = name
        self.model = Transformer(seed)
        self.optimizer: Any = None
        self.seconds = 0.0
        self.waited: Optional[float] = None
        self._ranks = ranks
        self._rank = rank

    def train(self, minibatch: Minibatch) -> dict[int, float]:
        """One step. Returns the losses of the samples that this rank computed, by their indexes."""
        began = time.monotonic()
        losses = self._train(minibatch, plan_of(self.name, minibatch.lengths, self._ranks))
        self.seconds = time.monotonic() - began
        return losses

    def _train(self, minibatch: Minibatch, plan: Any) -> dict[int, float]:
        raise NotImplementedError

    def _microbatch(self, minibatch: Minibatch, samples: Any) -> dict[int, float]:
        losses = minibatch.losses(self.model, samples)
        torch.stack(losses).sum().backward()
        return {sample: float(loss.detach()) for sample, loss in zip(samples, losses)}

    def start(self, version: int) -> None:
        """After a checkpoint was loaded, or none."""

    def close(self) -> None: ...


class Fsdp2(Way):
    """Plain FSDP2 over gloo, which reduces in FP32."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        policy = MixedPrecisionPolicy(param_dtype=_BF16, reduce_dtype=torch.float32)
        for module in (*self.model.layers, self.model):
            fully_shard(module, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=_RATE)

    def _train(self, minibatch: Minibatch, plan: Any) -> dict[int, float]:
        losses: dict[int, float] = {}
        for samples in plan.ranks[self._rank]:
            losses.update(self._microbatch(minibatch, samples))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), _NORM_MAX)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses


class OnDemand(Way):
    """dws.on_demand, freely or in lock-step.

    Attributes:
      od: its Training.
      in_minibatch: called after each microbatch.
      lost: why an attempt was abandoned. Then `train` returns no losses, and the process cannot go on: its process group
        has lost a rank, too.
    """

    def __init__(self, name: str, ranks: int, rank: int, seed: int, sender: str, job_id: str) -> None:
        super().__init__(name, ranks, rank, seed)
        self.lost: Optional[dws.MinibatchAbandonedError] = None
        self.in_minibatch: Callable[[], None] = lambda: None
        self.od = dws.on_demand.Training(
            sender, job_id, exact=True, lockstep=name == LOCKSTEP, timeout=60, on_abandoned=self._abandoned
        )
        self.od.fully_shard(self.model, units=list(self.model.layers), param_dtype=_BF16, start=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=_RATE)

    def _abandoned(self, error: dws.MinibatchAbandonedError) -> None:
        self.lost = error

    def start(self, version: int) -> None:
        self.od.start(version)

    def _waits(self) -> float:
        waits = self.od.waits
        return waits.gather_seconds + waits.push_seconds + waits.decision_seconds + waits.barrier_seconds

    def _train(self, minibatch: Minibatch, plan: Any) -> dict[int, float]:
        before = self._waits()
        for attempt in self.od.minibatch(plan):
            losses: dict[int, float] = {}
            if self.lost is not None:
                return {}
            with attempt:
                for samples in attempt.microbatches:
                    losses.update(self._microbatch(minibatch, samples))
                    self.in_minibatch()
                attempt.finish()
        self.waited = self._waits() - before
        self.od.clip(_NORM_MAX)
        self.optimizer.step()
        self.od.publish()
        return losses

    def close(self) -> None:
        self.od.close()
