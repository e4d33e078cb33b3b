"""Who publishes what: processes that have the same part of a tensor divide it, so that no byte is held or sent twice.

Every process declares what it has, all get all declarations, and each computes the same shares from them:

1. Parts that one process has are its own. What follows goes from the largest part to the smallest.
2. A part is cut into pieces of equal rows, one for each process that has it, but into none below BLOCK_ELEMENTS: a
   smaller slice costs as much as one of that size.
3. The pieces, and the rows that are left over, go to the processes that have the fewest bytes so far; of equal ones, to
   the first.

Buffers are not divided: the first process that has one publishes it, because each may have updated its own. Pure.
"""

from __future__ import annotations

import dataclasses
from typing import Iterable, Mapping, Sequence

from dws.errors import LayoutError
from dws.layout import BLOCK_ELEMENTS, Cut, TensorSpec
from dws.trainers.placement import Part, Range


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a process says of a tensor.

    Attributes:
      spec: cut as engines need it.
      divisible: whether processes with the same part may divide it.
    """

    spec: TensorSpec
    part: Part
    divisible: bool = True


@dataclasses.dataclass(frozen=True)
class Share:
    """What a process publishes of a tensor: rows [begin, end) of dimension `dim`.

    Attributes:
      spec: cut between all shares, and as engines need it.
    """

    spec: TensorSpec
    dim: int
    begin: int
    end: int

    @property
    def slices(self) -> tuple[int, int]:
        """(first slice, slice count)."""
        bounds = [0, *self.spec.cuts, _rows(self.spec, self.dim)]
        first = bounds.index(self.begin)
        # An extent of 0 has one slice.
        return first, max(bounds.index(self.end) - first, 1)

    @property
    def whole(self) -> bool:
        return (self.begin, self.end) == (0, _rows(self.spec, self.dim))


@dataclasses.dataclass(frozen=True)
class _Group:
    """Processes that have the same rows of a tensor."""

    spec: TensorSpec
    dim: int
    rows: Range
    processes: tuple[int, ...]

    @property
    def row_elements(self) -> int:
        return self.spec.elements // max(_rows(self.spec, self.dim), 1)

    @property
    def size_bytes(self) -> int:
        return (self.rows[1] - self.rows[0]) * self.row_elements * int(self.spec.dtype.itemsize)


Declarations = Sequence[Mapping[str, Declared]]


def shares_of(declared: Declarations) -> list[dict[str, Share]]:
    """By process, then by name.

    Args:
      declared: by process, then by name; not all need to have all tensors.

    Raises:
      LayoutError: processes contradict each other, nobody has some rows of a tensor, an engine needs it cut on another
        dimension than it is sharded on, or a process has nothing to publish.
    """
    by_name = {
        name: _groups(name, declared) for name in sorted({n for each in declared for n in each})
    }
    groups = [group for of_tensor in by_name.values() for group in of_tensor]
    groups.sort(key=lambda group: (len(group.processes) > 1, -group.size_bytes))
    loads = [0] * len(declared)
    found: dict[str, dict[int, Range]] = {name: {} for name in by_name}
    for group in groups:
        row_bytes = group.row_elements * int(group.spec.dtype.itemsize)
        for process, rows in _divided(group, loads).items():
            loads[process] += (rows[1] - rows[0]) * row_bytes
            found[group.spec.name][process] = rows
    result: list[dict[str, Share]] = [{} for _ in declared]
    for name, ranges in found.items():
        dim = by_name[name][0].dim
        spec = _cut(by_name[name][0].spec, dim, ranges.values())
        for process, rows in ranges.items():
            result[process][name] = Share(spec, dim, *rows)
    for process, mine in enumerate(result):
        if not mine:
            raise LayoutError(
                f"process {process} of {len(result)} has no element of any weight to publish: use fewer processes, or "
                "for a module that is not sharded one sender, whose socket's name has no {rank}"
            )
    return result


def _groups(name: str, declared: Declarations) -> list[_Group]:
    held = {i: process[name] for i, process in enumerate(declared) if name in process}
    first, one = next(iter(held.items()))
    for i, other in held.items():
        if (other.spec, other.divisible) != (one.spec, one.divisible):
            raise LayoutError(
                f"process {first} has {one.spec}, and process {i} {other.spec}: expected the same module"
            )
    parts = [each.part for each in held.values()]
    parts = [part for part in parts if part.begin < part.end] or parts
    dims = sorted({part.dim for part in parts if part.dim is not None})
    wanted = one.spec.cut_dim if one.spec.cuts else None
    if len(dims) > 1:
        raise LayoutError(f"{one.spec} is sharded on dimensions {dims}: expected one")
    dim = dims[0] if dims else wanted or 0
    if wanted not in (None, dim):
        raise LayoutError(
            f"'{name}' is sharded on dimension {dim}, and an engine needs it cut on dimension "
            f"{wanted}: a tensor can be cut on one dimension. Use an engine that holds it whole, or "
            "shard it on that dimension (shard_placement_fn= of fully_shard)"
        )
    extent = _rows(one.spec, dim)
    by_rows: dict[Range, list[int]] = {}
    for i, each in held.items():
        rows = (0, extent) if each.part.dim is None else (each.part.begin, each.part.end)
        if rows[0] < rows[1] or not extent:
            by_rows.setdefault(rows, []).append(i)
    ranges = sorted(by_rows)
    if [begin for begin, _ in ranges] + [extent] != [0] + [end for _, end in ranges]:
        raise LayoutError(
            f"{one.spec}: processes have the ranges {ranges} of dimension {dim}, expected each of its {extent} rows in "
            "one of them"
        )
    return [
        _Group(one.spec, dim, rows, tuple(processes if one.divisible else processes[:1]))
        for rows, processes in by_rows.items()
    ]


def _divided(group: _Group, loads: Sequence[int]) -> dict[int, Range]:
    """By process."""
    begin, end = group.rows
    blocks = (end - begin) * group.row_elements // BLOCK_ELEMENTS  # of a scalar: 0
    pieces = max(min(len(group.processes), end - begin, blocks), 1)
    lightest = sorted(group.processes, key=lambda process: (loads[process], process))[:pieces]
    size, larger = divmod(end - begin, pieces)
    found = {}
    for process in sorted(lightest):
        rows = size + (process in lightest[:larger])
        found[process] = (begin, begin + rows)
        begin += rows
    return found


def _cut(spec: TensorSpec, dim: int, shares: Iterable[Range]) -> TensorSpec:
    """The tensor, cut between shares too."""
    inner = {begin for begin, _ in shares} - {0}
    cuts = tuple(sorted(inner | set(spec.cuts)))
    return dataclasses.replace(spec, cut_dim=dim if cuts else 0, cuts=cuts)


def _rows(spec: TensorSpec, dim: int) -> int:
    return spec.shape[dim] if spec.shape else 1
