"""The ways of training that P24 compares: each trains one minibatch at a time on this rank."""

from __future__ import annotations

import time
from typing import Protocol, Sequence

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import dws
from tools.bench.training.cells import Minibatch
from tools.bench.training.slept_model import SleptModel

_RATE = 1e-4


class Way(Protocol):
    """One of the ways.

    Attributes:
      parts: seconds so far, of what a rank does other than compute.
    """

    parts: dict[str, float]

    def train(self, minibatch: Minibatch) -> None:
        """From the first gather to the weights of the next minibatch."""

    def close(self) -> None: ...


def _seconds(minibatch: Minibatch, samples: Sequence[int]) -> float:
    return sum(minibatch.seconds[i] for i in samples)


class Training:
    """dws.on_demand: lb_mini; or in lock-step lb_micro. Publishes each version."""

    def __init__(self, model: SleptModel, sender: str, job_id: str, lockstep: bool) -> None:
        self._lockstep = lockstep
        self._model = model
        self.od = dws.on_demand.Training(sender, job_id, lockstep=lockstep, timeout=60)
        self.od.fully_shard(model, units=list(model.layers), param_dtype=torch.bfloat16)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
        self.parts: dict[str, float] = {}
        self._stepping = self._publishing = 0.0

    def train(self, minibatch: Minibatch) -> None:
        for attempt in self.od.minibatch(minibatch.micro if self._lockstep else minibatch.mini):
            with attempt:
                for samples in attempt.microbatches:
                    self._model.loss(_seconds(minibatch, samples)).backward()
                step = attempt.finish()
        if not step.finite:
            raise ArithmeticError(f"the gradient of minibatch {step.minibatch} is not finite")
        began = time.perf_counter()
        self._optimizer.step()
        stepped = time.perf_counter()
        self.od.publish()
        self._stepping += stepped - began
        self._publishing += time.perf_counter() - stepped
        waits = self.od.waits
        self.parts = {
            "gather": waits.gather_seconds,
            "push": waits.push_seconds,
            "barrier": waits.barrier_seconds,
            "decision": waits.decision_seconds,
            "optimizer": self._stepping,
            "publish": self._publishing,
        }

    def close(self) -> None:
        self.od.close()


class Fsdp2:
    """Plain FSDP2 over gloo, lb_micro. Gradients are reduced in FP32, as sums are on demand."""

    def __init__(self, model: SleptModel) -> None:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in (*model.layers, model):
            fully_shard(module, mp_policy=policy)
        self._model = model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
        self._rank = torch.distributed.get_rank()
        self.parts: dict[str, float] = {}

    def train(self, minibatch: Minibatch) -> None:
        for samples in minibatch.micro.ranks[self._rank]:
            self._model.loss(_seconds(minibatch, samples)).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def close(self) -> None:
        pass


class Alone:
    """The plan of lb_mini on a model that is not cut: passes without any communication, optimizer or publishing. What it is
    slower than the plan comes from sleeps and from torch."""

    def __init__(self, model: SleptModel) -> None:
        self._model = model.to(torch.bfloat16)
        self._rank = torch.distributed.get_rank()
        self.parts: dict[str, float] = {}

    def train(self, minibatch: Minibatch) -> None:
        for samples in minibatch.mini.ranks[self._rank]:
            self._model.loss(_seconds(minibatch, samples)).backward()
        self._model.zero_grad()

    def close(self) -> None:
        pass
