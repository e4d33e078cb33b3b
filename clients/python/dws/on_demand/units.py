"""The units of a model, as a rank declares them to its sender, and where each tensor lies. Pure: needs no torch.

FSDP2 cuts a parameter into equal numbers of rows, one a rank, filled up with rows of zeros: rank r has rows [r c, (r + 1) c)
of those that there are, where c = ceil(rows / ranks). In the arrays of a collective each rank's part has the unit's
parameters one after the other, each filled up to c rows. In the sender's arena each parameter is whole.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Sequence

from dws.errors import StateError
from dws.memory import aligned

# The sender's record takes these, before the gradients.
RECORD_BYTES = 8192
_TORCH_MIN = (2, 9)
_GRADIENT_ALIGNMENT = 16  # elements


@dataclasses.dataclass(frozen=True)
class UnitParameter:
    """Attributes:
    name: under which it is published.
    shape: of the whole parameter; at least one dimension.
    trains: whether it gets a gradient.
    """

    name: str
    shape: tuple[int, ...]
    trains: bool

    def rows_each(self, ranks: int) -> int:
        """c: the rows of a rank, filled up."""
        return -(-self.shape[0] // ranks)

    def row_elements(self) -> int:
        return math.prod(self.shape[1:])

    def padded(self, ranks: int) -> int:
        """The elements of a rank's part, filled up."""
        return self.rows_each(ranks) * self.row_elements()

    def rows_of(self, rank: int, ranks: int) -> tuple[int, int]:
        """The rows [begin, end) that a rank has."""
        each, rows = self.rows_each(ranks), self.shape[0]
        return min(rank * each, rows), min((rank + 1) * each, rows)


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one fully_shard wraps.

    Attributes:
      name: of the module.
      parameters: in FSDP2's order.
    """

    name: str
    parameters: tuple[UnitParameter, ...]

    def gathered_elements(self, ranks: int) -> int:
        """The elements of one rank's part of an all-gather."""
        return sum(p.padded(ranks) for p in self.parameters)

    def shard_elements(self, ranks: int) -> int:
        """The elements of one rank's part of a reduce-scatter: the parameters that train."""
        return sum(p.padded(ranks) for p in self.parameters if p.trains)

    def arena_offsets(self, itemsize: int) -> tuple[list[int], int]:
        """Where each parameter begins in the unit's bytes in the arena, and how many there are.

        Args:
          itemsize: bytes of an element.
        """
        offsets, end = [], 0
        for parameter in self.parameters:
            offsets.append(end)
            end = aligned(end + math.prod(parameter.shape) * itemsize)
        return offsets, end


def require_torch(version: str) -> None:
    """Raises StateError if torch is too old: its FSDP2 has to take communication objects of others."""
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _TORCH_MIN:
        raise StateError(f"training on demand needs torch 2.9 or later; found {version}")


def gradient_offsets(units: Sequence[Unit], ranks: int) -> tuple[list[int], int]:
    """The number of each unit's first element among a rank's gradients, and the number of elements, both with what
    fills units up."""
    firsts, end = [], 0
    for unit in units:
        firsts.append(end)
        end = aligned(end + unit.shard_elements(ranks), _GRADIENT_ALIGNMENT)
    return firsts, end
