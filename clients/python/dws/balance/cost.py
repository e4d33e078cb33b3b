"""What a sequence costs: seconds, or any unit that is proportional to them, by its length."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any, Iterable, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from dws.errors import InvalidArgumentError

# Longer sequences are refused: their squares stay exact in double precision.
LENGTH_MAX = 2**26


def checked_length(value: Any, what: str) -> int:
    """Returns a sequence length.

    Args:
      what: the sequence in words, for the message.

    Raises:
      InvalidArgumentError: it is no whole number of 1 to LENGTH_MAX tokens.
    """
    try:
        length = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        length = None
    if length is None or not 1 <= length <= LENGTH_MAX:
        raise InvalidArgumentError(
            f"{what} has the length {value!r:.80}: expected a whole number of 1 to {LENGTH_MAX} tokens"
        )
    return length


def checked_lengths(lengths: Iterable[Any], what: str = "sequence") -> NDArray[np.int64]:
    """Returns sequence lengths as an array.

    Raises:
      InvalidArgumentError: as checked_length, naming the index.
    """
    checked = [checked_length(value, f"{what} {at}") for at, value in enumerate(lengths)]
    return np.array(checked, np.int64)


def check_fits(length: int, limit: Optional[int], what: str) -> None:
    """Checks that a sequence fits into a microbatch.

    Args:
      limit: tokens that fit; None if all do.
      what: the sequence in words, for the message.

    Raises:
      InvalidArgumentError: it does not fit.
    """
    if limit is not None and length > limit:
        raise InvalidArgumentError(
            f"{what} has {length} tokens, more than the limit of {limit} a microbatch: raise the "
            "limit, or cut or leave out the sequence"
        )


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a sequence of s tokens: a * s**2 + b * s. Only attention is quadratic.

    A microbatch costs the sum of its sequences, which see only themselves. Only the ratio b / a
    matters to a plan: the length at which both parts are equal.

    Attributes:
      a: per square token.
      b: per token.

    Raises:
      InvalidArgumentError: on construction: one is negative or not finite, or both are zero.
    """

    a: float
    b: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.a) and math.isfinite(self.b)):
            raise InvalidArgumentError(f"expected finite costs, found a {self.a!r}, b {self.b!r}")
        if min(self.a, self.b) < 0 or max(self.a, self.b) == 0:
            raise InvalidArgumentError(
                "expected costs that are not negative, and one above zero, "
                f"found a {self.a!r}, b {self.b!r}"
            )

    @classmethod
    def fitted(cls, measured: Iterable[tuple[Sequence[int], float]]) -> "Cost":
        """The cost, in seconds, that fits measured microbatches best: least squares, not negative.

        Args:
          measured: for each microbatch the lengths of its sequences, and the seconds it took.

        Raises:
          InvalidArgumentError: a length or a time is wrong; or there are fewer than two
            microbatches; or all have the same ratio of square tokens to tokens.
        """
        rows, times = [], []
        for at, (lengths, seconds) in enumerate(measured):
            tokens = checked_lengths(lengths, f"microbatch {at}: sequence").astype(np.float64)
            if not (len(tokens) and math.isfinite(seconds) and seconds > 0):
                raise InvalidArgumentError(
                    f"microbatch {at} has {len(tokens)} sequences and took {seconds!r} s: expected "
                    "at least one sequence and a time above zero"
                )
            rows.append((float((tokens**2).sum()), float(tokens.sum())))
            times.append(float(seconds))
        if len(rows) < 2:
            raise InvalidArgumentError(
                f"expected at least two measured microbatches, found {len(rows)}"
            )
        # The columns are scaled: they differ by the length of a sequence.
        matrix, seconds_of = np.array(rows), np.array(times)
        scale = matrix.max(axis=0)
        solution, _, rank, _ = np.linalg.lstsq(matrix / scale, seconds_of, rcond=1e-9)
        if rank < 2:
            raise InvalidArgumentError(
                "expected microbatches of short and of long sequences: the measured ones all have "
                "the same ratio of square tokens to tokens, which does not tell a and b apart"
            )
        if solution.min() < 0:  # then the best one that is not negative has a zero
            only = matrix.T @ seconds_of / (matrix**2).sum(axis=0)
            errors = ((matrix * only - seconds_of[:, None]) ** 2).sum(axis=0)
            solution = np.where(np.arange(2) == errors.argmin(), only * scale, 0.0)
        return cls(*(float(value) for value in solution / scale))

    def of(self, lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the cost of each sequence, given their lengths in tokens."""
        tokens = np.asarray(lengths, np.float64)
        result: NDArray[np.float64] = (self.a * tokens + self.b) * tokens
        return result
