"""A trainer of one process: AdamW over FP32 masters, from which the BF16 weights of the model are written once a step."""

from __future__ import annotations

import time
from typing import Any, Iterable, Optional

import torch
from torch import nn

import dws
from dws.change_lists import Changes
from dws.trainers import cast_and_list
from tools.gpu_check.job.llama_model import Llama, Shape, language_loss, synchronize

LEARNING_RATE = 1e-6
BETAS = (0.9, 0.95)


def fused(device: str) -> dict[str, bool]:
    """Avoids temporary copies of all masters. Some releases of PyTorch do not have this on the CPU.
    """
    return {} if device == "cpu" else {"fused": True}


class PlainTraining:
    """Lifecycle: made; registered; then steps and changes, each of which returns when the weights are written."""

    def __init__(self, shape: Shape, device: str) -> None:
        self._shape = shape
        self._device = device
        self._model = Llama(shape, device)
        synchronize(device)
        self.parameters = sum(weight.numel() for weight in self._model.parameters())

    def register(self, socket: str, job_id: str) -> float:
        """Returns the seconds that dws needed for it."""
        self.publisher = dws.Trainer(socket, job_id)
        started = time.monotonic()
        dws.bind(self._model, self.publisher.register(self._model, lists=True))
        seconds = time.monotonic() - started
        self._weights = list(self._model.parameters())
        self._masters = [
            weight.detach().float().clone().requires_grad_(True) for weight in self._weights
        ]
        self._optimizer = torch.optim.AdamW(
            self._masters, lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0, **fused(self._device)
        )
        return seconds

    def step(self) -> None:
        self._optimize()
        self._write()

    def listing_step(self) -> dict[str, Optional[Changes]]:
        """As `step`, and returns what the cast has changed."""
        self._optimize()
        with torch.no_grad():
            lists = cast_and_list(self._masters, self._weights)
        synchronize(self._device)
        return {name: changes for (name, _), changes in zip(self.weights(), lists)}

    def _optimize(self) -> None:
        language_loss(self._model, self._shape, self._device).backward()
        for master, weight in zip(self._masters, self._weights):
            assert weight.grad is not None
            master.grad = weight.grad.float()
            weight.grad = None
        nn.utils.clip_grad_norm_(self._masters, 1.0)
        self._optimizer.step()
        for master in self._masters:
            master.grad = None

    def scale(self) -> None:
        """Changes every weight, in a few ways: a delta of it is small, but touches all memory."""
        with torch.no_grad():
            for master in self._masters:
                master.mul_(1.5)
        self._write()

    def replace(self) -> None:
        """Other weights, as if another checkpoint were loaded."""
        with torch.no_grad():
            for master in self._masters:
                master.normal_(std=0.02)
        self._write()

    def weights(self) -> Iterable[tuple[str, Any]]:
        """As they are published, by name."""
        return self._model.named_parameters()

    def close(self) -> None:
        pass

    def _write(self) -> None:
        with torch.no_grad():
            for master, weight in zip(self._masters, self._weights):
                weight.copy_(master)
        synchronize(self._device)
