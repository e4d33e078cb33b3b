"""Which element of one memory is copied from which element of another, for tensors of any strides.

Pure: offsets, sizes and strides in elements. For dws.plugins.capture.

The only operation is `compose`: of "a is copied from b" and "b is copied from c" it makes "a is copied
from c". Reading a part of a buffer, finding what two writes have in common, and comparing two
mappings are compositions.

How: the strides on both sides of b, sorted, each a multiple of the one before, are the places of a
number system. A range of addresses that does not cross a place is an interval of one digit, so
both sides are cut into boxes of digits, and boxes meet digit by digit.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

# A mapping into more boxes than this is refused: engines have one for each expert and projection.
BOXES_MAX = 1 << 16


class IrregularError(ValueError):
    """Strides that are no multiples of each other, or a memory that a view has twice."""


class Strided(NamedTuple):
    """The place of elements: the first one, and the steps on each dimension."""

    offset: int
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Element i of `sizes` is at `own`, copied from `source`, which may be in another memory."""

    sizes: tuple[int, ...]
    own: Strided
    source: Strided

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    @property
    def end(self) -> int:
        """Address after the last of its own elements; for placements that are not empty."""
        return self.own.offset + sum(
            (size - 1) * step for size, step in zip(self.sizes, self.own.strides)
        ) + 1

    def reversed(self) -> "Placement":
        return Placement(self.sizes, self.source, self.own)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def compose(outer: Placement, inner: Placement) -> list[Placement]:
    """The elements of `outer` whose source is an element of `inner`, copied from inner's source.

    Raises:
      IrregularError: the two do not cut their common memory in nested steps.
    """
    if not outer.count or not inner.count:
        return []
    radix = _radix(
        [*zip(outer.sizes, outer.source.strides), *zip(inner.sizes, inner.own.strides)]
    )
    # "here" is the common memory, "there" the other one.
    left = _boxes(outer.sizes, outer.source, outer.own, radix)
    right = _boxes(inner.sizes, inner.own, inner.source, radix)
    met = (_meet(a, b) for a, b in itertools.product(left, right))
    return [placement for placement in met if placement is not None]


def overlap(a: Placement, b: Placement) -> int:
    """How many of their own elements two placements in one memory share. Raises as compose."""
    if not a.count or not b.count or a.end <= b.own.offset or b.end <= a.own.offset:
        return 0
    return sum(placement.count for placement in compose(a.reversed(), b))


def boxes(placement: Placement, own: Sequence[int], source: Sequence[int]) -> Iterator[Placement]:
    """Cuts a placement between contiguous tensors of the shapes `own` and `source` so that every step
    is a step on one dimension of each; the sizes that are left are those of boxes.

    Raises:
      IrregularError: as compose, or more boxes than BOXES_MAX.
    """
    for first in _split(_simple(placement), row_major(own)):
        for second in _split(first.reversed(), row_major(source)):
            yield from _unrolled(second.reversed(), row_major(own), row_major(source))


class _Dim(NamedTuple):
    size: int
    here: int
    there: int


class _Box(NamedTuple):
    """Intervals of digits: for each place of the radix the first digit, and a dimension."""

    residue: int
    begins: tuple[int, ...]
    dims: tuple[_Dim, ...]
    there: int
    repeats: tuple[_Dim, ...]  # dimensions without a step here


def _radix(steps: Iterable[tuple[int, int]]) -> list[int]:
    radix = sorted({step for size, step in steps if size > 1 and step > 0}) or [1]
    for lower, higher in zip(radix, radix[1:]):
        if higher % lower:
            raise IrregularError(f"steps of {higher} and {lower} elements")
    return radix


def _boxes(
    sizes: Sequence[int], here: Strided, there: Strided, radix: Sequence[int]
) -> list[_Box]:
    dims = [_Dim(*d) for d in zip(sizes, here.strides, there.strides) if d[0] > 1]
    repeats = tuple(dim for dim in dims if not dim.here)
    found = []
    todo = [([dim for dim in dims if dim.here], here.offset, there.offset)]
    while todo:
        dims, at, other = todo.pop()
        digits = _digits(at, radix)
        crossing = _crossing(dims, digits, radix)
        if crossing is not None:
            todo += _cut(dims, at, other, digits, radix, crossing)
            if len(todo) > BOXES_MAX:
                raise IrregularError(f"more than {BOXES_MAX} boxes")
            continue
        by_place = {dim.here: dim for dim in dims}
        if len(by_place) != len(dims):
            raise IrregularError(f"two dimensions with a step of {max(dims)[1]} elements")
        found.append(
            _Box(
                at % radix[0],
                digits,
                tuple(by_place.get(place, _Dim(1, place, 0)) for place in radix),
                other,
                repeats,
            )
        )
    return found


def _digits(address: int, radix: Sequence[int]) -> tuple[int, ...]:
    found = []
    for place, following in itertools.zip_longest(radix, radix[1:]):
        found.append((address if following is None else address % following) // place)
    return tuple(found)


def _crossing(dims: Sequence[_Dim], digits: Sequence[int], radix: Sequence[int]) -> Optional[int]:
    """Returns the lowest place whose digits do not hold its dimension; None if there is none."""
    steps = {dim.here: dim for dim in dims}
    for index, place in enumerate(radix[:-1]):
        if place in steps and digits[index] + steps[place].size > radix[index + 1] // place:
            return index
    return None


def _cut(
    dims: Sequence[_Dim],
    at: int,
    other: int,
    digits: Sequence[int],
    radix: Sequence[int],
    index: int,
) -> list[tuple[list[_Dim], int, int]]:
    """The dimension of place `index`, cut where the digit comes to its end: up to there, whole turns
    of the digit as two dimensions, and what is left."""
    dim = next(d for d in dims if d.here == radix[index])
    rest = [d for d in dims if d is not dim]
    turn = radix[index + 1] // radix[index]
    head = (turn - digits[index]) % turn
    if head:
        return [
            ([*rest, dim._replace(size=head)], at, other),
            (
                [*rest, dim._replace(size=dim.size - head)],
                at + head * dim.here,
                other + head * dim.there,
            ),
        ]
    turns, tail = divmod(dim.size, turn)
    body = [*rest, dim._replace(size=turn)]
    if turns > 1:
        body.append(_Dim(turns, turn * dim.here, turn * dim.there))
    cut = [(body, at, other)]
    if tail:
        done = turns * turn
        cut.append(
            (
                [*rest, dim._replace(size=tail)],
                at + done * dim.here,
                other + done * dim.there,
            )
        )
    return cut


def _meet(left: _Box, right: _Box) -> Optional[Placement]:
    if left.residue != right.residue:
        return None
    sizes: list[int] = []
    own, source = left.there, right.there
    own_steps: list[int] = []
    source_steps: list[int] = []
    for begin_a, a, begin_b, b in zip(left.begins, left.dims, right.begins, right.dims):
        begin = max(begin_a, begin_b)
        end = min(begin_a + a.size, begin_b + b.size)
        if begin >= end:
            return None
        own += (begin - begin_a) * a.there
        source += (begin - begin_b) * b.there
        if end - begin > 1:
            sizes.insert(0, end - begin)
            own_steps.insert(0, a.there)
            source_steps.insert(0, b.there)
    for repeat in left.repeats:
        sizes.append(repeat.size)
        own_steps.append(repeat.there)
        source_steps.append(0)
    for repeat in right.repeats:
        sizes.append(repeat.size)
        own_steps.append(0)
        source_steps.append(repeat.there)
    return Placement(
        tuple(sizes), Strided(own, tuple(own_steps)), Strided(source, tuple(source_steps))
    )


def _simple(placement: Placement) -> Placement:
    """Returns the same placement with as few dimensions as possible, the longest own step first."""
    dims = [
        _Dim(*d) for d in zip(placement.sizes, placement.own.strides, placement.source.strides)
    ]
    dims = sorted((dim for dim in dims if dim.size > 1), key=lambda dim: -dim.here)
    joined: list[_Dim] = []
    for dim in dims:
        last = joined[-1] if joined else None
        if last and (last.here, last.there) == (dim.size * dim.here, dim.size * dim.there):
            joined[-1] = _Dim(last.size * dim.size, dim.here, dim.there)
        else:
            joined.append(dim)
    return _placement(joined, placement.own.offset, placement.source.offset)


def _placement(dims: Sequence[_Dim], own: int, source: int) -> Placement:
    return Placement(
        tuple(dim.size for dim in dims),
        Strided(own, tuple(dim.here for dim in dims)),
        Strided(source, tuple(dim.there for dim in dims)),
    )


def _split(placement: Placement, places: Sequence[int]) -> Iterator[Placement]:
    """The placement in parts whose own steps stay within the given places."""
    own = placement.own
    radix = _radix([*zip(placement.sizes, own.strides), *((2, place) for place in places)])
    for box in _boxes(placement.sizes, own, placement.source, radix):
        at = box.residue + sum(digit * place for digit, place in zip(box.begins, radix))
        dims = [dim for dim in box.dims if dim.size > 1] + list(box.repeats)
        yield _placement(dims, at, box.there)


def _unrolled(
    placement: Placement, own: Sequence[int], source: Sequence[int]
) -> Iterator[Placement]:
    """Takes apart the dimensions whose step is none of a tensor's own."""
    dims = [
        _Dim(*d) for d in zip(placement.sizes, placement.own.strides, placement.source.strides)
    ]
    kept = [dim for dim in dims if dim.here in own and dim.there in source]
    apart = [dim for dim in dims if dim not in kept]
    if math.prod(dim.size for dim in apart) > BOXES_MAX:
        raise IrregularError(f"more than {BOXES_MAX} boxes")
    for index in itertools.product(*(range(dim.size) for dim in apart)):
        at = placement.own.offset + sum(i * dim.here for i, dim in zip(index, apart))
        other = placement.source.offset + sum(i * dim.there for i, dim in zip(index, apart))
        yield _placement(kept, at, other)
