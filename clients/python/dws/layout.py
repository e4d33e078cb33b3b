"""Layouts: which tensors there are, how they are cut into slices, and which slices a rank owns.

The rules are those of the daemons: the elements of a slice have their own order, *slice order*
(row-major over the slice), and blocks are runs of BLOCK_ELEMENTS elements in that order.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from dws._proto import delta_pb2
from dws.dtypes import DType
from dws.errors import LayoutError

BLOCK_ELEMENTS = 65_536
NAME_BYTES_MAX = 512
RANK_MAX = 8
CUTS_MAX = 4095


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

    @classmethod
    def even(cls, extent: int, parts: int, dim: int = 0) -> "Cut":
        """`parts` equal slices of a dimension of `extent` elements."""
        return cls(even_cuts(extent, parts), dim)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A canonical tensor as declared by the trainer.

    Attributes:
      name: unique in the job.
      dtype: a DType; the constructor accepts whatever DType.of does.
      shape: row-major; empty for a scalar.
      cut_dim: the dimension of the cuts, 0 if there are none.
      cuts: interior boundaries on cut_dim; there is one slice more than cuts.

    Raises:
      DTypeError, LayoutError: on construction, naming the tensor and what is wrong.
    """

    name: str
    dtype: Any
    shape: tuple[int, ...]
    cut_dim: int = 0
    cuts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", DType.of(self.dtype))
        object.__setattr__(self, "shape", tuple(int(extent) for extent in self.shape))
        object.__setattr__(self, "cuts", tuple(int(cut) for cut in self.cuts))
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
        if not self.cuts:
            if self.cut_dim != 0:
                raise LayoutError(f"tensor '{self.name}': cut_dim {self.cut_dim} without cuts")
            return
        if not 0 <= self.cut_dim < len(self.shape):
            raise LayoutError(
                f"tensor '{self.name}' {list(self.shape)} has no dimension {self.cut_dim} to cut"
            )
        if len(self.cuts) > CUTS_MAX:
            raise LayoutError(f"tensor '{self.name}': {len(self.cuts)} cuts, at most {CUTS_MAX}")
        bounds = (0, *self.cuts, self.shape[self.cut_dim])
        if any(low >= high for low, high in zip(bounds, bounds[1:])):
            raise LayoutError(
                f"tensor '{self.name}': cuts {list(self.cuts)} on dimension {self.cut_dim} are not "
                f"strictly increasing between 0 and {self.shape[self.cut_dim]}"
            )

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * int(self.dtype.itemsize)

    @property
    def slice_count(self) -> int:
        return len(self.cuts) + 1

    def slice_range(self, index: int) -> tuple[int, int]:
        """[begin, end) of slice `index` on cut_dim; (0, 1) for a scalar."""
        whole = self.shape[self.cut_dim] if self.shape else 1
        bounds = (0, *self.cuts, whole)
        return bounds[index], bounds[index + 1]

    def to_proto(self) -> Any:
        return delta_pb2.TensorSpec(
            name=self.name,
            dtype=self.dtype.value,
            shape=self.shape,
            cut_dim=self.cut_dim,
            cuts=self.cuts,
        )

    def __str__(self) -> str:
        cuts = f" cut on dim {self.cut_dim} at {list(self.cuts)}" if self.cuts else ""
        return f"'{self.name}' {self.dtype.name} {list(self.shape)}{cuts}"


@dataclasses.dataclass(frozen=True)
class Shard:
    """The consecutive slices of one tensor that a rank owns.

    Attributes:
      rank_slice: the number of its first slice in the rank's flat numbering.
    """

    tensor: TensorSpec
    first_slice: int
    slice_count: int
    rank_slice: int = 0

    def __post_init__(self) -> None:
        last = self.first_slice + self.slice_count
        if self.first_slice < 0 or self.slice_count < 1 or last > self.tensor.slice_count:
            raise LayoutError(
                f"tensor {self.tensor}: slices {self.first_slice} to {last} are outside its "
                f"{self.tensor.slice_count} slices; cut it with cuts="
            )

    @property
    def range(self) -> tuple[int, int]:
        """[begin, end) of the shard on the tensor's cut_dim."""
        first = self.tensor.slice_range(self.first_slice)
        last = self.tensor.slice_range(self.first_slice + self.slice_count - 1)
        return first[0], last[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rank's part: the tensor's shape with cut_dim restricted."""
        shape = list(self.tensor.shape)
        if shape:
            begin, end = self.range
            shape[self.tensor.cut_dim] = end - begin
        return tuple(shape)

    @property
    def size_bytes(self) -> int:
        return int(math.prod(self.shape) * self.tensor.dtype.itemsize)


# For each name the rank's (first slice, slice count).
ShardRanges = Mapping[str, tuple[int, int]]
Cuts = Mapping[str, Union[Cut, Sequence[int]]]


class RankLayout:
    """All that one trainer rank owns, ordered by name. Immutable."""

    def __init__(self, specs: Iterable[TensorSpec], shards: Optional[ShardRanges] = None) -> None:
        """Args:
          specs: the tensors of which this rank owns a part.
          shards: name -> (first slice, slice count) of this rank; names not in it are owned whole.

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
            first, count = shards.pop(spec.name, (0, spec.slice_count))
            self.shards.append(Shard(spec, first, count, rank_slice))
            rank_slice += count
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

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    def to_proto(self) -> Any:
        return delta_pb2.RankLayout(
            shards=[
                delta_pb2.Shard(
                    tensor=shard.tensor.to_proto(),
                    first_slice=shard.first_slice,
                    slice_count=shard.slice_count,
                )
                for shard in self.shards
            ]
        )


def with_cuts(spec: TensorSpec, cuts: Optional[Cuts]) -> TensorSpec:
    """`spec` with the cuts that `cuts` has for its name; plain boundaries are on dimension 0."""
    if not cuts or spec.name not in cuts:
        return spec
    cut = cuts[spec.name]
    if not isinstance(cut, Cut):
        cut = Cut(tuple(cut))
    return dataclasses.replace(spec, cut_dim=cut.dim if cut.boundaries else 0, cuts=cut.boundaries)
