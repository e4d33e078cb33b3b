"""Where the tensors of a checkpoint are in the tensors of a module. Pure: names, shapes and indices."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, Iterable, Optional, Sequence

from dws.device_tensor import row_major_strides
from dws.layout import Range, elements_in


@dataclasses.dataclass(frozen=True)
class Piece:
    """A canonical tensor: a box of one of the module's tensors, with its dimensions in their order.

    Attributes:
      index: the index into the module's tensor: a number for each dimension that the canonical tensor does not have, else
        a slice without a step; dimensions at the end may be missing. Empty if the piece is all of it.
    """

    name: str
    index: tuple[Any, ...] = ()

    def view(self, tensor: Any) -> Any:
        """The piece of the module's tensor `tensor`, which is returned itself if that is all of it."""
        return tensor.detach()[self.index] if self.index else tensor

    def box(self, shape: Sequence[int]) -> tuple[Range, ...]:
        """What it has of each dimension of the module's tensor of that shape."""
        index = (*self.index, *(slice(None) for _ in shape[len(self.index) :]))
        return tuple(
            at.indices(extent)[:2] if isinstance(at, slice) else (at, at + 1)
            for at, extent in zip(index, shape)
        )

    def dims(self, shape: Sequence[int]) -> tuple[int, ...]:
        """For each of its dimensions, the dimension of the module's tensor."""
        dropped = {dim for dim, at in enumerate(self.index) if not isinstance(at, slice)}
        return tuple(dim for dim in range(len(shape)) if dim not in dropped)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Its own shape."""
        box = self.box(shape)
        return tuple(box[dim][1] - box[dim][0] for dim in self.dims(shape))

    def held(self, shape: Sequence[int], ranges: Sequence[Range]) -> Optional[tuple[Range, ...]]:
        """What a process that has `ranges` of the module's tensor has of the piece; None: nothing."""
        box = self.box(shape)
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, ranges)]
        if any(begin >= end for begin, end in both):
            return None
        return tuple(
            (both[dim][0] - box[dim][0], both[dim][1] - box[dim][0]) for dim in self.dims(shape)
        )

    def elements(self, shape: Sequence[int]) -> Optional[Range]:
        """[begin, end) of its elements in the module's tensor, in row-major order; None: they are not one range."""
        box = self.box(shape)
        cut = [dim for dim, extent in enumerate(shape) if box[dim] != (0, extent)]
        if any(box[dim][1] - box[dim][0] != 1 for dim in range(max(cut, default=0))):
            return None
        begin = sum(at * step for (at, _), step in zip(box, row_major_strides(shape)))
        return begin, begin + elements_in(box)


def index_of_view(
    shape: Sequence[int], extents: Sequence[int], strides: Sequence[int], offset: int
) -> Optional[tuple[Any, ...]]:
    """Returns the index of a view in a row-major tensor, in the form of Piece.index; None: it is no such box.

    Args:
      shape: of the tensor, which has elements.
      extents, strides, offset: of the view.
    """
    steps = row_major_strides(shape)
    first, left = [], offset
    for step in steps:
        first.append(left // step)
        left %= step
    for dims in itertools.combinations(range(len(shape)), len(extents)):
        if all(
            (extent == 1 or stride == steps[dim]) and first[dim] + extent <= shape[dim]
            for dim, extent, stride in zip(dims, extents, strides)
        ):
            index: list[Any] = list(first)
            for dim, extent in zip(dims, extents):
                index[dim] = slice(first[dim], first[dim] + extent)
            whole = all(at == slice(0, extent) for at, extent in zip(index, shape))
            return () if whole else tuple(index)
    return None


def cover(shape: Sequence[int], pieces: Iterable[Piece]) -> bool:
    """Returns whether each element of a tensor is in one of the pieces, and in no other."""
    boxes = [piece.box(shape) for piece in pieces]
    if sum(map(elements_in, boxes)) != math.prod(shape):
        return False
    bounds = [sorted({at for box in boxes for at in box[dim]}) for dim in range(len(shape))]
    numbers = [{at: i for i, at in enumerate(each)} for each in bounds]
    seen: set[tuple[int, ...]] = set()
    for box in boxes:
        cells = [range(number[low], number[high]) for number, (low, high) in zip(numbers, box)]
        for cell in itertools.product(*cells):
            if cell in seen:
                return False
            seen.add(cell)
    return True
