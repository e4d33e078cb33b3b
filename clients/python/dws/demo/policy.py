"""The toy policy, in numpy: an answer for each prompt, by the product of two matrices.

The trainer keeps float32 and casts to BF16, as trainers do; the engines have the BF16 bits. So small steps change few
of the weights that engines see.
"""

from __future__ import annotations

import hashlib
from typing import Any, Mapping

import numpy as np

PROMPTS = 64
ANSWERS = 16
WIDTH = 8192
SHAPES = {"prompts.weight": (PROMPTS, WIDTH), "answers.weight": (WIDTH, ANSWERS)}
PARAMETERS = (PROMPTS + ANSWERS) * WIDTH

Weights = Mapping[str, np.ndarray[Any, Any]]

# Large enough that a step changes the answers although it changes few of the rounded weights.
_SCALE = 16.0
_LEARNING_RATE = 3e-5
_BETA1, _BETA2, _EPSILON = 0.9, 0.99, 1e-8


def narrowed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 as the bits of BF16, rounded to the nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """BF16 bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def sha256(weights: Weights) -> str:
    """A hash over names, shapes and bits, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name} {list(weights[name].shape)}\n".encode())
        digest.update(np.ascontiguousarray(weights[name]).tobytes())
    return digest.hexdigest()


def probabilities(weights: Weights) -> np.ndarray[Any, Any]:
    """The probability of each answer to each prompt.

    Args:
      weights: BF16 bits.
    """
    logits = widened(weights["prompts.weight"]) @ widened(weights["answers.weight"])
    logits = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(logits / logits.sum(axis=1, keepdims=True))


def sample(weights: Weights, prompts: np.ndarray[Any, Any], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """An answer to each of the prompts."""
    below = probabilities(weights)[prompts].cumsum(axis=1)
    return np.asarray((random.random((len(prompts), 1)) > below[:, :-1]).sum(axis=1))


def rewards(prompts: np.ndarray[Any, Any], answers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """1 for the answer that belongs to the prompt, else 0."""
    return np.asarray(answers == (prompts * 7 + 3) % ANSWERS, np.float32)


class Learner:
    """The trainer's float32 weights and its optimizer, which is Adam."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        deviation = _SCALE / np.sqrt(WIDTH)
        self.weights = {
            name: (random.standard_normal(shape) * deviation).astype(np.float32)
            for name, shape in SHAPES.items()
        }
        self._means = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        self._squares = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        self._steps = 0

    def improve(self, prompts: np.ndarray[Any, Any], answers: np.ndarray[Any, Any]) -> float:
        """A step of policy gradient. Returns the mean reward of the answers."""
        reward = rewards(prompts, answers)
        advantage = (reward - reward.mean()) / len(prompts)
        taken, total = np.zeros((PROMPTS, ANSWERS), np.float32), np.zeros((PROMPTS, 1), np.float32)
        np.add.at(taken, (prompts, answers), advantage)
        np.add.at(total[:, 0], prompts, advantage)
        towards = taken - total * probabilities(self.bits())
        first, second = self.weights.values()
        self._ascend({"prompts.weight": towards @ second.T, "answers.weight": first.T @ towards})
        return float(reward.mean())

    def bits(self) -> dict[str, np.ndarray[Any, Any]]:
        """The weights as engines get them: BF16 bits."""
        return {name: narrowed(weight) for name, weight in self.weights.items()}

    def _ascend(self, gradients: Weights) -> None:
        self._steps += 1
        for name, gradient in gradients.items():
            mean, square = self._means[name], self._squares[name]
            mean += (1 - _BETA1) * (gradient - mean)
            square += (1 - _BETA2) * (gradient * gradient - square)
            step = mean / (1 - _BETA1**self._steps)
            step /= np.sqrt(square / (1 - _BETA2**self._steps)) + _EPSILON
            self.weights[name] += np.float32(_LEARNING_RATE) * step
