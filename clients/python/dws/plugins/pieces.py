"""Boxes of an engine's parameters and the boxes of canonical tensors that are in them: from captured
writes, from a mapping, as a mapping, and what two of them disagree on. Pure: names and shapes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Iterable, Iterator, Mapping, Optional, Sequence

from dws.errors import LayoutError
from dws.layout import Range, elements_in
from dws.mapping import Box, CanonicalPart, Fused, Part, Parts, Slice, Source, Viewed, ranges_of
from dws.plugins.recording import Write
from dws.plugins.strided import Placement, Strided, boxes, compose, row_major

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Piece:
    """A box of a parameter, copied from a box of a canonical tensor.

    Attributes:
      tensor: the canonical name.
      own: [begin, end) on each dimension of the parameter.
      box: [begin, end) on each dimension of the canonical tensor.
      axes: for each dimension of the parameter the one of the canonical tensor that runs along it;
        None where the box has an extent of 1.
    """

    tensor: str
    own: tuple[Range, ...]
    box: tuple[Range, ...]
    axes: tuple[Optional[int], ...]

    @property
    def count(self) -> int:
        return elements_in(self.own)

    def within(self, own: Sequence[Range]) -> "Piece":
        """Its part that is in the box `own` of the parameter, which it covers."""
        box = list(self.box)
        for (begin, end), (first, _), axis in zip(own, self.own, self.axes):
            if axis is not None:
                start = box[axis][0] + begin - first
                box[axis] = (start, start + end - begin)
        axes = tuple(None if e - b == 1 else axis for (b, e), axis in zip(own, self.axes))
        return Piece(self.tensor, tuple(own), tuple(box), axes)

    def __str__(self) -> str:
        turned = [axis for axis in self.axes if axis is not None]
        return f"'{self.tensor}'{_text(self.box)}{' transposed' if turned != sorted(turned) else ''}"


def pieces_of(
    shape: tuple[int, ...], strides: tuple[int, ...], writes: Iterable[Write], canonical: Shapes
) -> tuple[Piece, ...]:
    """The writes into a parameter, in as few boxes as possible.

    Raises:
      IrregularError: they are no boxes.
    """
    found = []
    live = Placement(shape, Strided(0, row_major(shape)), Strided(0, strides))
    for tensor, placement in writes:
        assert tensor is not None, "constants are no pieces"
        origin = canonical[tensor]
        same = strides == row_major(shape)
        for logical in [placement] if same else compose(live, placement):
            for one in boxes(logical, shape, origin):
                own, own_dims = _ranges(one.own, one.sizes, shape)
                box, dims = _ranges(one.source, one.sizes, origin)
                pairs = dict(zip(own_dims, dims))
                axes = tuple(pairs.get(dim) for dim in range(len(shape)))
                found.append(Piece(tensor, own, box, axes))
    return joined(found)


def _ranges(
    side: Strided, sizes: Sequence[int], shape: Sequence[int]
) -> tuple[tuple[Range, ...], list[int]]:
    """The box at `side` of a contiguous tensor, and the dimension of each of `sizes`."""
    steps = row_major(shape)
    dim_of = {step: dim for dim, (step, extent) in enumerate(zip(steps, shape)) if extent > 1}
    dims = [dim_of[step] for step in side.strides]
    ranges = []
    for dim, (step, extent) in enumerate(zip(steps, shape)):
        begin = side.offset // step % extent
        ranges.append((begin, begin + (sizes[dims.index(dim)] if dim in dims else 1)))
    return tuple(ranges), dims


def joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The same elements in as few boxes as joining neighbours gives, in their order."""
    kept = sorted(pieces, key=lambda piece: (piece.tensor, piece.own))
    again = True
    while again:
        again = False
        for dim in range(len(kept[0].own) if kept else 0):
            # Neighbours on `dim` follow each other, if the other dimensions go first.
            kept.sort(key=lambda p: (p.tensor, p.own[:dim], p.own[dim + 1 :], p.own[dim]))
            merged: list[Piece] = []
            for piece in kept:
                both = _join(merged[-1], piece, dim) if merged else None
                if both is None:
                    merged.append(piece)
                else:
                    merged[-1] = both
            again = again or len(merged) < len(kept)
            kept = merged
    return tuple(sorted(kept, key=lambda piece: piece.own))


def _join(a: Piece, b: Piece, dim: int) -> Optional[Piece]:
    """Returns `a` and, after it on dimension `dim`, `b` as one box; None if they do not form a box.
    """
    if a.tensor != b.tensor or a.own[dim][1] != b.own[dim][0]:
        return None
    if any(a.own[d] != b.own[d] for d in range(len(a.own)) if d != dim):
        return None
    differ = [axis for axis in range(len(a.box)) if a.box[axis] != b.box[axis]]
    if len(differ) != 1 or a.box[differ[0]][1] != b.box[differ[0]][0]:
        return None
    (axis,) = differ
    for piece in (a, b):
        others = [x for d, x in enumerate(piece.axes) if d != dim]
        if axis in others or piece.axes[dim] not in (None, axis):
            return None
        # A box of one element on `dim` has to be one of one element on `axis`.
        if _extent(piece.own[dim]) != _extent(piece.box[axis]):
            return None
    axes = tuple(
        axis if d == dim else x if x is not None else b.axes[d] for d, x in enumerate(a.axes)
    )
    own = tuple((a.own[d][0], b.own[d][1]) for d in range(len(a.own)))
    box = tuple((a.box[d][0], b.box[d][1]) for d in range(len(a.box)))
    return Piece(a.tensor, own, box, axes)


def pieces_of_source(shape: tuple[int, ...], source: Source, canonical: Shapes) -> tuple[Piece, ...]:
    """Returns the pieces that a mapping of dws.Engine.attach gives for a parameter.

    Raises:
      LayoutError: the source is a tensor that the checkpoint does not have.
    """
    return joined(_pieces_of_source(shape, source, canonical))


def _pieces_of_source(
    shape: tuple[int, ...], source: Source, canonical: Shapes
) -> Iterator[Piece]:
    assert not isinstance(source, Viewed), "no table has views"
    whole = [(0, extent) for extent in shape]
    if source is None:
        return
    if isinstance(source, Parts):
        for part in source.parts:
            given = [*part.box, *whole[len(part.box) :]]
            kept = [dim for dim, bounds in enumerate(given) if isinstance(bounds, tuple)]
            own = [bounds if isinstance(bounds, tuple) else (bounds, bounds + 1) for bounds in given]
            yield _piece(own, kept, part.source, canonical)
    elif isinstance(source, Fused):
        begin = 0
        extents = source.extents("of an engine", shape[source.dim])
        for one, extent in zip(source.parts, extents):
            own = [*whole]
            own[source.dim] = (begin, begin + extent)
            yield _piece(own, range(len(shape)), one, canonical)
            begin += extent
    else:
        yield _piece(whole, range(len(shape)), source, canonical)


def _piece(
    own: Sequence[Range], kept: Sequence[int], source: CanonicalPart, canonical: Shapes
) -> Piece:
    name = source if isinstance(source, str) else source.tensor
    if name not in canonical:
        raise LayoutError(f"the checkpoint has no tensor '{name}'")
    box = [(0, extent) for extent in canonical[name]]
    for dim, bounds in ranges_of(source).items():
        box[dim] = bounds
    axes = tuple(
        kept.index(dim) if dim in kept and _extent(own[dim]) > 1 else None
        for dim in range(len(own))
    )
    return Piece(name, tuple(own), tuple(box), axes)


def source_of_pieces(
    shape: tuple[int, ...], pieces: Sequence[Piece], canonical: Shapes
) -> Source:
    """Returns the pieces in the form that dws.Engine.attach takes; None for a parameter that is all
    constant. Viewed, if the tensors have the parameter's dimensions in another order, or have one of them
    in two.

    Raises:
      LayoutError: a piece that it cannot express.
    """
    if not pieces:
        return None
    error: Optional[LayoutError] = None
    for finer, split in ((shape, pieces), *_splits(shape, pieces, canonical)):
        order = _order_of(split)
        try:
            parts = [_part(_turned(piece, order), canonical[piece.tensor]) for piece in split]
        except LayoutError as refusal:
            error = error or refusal
            continue
        whole = tuple((0, finer[dim]) for dim in order)
        alone = len(parts) == 1 and tuple(parts[0].box) == whole
        source = parts[0].source if alone else Parts(parts)
        return source if (finer, order) == (shape, tuple(range(len(shape)))) else Viewed(source, finer, order)
    assert error is not None
    raise error


def _splits(
    shape: tuple[int, ...], pieces: Sequence[Piece], canonical: Shapes
) -> Iterator[tuple[tuple[int, ...], Sequence[Piece]]]:
    """The parameter and its pieces with one dimension split in two, as tensors with a dimension more may have them:
    bytes of MXFP4 are in blocks of 16."""
    origins = {canonical[piece.tensor] for piece in pieces}
    if any(len(origin) != len(shape) + 1 for origin in origins):
        return
    for dim in reversed(range(len(shape))):
        inner = {origin[dim + 1] for origin in origins}
        size = min(inner)
        if len(inner) > 1 or size < 2 or shape[dim] % size:
            continue
        if any(own // size != (end - 1) // size for own, end in (piece.own[dim] for piece in pieces)):
            continue
        finer = (*shape[:dim], shape[dim] // size, size, *shape[dim + 1 :])
        yield finer, joined(_split(piece, dim, size) for piece in pieces)


def _split(piece: Piece, dim: int, size: int) -> Piece:
    """Its box lies in one of the parts of `size` elements."""
    begin, end = piece.own[dim]
    at = begin // size
    own = (*piece.own[:dim], (at, at + 1), (begin - at * size, end - at * size), *piece.own[dim + 1 :])
    return Piece(piece.tensor, own, piece.box, (*piece.axes[:dim], None, *piece.axes[dim:]))


def _order_of(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """The parameter's dimensions in the order in which the canonical tensors have them, as the first piece that is
    transposed says; boxes of it with an extent of 1 have no order."""
    for piece in pieces:
        along = [dim for dim, axis in enumerate(piece.axes) if axis is not None]
        by_axis = iter(sorted(along, key=lambda dim: piece.axes[dim] or 0))
        order = tuple(next(by_axis) if dim in along else dim for dim in range(len(piece.axes)))
        if list(order) != sorted(order):
            return order
    return tuple(range(len(pieces[0].axes)))


def _turned(piece: Piece, order: Sequence[int]) -> Piece:
    return Piece(
        piece.tensor, tuple(piece.own[d] for d in order), piece.box, tuple(piece.axes[d] for d in order)
    )


def _part(piece: Piece, canonical: tuple[int, ...]) -> Part:
    cut = [d for d, extent in enumerate(canonical) if piece.box[d] != (0, extent)]
    source: CanonicalPart = piece.tensor
    if len(cut) == 1:
        source = Slice(piece.tensor, cut[0], *piece.box[cut[0]])
    elif cut:
        source = Box(piece.tensor, {dim: piece.box[dim] for dim in cut})
    single = [dim for dim, bounds in enumerate(piece.own) if _extent(bounds) == 1]
    count = len(piece.own) - len(canonical)
    for dropped in itertools.combinations(single, max(count, 0)):
        kept = [dim for dim in range(len(piece.own)) if dim not in dropped]
        if _runs_along(piece, kept):
            return Part(
                source, [b[0] if dim in dropped else b for dim, b in enumerate(piece.own)]
            )
    raise LayoutError(
        f"{piece} is transposed in another way than other parts of the parameter, or has dimensions that the parameter "
        "does not have"
    )


def _runs_along(piece: Piece, kept: Sequence[int]) -> bool:
    """Returns whether the dimensions `kept` of the parameter are those of the canonical tensor, in
    order."""
    return len(kept) == len(piece.box) and all(
        _extent(piece.own[dim]) == _extent(bounds) and piece.axes[dim] in (None, axis)
        for axis, (dim, bounds) in enumerate(zip(kept, piece.box))
    )


def difference(table: Sequence[Piece], loaded: Sequence[Piece]) -> Optional[str]:
    """Returns in words the first box on which a table and load_weights disagree; None if there is
    none."""
    if set(table) == set(loaded):
        return None
    for one in table:
        rest = one.count
        for other in loaded:
            met = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one.own, other.own)]
            if any(begin >= end for begin, end in met):
                continue
            said, found = one.within(met), other.within(met)
            if said != found:
                return f"{_text(met)}: table says {said}, load_weights says {found}"
            rest -= said.count
        if rest:
            return f"{_text(one.own)}: table says {one}, load_weights copies nothing to {rest} of it"
    for other in loaded:
        if other.count != sum(_common(other, one) for one in table):
            return f"{_text(other.own)}: load_weights says {other}, table has nothing for all of it"
    return None


def _common(a: Piece, b: Piece) -> int:
    return math.prod(
        max(0, min(x[1], y[1]) - max(x[0], y[0])) for x, y in zip(a.own, b.own)
    )


def _extent(bounds: Range) -> int:
    return bounds[1] - bounds[0]


def _text(box: Sequence[Range]) -> str:
    return f"[{', '.join(f'{begin}:{end}' for begin, end in box)}]"
