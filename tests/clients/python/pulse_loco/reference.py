"""The equations of PULSELoCo again, in the plainest way: one list of workers, dense arrays, no objects. Rounds are
compared with it bit for bit."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

Array = np.ndarray[Any, Any]
F32 = np.float32


def bf16(x: Array) -> Array:
    """By value, not by bits: 8 significant bits, fewer below 2^-126, ties to even."""
    exact = x.astype(np.float64)
    _, exponents = np.frexp(exact)
    unit = np.ldexp(1.0, np.maximum(exponents, -125) - 8)
    with np.errstate(over="ignore"):
        rounded: Array = (np.rint(exact / unit) * unit).astype(F32)
    return np.where(np.abs(exact) >= 2.0**127 * (2 - 2.0**-8), np.copysign(np.inf, x), rounded).astype(F32)


class Reference:
    """All workers at once."""

    def __init__(self, theta: Array, workers: int, outer_lr: float, momentum: float, half: bool) -> None:
        self.theta, self.u = theta.copy(), np.zeros_like(theta)
        self.residuals = [np.zeros_like(theta) for _ in range(workers)]
        self._lr, self._momentum, self._half = F32(outer_lr), F32(momentum), half

    def sent(self, rank: int, theta_r: Array) -> tuple[Array, Array]:
        """What a worker sends, and its residual after that."""
        s = self.residuals[rank] + (self.theta - theta_r)
        v = bf16(s) if self._half else s
        mask = (bf16(self.theta - s) != bf16(self.theta)) & (v != 0)
        return np.where(mask, v, F32(0)), np.where(mask, s - v, s)

    def round(self, thetas: Sequence[Array]) -> None:
        self.round_of(dict(enumerate(thetas)))

    def round_of(self, thetas: Mapping[int, Array]) -> None:
        """A round with the contributions of these ranks."""
        sums = np.zeros(self.theta.size, np.float64)
        for rank, theta_r in sorted(thetas.items()):
            v, self.residuals[rank] = self.sent(rank, theta_r)
            sums = sums + v.astype(np.float64)
        d = sums.astype(F32) / F32(len(thetas))
        self.u = (self._momentum * self.u) + d
        self.theta = self.theta - self._lr * (d + self._momentum * self.u)


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype == F32 and a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


def weights(generator: np.random.Generator, elements: int) -> Array:
    """Weights of several magnitudes, with zeros of both signs and subnormals."""
    theta = (generator.normal(size=elements) * 0.03).astype(F32)
    theta *= F32(2) ** generator.integers(-6, 3, elements).astype(F32)
    theta[::97], theta[1::101] = F32(0), F32(-0.0)
    theta[2::103] = (generator.integers(1, 1 << 23, theta[2::103].size).astype(np.uint32)).view(F32)
    return theta


def local_steps(generator: np.random.Generator, theta: Array, size: float = 2e-5) -> Array:
    """What a worker's steps make of the weights."""
    moved: Array = theta + (generator.normal(size=theta.size) * size).astype(F32)
    moved[3::89] = theta[3::89]
    return moved
