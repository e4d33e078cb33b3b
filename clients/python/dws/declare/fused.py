"""Finds the elements of canonical tensors in a tensor that a trainer has fused from them and then
cut.

A fused tensor is a list of pieces. Each is a box of it, and the place of that box in one canonical
tensor, where it may have steps and its dimensions may have another order. These functions are all
the rules:

    whole         a tensor under another name; an alias of a tied one
    row           one expert of a tensor that has all of them
    every         every n-th row of a dimension: one side of gate and up that lie in turn
    transpose     the two dimensions swapped
    concat        one after the other: what a rank has of gate and of up
    interleave    the next block of each in turn: qkv by groups of heads
    repeat        blocks several times: key and value heads, on ranks that share one
    pad           rows that belong to no tensor: a vocabulary of round size
    shard         what one rank has

Pure. The trainer's side of tensors whose elements are in place already is dws.declare.experts.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence, TypeVar

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Canonical:
    """A tensor of the checkpoint."""

    name: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Piece:
    """A box of a fused tensor, and its place in a canonical one.

    Attributes:
      own: for each dimension of the fused tensor, its indices, which are consecutive.
      place: for each dimension of the canonical tensor, its indices.
      axes: for each dimension of the canonical tensor, the dimension of the fused tensor that runs
        along it; None: the piece has one index of it.
    """

    tensor: Canonical
    own: tuple[range, ...]
    place: tuple[range, ...]
    axes: tuple[Optional[int], ...]

    def narrowed(self, dim: int, begin: int, end: int) -> Optional[Piece]:
        """Returns the part of this piece in the indices [begin, end) of a dimension of the fused
        tensor, which become its first ones; None: it has none there."""
        own = self.own[dim]
        low, high = max(begin, own.start), min(end, own.stop)
        if low >= high:
            return None
        inside = slice(low - own.start, high - own.start)
        return self._with(dim, range(low - begin, high - begin), inside)

    def within(self, dim: int, begin: int, end: int) -> Optional[Piece]:
        """Returns the part of this piece in the indices [begin, end) of a dimension of the canonical
        tensor; None: it has none there."""
        place = self.place[dim]
        low = max(-(-(begin - place.start) // place.step), 0)
        high = min(-(-(end - place.start) // place.step), len(place))
        if low >= high:
            return None
        axis = self.axes[dim]
        return (
            self if axis is None else self._with(axis, self.own[axis][low:high], slice(low, high))
        )

    def moved(self, dim: int, distance: int) -> Piece:
        """The same elements elsewhere in the fused tensor."""
        own = self.own[dim]
        own = range(own.start + distance, own.stop + distance)
        return Piece(self.tensor, _set(self.own, dim, own), self.place, self.axes)

    def every(self, dim: int, parts: int, first: int) -> Piece:
        """Every `parts`-th index of `dim`, from `first`, one after the other; of a piece that has all."""
        count = len(range(first, len(self.own[dim]), parts))
        return self._with(dim, range(count), slice(first, None, parts))

    def _with(self, dim: int, own: range, indices: slice) -> Piece:
        place = tuple(
            each[indices] if axis == dim else each for each, axis in zip(self.place, self.axes)
        )
        return Piece(self.tensor, _set(self.own, dim, own), place, self.axes)


@dataclasses.dataclass(frozen=True)
class Fused:
    """Pieces do not overlap in the tensor; elements that are in no piece are padding."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def whole(tensor: Canonical) -> Fused:
    every_index = tuple(range(extent) for extent in tensor.shape)
    axes = tuple(range(len(tensor.shape)))
    return Fused(tensor.shape, (Piece(tensor, every_index, every_index, axes),))


def row(tensor: Canonical, index: int) -> Fused:
    """One index of the first dimension, without that dimension."""
    inner = tuple(range(extent) for extent in tensor.shape[1:])
    axes = (None, *range(len(inner)))
    piece = Piece(tensor, inner, (range(index, index + 1), *inner), axes)
    return Fused(tensor.shape[1:], (piece,))


def every(tensor: Fused, dim: int, parts: int, first: int) -> Fused:
    """Every `parts`-th index of `dim`, from `first`. Pieces must have all of `dim`."""
    assert all(piece.own[dim] == range(tensor.shape[dim]) for piece in tensor.pieces), tensor
    pieces = tuple(piece.every(dim, parts, first) for piece in tensor.pieces)
    count = len(range(first, tensor.shape[dim], parts))
    return Fused(_set(tensor.shape, dim, count), pieces)


def transpose(tensor: Fused) -> Fused:
    """Swaps the two dimensions of a matrix."""

    def swapped(piece: Piece) -> Piece:
        axes = tuple(None if axis is None else 1 - axis for axis in piece.axes)
        return dataclasses.replace(piece, own=piece.own[::-1], axes=axes)

    return Fused(tensor.shape[::-1], tuple(swapped(piece) for piece in tensor.pieces))


def concat(parts: Sequence[Fused], dim: int = 0) -> Fused:
    return interleave(parts, 1, dim)


def interleave(parts: Sequence[Fused], groups: int, dim: int = 0) -> Fused:
    """`groups` groups, each with the next block of every part; `groups` divides their extents."""
    pieces, at = [], 0
    for group in range(groups):
        for part in parts:
            assert part.shape[dim] % groups == 0, (part.shape, groups)
            size = part.shape[dim] // groups
            block = shard(part, groups, group, dim)
            pieces += [piece.moved(dim, at) for piece in block.pieces]
            at += size
    return Fused(_set(parts[0].shape, dim, at), tuple(pieces))


def repeat(tensor: Fused, blocks: int, times: int, dim: int = 0) -> Fused:
    """`blocks` blocks, each `times` times in a row."""
    cut = [shard(tensor, blocks, block, dim) for block in range(blocks)]
    return concat([block for block in cut for _ in range(times)], dim)


def pad(tensor: Fused, extent: int, dim: int = 0) -> Fused:
    """`extent` indices of `dim`; those that the tensor lacks are padding."""
    assert extent >= tensor.shape[dim], (tensor.shape, extent)
    return Fused(_set(tensor.shape, dim, extent), tensor.pieces)


def shard(tensor: Fused, parts: int, index: int, dim: int = 0) -> Fused:
    """Part `index` of `parts` equal ones."""
    assert tensor.shape[dim] % parts == 0, (tensor.shape, parts)
    if parts == 1:
        return tensor
    size = tensor.shape[dim] // parts
    found = [piece.narrowed(dim, index * size, (index + 1) * size) for piece in tensor.pieces]
    return Fused(_set(tensor.shape, dim, size), tuple(piece for piece in found if piece))


def _set(values: tuple[_T, ...], index: int, value: _T) -> tuple[_T, ...]:
    return (*values[:index], value, *values[index + 1 :])
