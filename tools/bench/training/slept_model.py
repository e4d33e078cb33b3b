"""A model whose parameters and gradients are real, and whose compute is a sleep: then ranks can outnumber cores."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

_FORWARD = 1 / 3  # of a microbatch's time; the backward pass computes two products for each of the forward's


class Clock:
    """Sleeps, and makes up for what a sleep was too long by in the next ones."""

    def __init__(self) -> None:
        self._over = 0.0

    def sleep(self, seconds: float) -> None:
        began = time.perf_counter()
        wanted = seconds - self._over
        if wanted > 0:
            time.sleep(wanted)
        self._over = time.perf_counter() - began - wanted


class _Compute(torch.autograd.Function):
    """The identity, after a sleep in each pass. Arguments: the tensor, a Clock, and the seconds of both passes."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any, **_: Any) -> Any:
        hidden, clock, forward, backward = arguments
        ctx.clock, ctx.seconds = clock, backward
        clock.sleep(forward)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.clock.sleep(ctx.seconds)
        return gradients[0], None, None, None


class Layer(nn.Module):
    """Two matrices. `seconds`: of both passes of the next microbatch."""

    def __init__(self, width: int, clock: Clock) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.clock, self.seconds = clock, 0.0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        seconds = self.seconds
        hidden = _Compute.apply(hidden, self.clock, seconds * _FORWARD, seconds * (1 - _FORWARD))
        result: torch.Tensor = hidden + self.down(torch.tanh(self.up(hidden)))
        return result


class SleptModel(nn.Module):
    """Layers, and a norm that is the model's own."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        clock = Clock()
        self.layers = nn.ModuleList(Layer(width, clock) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self._input = torch.linspace(-1, 1, width).reshape(1, width)

    def loss(self, seconds: float) -> torch.Tensor:
        """A microbatch that computes for so long."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.seconds = seconds / len(self.layers)
        loss: torch.Tensor = self(self._input.to(self.norm.weight.dtype, copy=True).requires_grad_())
        return loss

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        loss: torch.Tensor = self.norm(hidden).float().square().mean()
        return loss
