"""Decides which process publishes what: processes that have the same part of a tensor divide it, so
that no byte is held or sent twice.

Every process declares what it has, all get all declarations, and each computes the same shares from them:

1. Parts that one process has are its own. What follows goes from the largest part to the smallest.
2. A part is cut into pieces of equal rows, one for each process that has it, but into none below BLOCK_ELEMENTS: a
   smaller slice costs as much as one of that size. Rows are those of the first dimension that has several: cuts of an
   inner one would leave engines no views of whole slices.
3. The pieces, and the rows that are left over, go to the processes that have the fewest bytes so far; of equal ones, to
   the first.

Then the tensor is cut along the edges of all shares, and as engines need it. Buffers are not divided: the first process
that has one publishes it, because each may have updated its own. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Mapping, Optional, Sequence

from dws.dtypes import DType
from dws.errors import LayoutError
from dws.layout import BLOCK_ELEMENTS, Cells, Cut, Cuts, Range, TensorSpec, elements_in, with_cuts
from dws.trainers.placement import Ranges


@dataclasses.dataclass(frozen=True)
class Declared:
    """A process's declaration of a tensor.

    Attributes:
      spec: cut as engines need it.
      ranges: the part that the process has.
      divisible: true if processes with the same part may divide it.
      flat: for a tensor that is cut flat, [begin, end) of the elements that the process has in its
        memory; (0, 0) for none.
      flat_on_device: these elements are on a CUDA device.
    """

    spec: TensorSpec
    ranges: Ranges
    divisible: bool = True
    flat: Optional[Range] = None
    flat_on_device: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        dtype: DType,
        shape: Sequence[int],
        ranges: Ranges,
        cuts: Optional[Cuts],
        divisible: bool = True,
    ) -> Declared:
        """Args:
          dtype: the type in which it is published (dws.trainers.published_types).
          shape: the shape of the whole canonical tensor.
          cuts: for the engines, by name.

        Raises:
          LayoutError: a layout cannot express it; with the name.
        """
        return cls(with_cuts(TensorSpec(name, dtype, tuple(shape)), cuts), ranges, divisible)

    @property
    def whole(self) -> bool:
        return self.ranges == self.spec.ranges


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of a tensor that a process publishes.

    Attributes:
      spec: cut between all shares, and as engines need it.
    """

    spec: TensorSpec
    ranges: Ranges

    @property
    def cells(self) -> Cells:
        """For each cut of `spec` (first cell, number of cells)."""
        found = []
        for cut in self.spec.cuts:
            first, end = map(self.spec.bounds(cut).index, self.ranges[cut.dim])
            found.append((first, end - first))
        return tuple(found)

    @property
    def size_bytes(self) -> int:
        return elements_in(self.ranges) * int(self.spec.dtype.itemsize)

    @property
    def whole(self) -> bool:
        return self.ranges == self.spec.ranges


@dataclasses.dataclass(frozen=True)
class _Group:
    """Processes that have the same part of a tensor."""

    spec: TensorSpec
    ranges: Ranges
    processes: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return elements_in(self.ranges) * int(self.spec.dtype.itemsize)


Declarations = Sequence[Mapping[str, Declared]]


def shares_of(declared: Declarations) -> list[dict[str, Share]]:
    """By process, then by name.

    Args:
      declared: by process, then by name; not all need to have all tensors.

    Raises:
      LayoutError: processes contradict each other, an element of a tensor is in no part or in parts that are not equal,
        or a process has nothing to publish.
    """
    held: dict[str, dict[int, Declared]] = {}
    for process, each in enumerate(declared):
        for name, tensor in each.items():
            held.setdefault(name, {})[process] = tensor
    names = sorted(held)
    groups = [group for name in names for group in _groups(held[name])]
    groups.sort(key=lambda group: (len(group.processes) > 1, -group.size_bytes))
    loads = [0] * len(declared)
    found: dict[str, dict[int, Share]] = {name: {} for name in names}
    for group in groups:
        for process, ranges in _divided(group, loads).items():
            share = Share(group.spec, ranges)
            loads[process] += share.size_bytes
            found[group.spec.name][process] = share
    result: list[dict[str, Share]] = [{} for _ in declared]
    for name, shares in found.items():
        spec = _cut(next(iter(shares.values())).spec, [share.ranges for share in shares.values()])
        for process, share in shares.items():
            result[process][name] = Share(spec, share.ranges)
    for process, mine in enumerate(result):
        if not mine:
            raise LayoutError(
                f"process {process} of {len(result)} has no element of any weight to publish: use fewer processes, or "
                "for a module that is not sharded one sender, whose socket's name has no {rank}"
            )
    return result


def _groups(held: Mapping[int, Declared]) -> list[_Group]:
    """Groups the processes that hold the same part of one tensor."""
    first, one = next(iter(held.items()))
    for i, other in held.items():
        if (other.spec, other.divisible) != (one.spec, one.divisible):
            raise LayoutError(
                f"process {first} has {one.spec}, and process {i} {other.spec}: expected the same module"
            )
    by_ranges: dict[Ranges, list[int]] = {}
    for i, each in held.items():
        if elements_in(each.ranges) or not one.spec.elements:
            by_ranges.setdefault(each.ranges, []).append(i)
    if not one.spec.elements:  # an empty tensor: the first process has it
        by_ranges = {one.spec.ranges: [first]}
    _check_parts(one.spec, list(by_ranges))
    return [
        _Group(one.spec, ranges, tuple(processes if one.divisible else processes[:1]))
        for ranges, processes in by_ranges.items()
    ]


def _check_parts(spec: TensorSpec, parts: Sequence[Ranges]) -> None:
    """Raises LayoutError unless each element is in one of the parts."""
    bounds = [sorted({at for part in parts for at in part[dim]}) for dim in range(len(spec.shape))]
    numbers = [{at: i for i, at in enumerate(each)} for each in bounds]
    seen: dict[tuple[int, ...], Ranges] = {}  # the part that has a cell between the bounds
    for part in parts:
        cells = [range(number[low], number[high]) for number, (low, high) in zip(numbers, part)]
        for cell in itertools.product(*cells):
            other = seen.setdefault(cell, part)
            if other is not part:
                raise LayoutError(
                    f"{spec}: processes have the parts {list(other)} and {list(part)}, expected the same or nothing "
                    "in common"
                )
    held = sum(map(elements_in, parts))
    if held != spec.elements:
        raise LayoutError(
            f"{spec}: processes have {held} of its {spec.elements} elements, expected each in one of the parts "
            f"{[list(part) for part in sorted(parts)[:8]]}"
        )


def _divided(group: _Group, loads: Sequence[int]) -> dict[int, Ranges]:
    """By process."""
    elements, replicas = elements_in(group.ranges), len(group.processes)
    if replicas == 1 or elements < 2 * BLOCK_ELEMENTS:
        pieces, dim = 1, 0
    else:
        extents = [end - begin for begin, end in group.ranges]
        dim = next(dim for dim, extent in enumerate(extents) if extent > 1)
        pieces = min(replicas, elements // BLOCK_ELEMENTS, extents[dim])
    lightest = sorted(group.processes, key=lambda process: (loads[process], process))[:pieces]
    if pieces == 1:
        return {lightest[0]: group.ranges}
    begin, end = group.ranges[dim]
    size, larger = divmod(end - begin, pieces)
    found = {}
    for process in sorted(lightest):
        rows = size + (process in lightest[:larger])
        found[process] = (*group.ranges[:dim], (begin, begin + rows), *group.ranges[dim + 1 :])
        begin += rows
    return found


def _cut(spec: TensorSpec, parts: Sequence[Ranges]) -> TensorSpec:
    """The tensor, cut along the edges of the parts too."""
    wanted = {cut.dim: set(cut.boundaries) for cut in spec.cuts}
    cuts = []
    for dim in range(len(spec.shape)):
        inner = {begin for part in parts for begin in part[dim]} - {0, spec.shape[dim]}
        boundaries = inner | wanted.get(dim, set())
        if boundaries:
            cuts.append(Cut(tuple(sorted(boundaries)), dim))
    return dataclasses.replace(spec, cuts=tuple(cuts)) if cuts else spec
