"""The equations of PULSELoCo on flat FP32 arrays. Every operation is one rounding of IEEE FP32 (to nearest, ties to
even, subnormals kept) in the order that is written here, so all workers get the same bits.

Needs numpy only, and that nothing in the process flushes subnormals to zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from dws.dtypes import DType
from dws.errors import DTypeError, InvalidArgumentError, LayoutError

Array = np.ndarray[Any, Any]
F32 = np.float32


class Settings(NamedTuple):
    """What all workers of a job have in common.

    Attributes:
      outer_lr: eta, a positive FP32 number.
      momentum: mu, 0 or more and below 1.
      values: what is sent of each element: F32 or BF16. What BF16 rounds away stays in the residual.
    """

    outer_lr: float = 0.7
    momentum: float = 0.9
    values: DType = DType.F32

    def check(self) -> None:
        """Raises InvalidArgumentError, or DTypeError for the values."""
        lr, mu = float(F32(self.outer_lr)), float(F32(self.momentum))
        if not (np.isfinite(lr) and lr > 0 and 0 <= mu < 1):
            raise InvalidArgumentError(
                f"outer_lr {self.outer_lr}, momentum {self.momentum}: expected a finite rate above 0, and momentum "
                "of 0 or more, below 1"
            )
        if self.values not in (DType.F32, DType.BF16):
            raise DTypeError(f"values of {self.values.name}: expected F32 or BF16")


class Selection(NamedTuple):
    """One worker's part of a round, each array with as many elements as the weights.

    Attributes:
      values: FP32; what is sent, 0 where nothing is.
      residual: FP32; what the worker keeps if the values count.
    """

    values: Array
    residual: Array


def to_bf16(x: Array) -> Array:
    """FP32 numbers rounded to BF16 (to nearest, ties to even), as FP32. Not for NaN."""
    bits = x.view(np.uint32)
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)
    return rounded.view(F32)


def require_flat(name: str, array: Array, elements: Optional[int] = None) -> None:
    """Raises DTypeError or LayoutError unless `array` is numpy's, FP32, 1-D, and has so many elements."""
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        raise DTypeError(f"{name} is {getattr(array, 'dtype', type(array).__name__)}: expected numpy's float32")
    expected = array.size if elements is None else elements
    if array.shape != (expected,):
        raise LayoutError(f"{name} is {list(array.shape)}: expected [{expected}]")


def require_finite(what: str, x: Array) -> None:
    """Raises InvalidArgumentError, with the first element that is NaN or infinite."""
    finite = np.isfinite(x)
    if not finite.all():
        at = int(np.argmin(finite))
        raise InvalidArgumentError(
            f"{what} has {x.size - int(finite.sum())} of {x.size} elements that are not finite, the first is number "
            f"{at} ({x[at]}): leave this worker out of the round, or abandon it and repeat its local steps"
        )


def select(theta_g: Array, residual: Array, theta_r: Array, values: DType) -> Selection:
    """s = e + (theta_g - theta_r); an element is sent if BF16(theta_g - s) is another number than BF16(theta_g). All
    arguments are finite FP32. A value that BF16 rounds to 0 stays in the residual, and nothing is sent.

    Raises:
      InvalidArgumentError: s or a value is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        s = residual + (theta_g - theta_r)
        require_finite("the residual and this round's change together", s)
        sent = to_bf16(s) if values is DType.BF16 else s
        # Numbers are compared, not bits: from 0 to -0 is no change.
        chosen = to_bf16(theta_g - s) != to_bf16(theta_g)
    out = np.where(chosen, sent, F32(0))
    require_finite("the values to send", out)
    return Selection(out, np.where(chosen, s - out, s))


def total(parts: Sequence[tuple[Array, Array]], elements: int) -> Array:
    """The sum of the workers' values: FP64, added in the order of `parts` (by rank), rounded once to FP32.

    Args:
      parts: of each worker the ascending positions (below `elements`), and its values there.

    Raises:
      InvalidArgumentError: a sum is beyond FP32.
    """
    sums = np.zeros(elements, np.float64)
    for positions, values in parts:
        sums[positions] += values
    with np.errstate(over="ignore"):
        out = sums.astype(F32)
    require_finite("the sum over the workers", out)
    return out


def outer_step(theta_g: Array, u: Array, sums: Array, workers: int, settings: Settings) -> tuple[Array, Array]:
    """d = sums / workers; u' = mu u + d; theta' = theta_g - eta (d + mu u'). Nesterov's step.

    Returns:
      The new theta_g and u.

    Raises:
      InvalidArgumentError: one of them is not finite.
    """
    mu, eta = F32(settings.momentum), F32(settings.outer_lr)
    with np.errstate(over="ignore", invalid="ignore"):
        d = sums / F32(workers)
        new_u = mu * u
        new_u += d
        step = mu * new_u
        step += d
        step *= eta
        new_theta = theta_g - step
    require_finite("the momentum after this round", new_u)
    require_finite("theta_g after this round", new_theta)
    return new_theta, new_u
