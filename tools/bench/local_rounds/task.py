"""A small model that is tuned further: two hidden layers, on inputs of few latent dimensions, as activations have.

The master weights are FP32, and each step computes with their BF16 numbers. AdamW's step is small beside the weights:
about 1 % of the BF16 weights change in a step, as in reinforcement learning of language models.
"""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np

from dws.on_demand.pulse_loco.arithmetic import to_bf16

Array = np.ndarray[Any, Any]
F32 = np.float32
_LATENT = 24
_SHAPES = [(128, 192), (192, 192), (192, 64)]
ELEMENTS = sum(rows * columns for rows, columns in _SHAPES)
_GAIN = F32(2**0.5)  # of a rectified layer
_SHARPNESS = F32(2)
_APART = 0.03  # the teacher's weights from the first ones, standard deviation


def _layers(theta: Array) -> Iterator[Array]:
    at = 0
    for rows, columns in _SHAPES:
        yield theta[at : at + rows * columns].reshape(rows, columns)
        at += rows * columns


def _forward(theta: Array, x: Array) -> tuple[Array, Array, Array]:
    first, second, last = _layers(theta)
    hidden = np.maximum(x @ first, 0) * _GAIN
    deep = np.maximum(hidden @ second, 0) * _GAIN
    return hidden, deep, deep @ last * _SHARPNESS


class Task:
    """Samples whose labels a teacher draws. One seed gives one task."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self._mix = (generator.normal(size=(_LATENT, _SHAPES[0][0])) / _LATENT**0.5).astype(F32)
        self.theta = np.concatenate(
            [(generator.normal(size=rows * columns) / rows**0.5).astype(F32) for rows, columns in _SHAPES]
        )
        self._teacher = self.theta + (generator.normal(size=ELEMENTS) * _APART).astype(F32)
        self._held_out = self.draw(generator, 8192)

    def draw(self, generator: np.random.Generator, samples: int) -> tuple[Array, Array]:
        x = generator.normal(size=(samples, _LATENT)).astype(F32) @ self._mix
        scores = _forward(self._teacher, x)[2]
        return x, (scores + generator.gumbel(size=scores.shape)).argmax(1)

    def loss(self, theta: Array) -> float:
        """Cross-entropy of the BF16 weights on samples that no worker sees; the teacher's is the least there is."""
        x, labels = self._held_out
        return float(-np.log(_shares(_forward(to_bf16(theta), x)[2])[np.arange(labels.size), labels]).mean())

    def least_loss(self) -> float:
        return self.loss(self._teacher)

    def gradient(self, half: Array, x: Array, labels: Array) -> Array:
        """At BF16 weights."""
        _, second, last = _layers(half)
        hidden, deep, scores = _forward(half, x)
        error = _shares(scores)
        error[np.arange(labels.size), labels] -= 1
        error *= _SHARPNESS / F32(labels.size)
        of_deep = (error @ last.T) * (deep > 0) * _GAIN
        of_hidden = (of_deep @ second.T) * (hidden > 0) * _GAIN
        return np.concatenate([part.reshape(-1) for part in (x.T @ of_hidden, hidden.T @ of_deep, deep.T @ error)])


def _shares(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    shares: Array = powers / powers.sum(1, keepdims=True)
    return shares


class LocalTrainer:
    """One worker's samples and AdamW, which goes on over the rounds."""

    def __init__(self, task: Task, seed: int, rate: float, samples: int = 32) -> None:
        self._task, self._samples, self._rate = task, samples, F32(rate)
        self._generator = np.random.default_rng(seed)
        self._mean, self._square = np.zeros(ELEMENTS, F32), np.zeros(ELEMENTS, F32)
        self._steps = 0
        self.changed: list[float] = []  # for each first step of a round, the part of the BF16 weights that changed

    def run(self, theta: Array, steps: int) -> Array:
        """The weights after that many steps from `theta`."""
        for number in range(steps):
            half = to_bf16(theta)
            theta = self._step(theta, self._task.gradient(half, *self._task.draw(self._generator, self._samples)))
            if number == 0:
                self.changed.append(float((to_bf16(theta) != half).mean()))
        return theta

    def _step(self, theta: Array, gradient: Array) -> Array:
        self._steps += 1
        self._mean += F32(0.1) * (gradient - self._mean)
        self._square += F32(0.05) * (gradient * gradient - self._square)
        mean = self._mean / F32(1 - 0.9**self._steps)
        square = self._square / F32(1 - 0.95**self._steps)
        stepped: Array = theta - self._rate * mean / (np.sqrt(square) + F32(1e-8))
        return stepped
