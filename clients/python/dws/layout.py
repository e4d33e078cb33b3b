"""Layouts: which tensors there are, how they are cut into slices, and which slices a rank owns.

A tensor may be cut on any of its dimensions. Its slices are the cells of that grid, numbered in
row-major order; a rank owns a box of them.

The rules are those of the daemons: the elements of a slice have their own order, *slice order*
(row-major over the slice), and blocks are runs of BLOCK_ELEMENTS elements in that order.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Union

from dws._proto import delta_pb2
from dws.dtypes import DType
from dws.errors import LayoutError

Range = tuple[int, int]  # [begin, end)
Cells = tuple[tuple[int, int], ...]

BLOCK_ELEMENTS = 65_536
NAME_BYTES_MAX = 512
RANK_MAX = 8
CUTS_MAX = 4095  # of one dimension
TENSOR_SLICES_MAX = 65_536


def elements_in(ranges: Iterable[Range]) -> int:
    """Returns how many elements a box has, given the range of each dimension."""
    return math.prod(end - begin for begin, end in ranges)


def even_cuts(extent: int, parts: int) -> tuple[int, ...]:
    """Interior boundaries that cut `extent` into `parts` pieces, the first ones larger by one.

    Raises:
      LayoutError: there are fewer elements than parts.
    """
    if parts < 1 or extent < parts:
        raise LayoutError(f"{extent} rows cannot be cut into {parts} non-empty parts")
    size, larger = divmod(extent, parts)
    return tuple(i * size + min(i, larger) for i in range(1, parts))


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where a tensor is cut: interior boundaries on one dimension, strictly increasing."""

    boundaries: tuple[int, ...]
    dim: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", tuple(int(at) for at in self.boundaries))

    @classmethod
    def even(cls, extent: int, parts: int, dim: int = 0) -> "Cut":
        """`parts` equal slices of a dimension of `extent` elements."""
        return cls(even_cuts(extent, parts), dim)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A canonical tensor as declared by the trainer.

    Attributes:
      name: unique in the job.
      dtype: a DType; the constructor accepts everything that DType.of accepts.
      shape: row-major; empty for a scalar.
      cuts: by ascending dimension; () for one slice. The constructor accepts whatever
        Trainer.register does for a tensor.

    Raises:
      DTypeError, LayoutError: on construction, naming the tensor and what is wrong.
    """

    name: str
    dtype: Any
    shape: tuple[int, ...]
    cuts: tuple[Cut, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", DType.of(self.dtype))
        object.__setattr__(self, "shape", tuple(int(extent) for extent in self.shape))
        object.__setattr__(self, "cuts", _in_order(self.name, self.cuts))
        if not 1 <= len(self.name.encode()) <= NAME_BYTES_MAX:
            raise LayoutError(
                f"tensor name '{self.name[:40]}': expected 1 to {NAME_BYTES_MAX} bytes"
            )
        if len(self.shape) > RANK_MAX or any(extent < 0 for extent in self.shape):
            raise LayoutError(
                f"tensor '{self.name}': shape {list(self.shape)}, expected at most {RANK_MAX} "
                "dimensions, none negative"
            )
        self._check_cuts()

    def _check_cuts(self) -> None:
        for cut in self.cuts:
            if not 0 <= cut.dim < len(self.shape):
                raise LayoutError(
                    f"tensor '{self.name}' {list(self.shape)} has no dimension {cut.dim} to cut"
                )
            if len(cut.boundaries) > CUTS_MAX:
                raise LayoutError(
                    f"tensor '{self.name}': {len(cut.boundaries)} cuts on dimension {cut.dim}, at "
                    f"most {CUTS_MAX}"
                )
            bounds = self.bounds(cut)
            if any(low >= high for low, high in zip(bounds, bounds[1:])):
                raise LayoutError(
                    f"tensor '{self.name}': cuts {list(cut.boundaries)} on dimension {cut.dim} are "
                    f"not strictly increasing between 0 and {self.shape[cut.dim]}"
                )
        if self.slice_count > TENSOR_SLICES_MAX:
            raise LayoutError(
                f"tensor '{self.name}': its cuts make {self.slice_count} slices, at most "
                f"{TENSOR_SLICES_MAX}: declare it as several tensors, or with fewer cuts"
            )

    @property
    def elements(self) -> int:
        """Elements of all dimensions; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements, contiguous."""
        return self.elements * int(self.dtype.itemsize)

    @property
    def slice_count(self) -> int:
        """Slices that the cuts make; 1 without cuts."""
        return math.prod(len(cut.boundaries) + 1 for cut in self.cuts)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """All of each dimension."""
        return tuple((0, extent) for extent in self.shape)

    def bounds(self, cut: Cut) -> tuple[int, ...]:
        """The boundaries of the cells along one of its cuts, both ends of the dimension
        included."""
        return (0, *cut.boundaries, self.shape[cut.dim])

    def slices(self, cells: Optional[Cells] = None) -> Iterator[tuple[Range, ...]]:
        """Yields for each slice, in their order, its range of each dimension.

        Args:
          cells: only those of this box.
        """
        ranges: list[list[Range]] = [[whole] for whole in self.ranges]
        for index, cut in enumerate(self.cuts):
            bounds = self.bounds(cut)
            first, count = (0, len(bounds) - 1) if cells is None else cells[index]
            ranges[cut.dim] = list(zip(bounds, bounds[1:]))[first : first + count]
        return itertools.product(*ranges)

    def to_proto(self) -> Any:
        message = delta_pb2.TensorSpec(name=self.name, dtype=self.dtype.value, shape=self.shape)
        if len(self.cuts) == 1:
            message.cut_dim = self.cuts[0].dim
            message.cuts.extend(self.cuts[0].boundaries)
        elif self.cuts:
            for cut in self.cuts:
                message.grid.add(dim=cut.dim, at=cut.boundaries)
        return message

    def __str__(self) -> str:
        cuts = ", ".join(f"dim {cut.dim} at {list(cut.boundaries)}" for cut in self.cuts)
        text = f"'{self.name}' {self.dtype.name} {list(self.shape)}"
        return f"{text} cut on {cuts}" if cuts else text


@dataclasses.dataclass(frozen=True)
class Shard:
    """The slices of one tensor that a rank owns: a box of them.

    Attributes:
      cells: for each of the tensor's cuts the rank's (first cell, number of cells).
      rank_slice: the number of its first slice in the rank's flat numbering.
    """

    tensor: TensorSpec
    cells: Cells
    rank_slice: int = 0

    def __post_init__(self) -> None:
        if len(self.cells) != len(self.tensor.cuts):
            raise LayoutError(
                f"tensor {self.tensor}: a shard of {list(self.cells)}, expected (first, count) for "
                f"each of the {len(self.tensor.cuts)} dimensions that are cut; cut it with cuts="
            )
        for cut, (first, count) in zip(self.tensor.cuts, self.cells):
            if first < 0 or count < 1 or first + count > len(cut.boundaries) + 1:
                raise LayoutError(
                    f"tensor {self.tensor}: slices {first} to {first + count} are outside its "
                    f"{len(cut.boundaries) + 1} slices on dimension {cut.dim}; cut it with cuts="
                )

    @property
    def slice_count(self) -> int:
        return math.prod(count for _, count in self.cells)

    def slices(self) -> Iterator[tuple[Range, ...]]:
        """What its slices have of each dimension of the tensor, in their order."""
        return self.tensor.slices(self.cells)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """[begin, end) of the shard on each dimension of the tensor."""
        found = list(self.tensor.ranges)
        for cut, (first, count) in zip(self.tensor.cuts, self.cells):
            bounds = self.tensor.bounds(cut)
            found[cut.dim] = (bounds[first], bounds[first + count])
        return tuple(found)

    @property
    def index(self) -> tuple[slice, ...]:
        """The shard of the full tensor, as an index."""
        return tuple(slice(begin, end) for begin, end in self.ranges)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rank's part."""
        return tuple(end - begin for begin, end in self.ranges)

    def to_proto(self) -> Any:
        message = delta_pb2.Shard(tensor=self.tensor.to_proto())
        if len(self.cells) > 1:
            for first, count in self.cells:
                message.cells.add(first=first, count=count)
        else:
            message.first_slice, message.slice_count = self.cells[0] if self.cells else (0, 1)
        return message

    @property
    def size_bytes(self) -> int:
        return int(math.prod(self.shape) * self.tensor.dtype.itemsize)


# For each name the rank's (first slice, slice count), or one for each dimension that is cut.
ShardRanges = Mapping[str, Union[tuple[int, int], Sequence[tuple[int, int]]]]
# The cuts of one tensor: boundaries on dimension 0, a Cut, or one Cut for each dimension that is
# cut.
TensorCuts = Union[Cut, Sequence[int], Sequence[Cut]]
Cuts = Mapping[str, TensorCuts]


class RankLayout:
    """All that one trainer rank owns, ordered by name. Immutable."""

    def __init__(self, specs: Iterable[TensorSpec], shards: Optional[ShardRanges] = None) -> None:
        """Args:
          specs: the tensors of which this rank owns a part.
          shards: name -> (first slice, slice count) of this rank, or one such pair for each of
            the tensor's cuts; names not in it are owned whole.

        Raises:
          LayoutError: no tensors, a name twice, a shard of an unknown tensor or outside its slices.
        """
        # Sorted as bytes, because the daemons compare names as bytes.
        ordered = sorted(specs, key=lambda spec: spec.name.encode())
        if not ordered:
            raise LayoutError("no tensors to register")
        shards = dict(shards or {})
        self.shards: list[Shard] = []
        rank_slice = 0
        for spec in ordered:
            if self.shards and self.shards[-1].tensor.name == spec.name:
                raise LayoutError(f"tensor '{spec.name}' is declared twice")
            self.shards.append(Shard(spec, _cells(spec, shards.pop(spec.name, None)), rank_slice))
            rank_slice += self.shards[-1].slice_count
        if shards:
            raise LayoutError(f"shards= names tensors that are not declared: {sorted(shards)}")
        self._by_name = {shard.tensor.name: shard for shard in self.shards}

    def shard(self, name: str) -> Shard:
        """The rank's part of tensor `name`.

        Raises:
          LayoutError: it owns none.
        """
        if name not in self._by_name:
            raise LayoutError(
                f"tensor '{name}' is not part of this registration; it has "
                f"{len(self.shards)} tensors, the first is '{self.shards[0].tensor.name}'"
            )
        return self._by_name[name]

    def refined(self, message: Any) -> "RankLayout":
        """Returns another layout of the same part of each tensor, in the slices of a v1.RankLayout.

        Raises:
          LayoutError: it has other tensors, or another part of one.
        """
        specs, shards = [], {}
        for ours, theirs in zip(self.shards, message.shards):
            spec = theirs.tensor
            cuts = [Cut(tuple(cut.at), cut.dim) for cut in spec.grid]
            if spec.cuts:
                cuts = [Cut(tuple(spec.cuts), spec.cut_dim)]
            specs.append(dataclasses.replace(ours.tensor, name=spec.name, cuts=tuple(cuts)))
            cells = [(box.first, box.count) for box in theirs.cells]
            shards[spec.name] = cells or [(theirs.first_slice, theirs.slice_count)]
        finer = RankLayout(specs, shards)
        if len(message.shards) != len(self.shards) or any(
            (ours.tensor.name, ours.ranges) != (theirs.tensor.name, theirs.ranges)
            for ours, theirs in zip(self.shards, finer.shards)
        ):
            raise LayoutError("a refined layout has other tensors than the registered one")
        return finer

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    def to_proto(self) -> Any:
        return delta_pb2.RankLayout(shards=[shard.to_proto() for shard in self.shards])


def _cells(spec: TensorSpec, owned: Any) -> Cells:
    """Returns the rank's cells, in the form of Shard, for a value of ShardRanges; None: all."""
    if owned is None:
        return tuple((0, len(cut.boundaries) + 1) for cut in spec.cuts)
    try:
        pair = len(owned) > 0 and all(isinstance(number, numbers.Integral) for number in owned)
        pairs = tuple((int(first), int(count)) for first, count in ([owned] if pair else owned))
    except (TypeError, ValueError):
        raise LayoutError(
            f"tensor {spec}: a shard of {owned!r}, expected (first, count) for each dimension that "
            "is cut"
        ) from None
    return () if not spec.cuts and pairs == ((0, 1),) else pairs


def _in_order(name: str, cuts: TensorCuts) -> tuple[Cut, ...]:
    """By ascending dimension, without those that have no boundaries."""
    if isinstance(cuts, Cut):
        cuts = [cuts]
    elif not all(isinstance(cut, Cut) for cut in cuts):
        cuts = [Cut(tuple(int(cut) for cut in cuts))]  # type: ignore[arg-type]
    found = [cut for cut in cuts if isinstance(cut, Cut) and cut.boundaries]
    found.sort(key=lambda cut: cut.dim)
    if len({cut.dim for cut in found}) < len(found):
        raise LayoutError(f"tensor '{name}': two cuts of one dimension in {found}: expected one")
    return tuple(found)


def with_cuts(spec: TensorSpec, cuts: Optional[Cuts]) -> TensorSpec:
    """`spec` with the cuts that `cuts` has for its name."""
    if not cuts or spec.name not in cuts:
        return spec
    return dataclasses.replace(spec, cuts=cuts[spec.name])
