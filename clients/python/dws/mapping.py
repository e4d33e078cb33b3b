"""Describes how an engine's parameters are made from the trainer's canonical tensors.

    mapping = {
        "layers.0.qkv.weight": dws.Fused(["layers.0.q.weight", "layers.0.k.weight",
        "layers.0.v.weight"]),
        "layers.0.down.weight": dws.Slice("layers.0.down.weight", dim=1, begin=0, end=512),
        "embed.weight": dws.Parts([dws.Part("embed.weight", [(0, 1000)])]),  # the rest is padding
        "rotary_table": None,                     # the engine's own
    }

A parameter that is not named maps to the canonical tensor of the same name.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from dws._proto import engine_pb2
from dws.dtypes import DType
from dws.errors import LayoutError


@dataclasses.dataclass(frozen=True)
class Slice:
    """The range [begin, end) of one dimension of a canonical tensor, in canonical elements.

    Where the trainer did not declare such cuts, the senders are asked to make them.
    """

    tensor: str
    dim: int
    begin: int
    end: int

    def __post_init__(self) -> None:
        if self.dim < 0 or not 0 <= self.begin < self.end:
            raise LayoutError(
                f"slice of '{self.tensor}': dim {self.dim}, [{self.begin}, {self.end}); expected a "
                "dimension counted from the front and 0 <= begin < end"
            )

    @property
    def ranges(self) -> Mapping[int, tuple[int, int]]:
        """The one dimension that it names, with its range."""
        return {self.dim: (self.begin, self.end)}


@dataclasses.dataclass(frozen=True)
class Box:
    """Ranges [begin, end) of several dimensions of a canonical tensor, in canonical elements; those
    not named are whole. Cuts as for Slice."""

    tensor: str
    ranges: Mapping[int, tuple[int, int]]

    def __post_init__(self) -> None:
        bad = [dim for dim, (begin, end) in self.ranges.items() if dim < 0 or not 0 <= begin < end]
        if bad or not self.ranges:
            raise LayoutError(
                f"box of '{self.tensor}': {dict(self.ranges)}; expected dimensions counted from the "
                "front, each with 0 <= begin < end"
            )


# A canonical tensor, or a part of it.
CanonicalPart = Union[str, Slice, Box]


@dataclasses.dataclass(frozen=True)
class Fused:
    """Several canonical tensors, or slices of them, joined along a dimension.

    Attributes:
      parts: canonical names, Slices or Boxes, in their order in the parameter.
      dim: the dimension of the parameter on which they are joined.
      sizes: extents of the parts on `dim`. Optional if all name a range of `dim`, or all are equal.
    """

    parts: Sequence[CanonicalPart]
    dim: int = 0
    sizes: Optional[Sequence[int]] = None

    def extents(self, name: str, total: int) -> list[int]:
        """The parts' extents, which must add up to `total`; LayoutError naming `name` otherwise."""
        if not self.parts:
            raise LayoutError(f"parameter '{name}': Fused has no parts")
        if self.sizes is not None:
            extents = [int(size) for size in self.sizes]
        elif all(self.dim in ranges_of(part) for part in self.parts):
            ranges = [ranges_of(part)[self.dim] for part in self.parts]
            extents = [end - begin for begin, end in ranges]
        else:
            extents = [total // len(self.parts)] * len(self.parts)
        if len(extents) != len(self.parts) or sum(extents) != total or min(extents) < 1:
            raise LayoutError(
                f"parameter '{name}' has {total} elements on dim {self.dim}, its {len(self.parts)} "
                f"parts have {extents}: give sizes= that add up"
            )
        return extents


@dataclasses.dataclass(frozen=True)
class Part:
    """A box of a parameter, and its source.

    Attributes:
      source: a canonical name, a Slice or a Box.
      box: for each dimension of the parameter, from the first on, [begin, end) or an index, which
        drops the dimension. Dimensions that it leaves out are whole.
    """

    source: CanonicalPart
    box: Sequence[Union[int, tuple[int, int]]] = ()


@dataclasses.dataclass(frozen=True)
class Parts:
    """Boxes of a parameter, which must not overlap. Elements in no box (padding) belong to the
    engine and keep their values."""

    parts: Sequence[Part]


@dataclasses.dataclass(frozen=True)
class Viewed:
    """A parameter that is made of tensors as a view of it is: `parameter.reshape(shape).permute(order)`.

    Attributes:
      source: of the view.
      shape: the parameter's, with dimensions split into several.
      order: the dimensions of `shape`, in the order in which the view has them.
    """

    source: Union[CanonicalPart, Fused, Parts]
    shape: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def is_turned(self) -> bool:
        """Returns whether the view has the dimensions in another order."""
        return list(self.order) != sorted(self.order)

    def permuted(self, values: Sequence[int]) -> tuple[int, ...]:
        """One value for each dimension of `shape`, in the order of the view."""
        return tuple(values[dim] for dim in self.order)

    def of(self, elements: Any) -> Any:
        """The view of a parameter, of torch or numpy."""
        split = elements.reshape(self.shape)
        return split.permute(self.order) if hasattr(split, "permute") else split.transpose(self.order)

    def placed(self, parameter: "Placed") -> "Placed":
        """The view of a parameter in a region.

        Raises:
          LayoutError: `shape` does not split the parameter's dimensions.
        """
        strides: list[int] = []
        rest = list(self.shape)
        fits = True
        for extent, stride in zip(parameter.shape, parameter.strides):
            split = [rest.pop(0) if rest else 0]
            while rest and 0 < math.prod(split) < extent:
                split.append(rest.pop(0))
            fits = fits and math.prod(split) == extent
            strides += [stride * math.prod(split[dim + 1 :]) for dim in range(len(split))]
        if rest or not fits:
            raise LayoutError(f"parameter '{parameter.name}' {list(parameter.shape)} cannot be viewed as {list(self.shape)}")
        return dataclasses.replace(parameter, shape=self.permuted(self.shape), strides=self.permuted(strides))


Source = Union[str, Slice, Box, Fused, Parts, Viewed, None]
Mapped = Mapping[str, Source]


class Place(NamedTuple):
    """The place of a tensor's first element."""

    region: int
    offset_bytes: int


@dataclasses.dataclass(frozen=True)
class Placed:
    """A parameter in a region: strides in elements, the first one at `place`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    place: Place


def ranges_of(part: CanonicalPart) -> Mapping[int, tuple[int, int]]:
    """By dimension, what `part` names of its tensor; nothing: all."""
    return {} if isinstance(part, str) else part.ranges


def tensors_of(source: Source) -> list[str]:
    """The canonical tensors that a parameter is made of."""
    parts: Sequence[CanonicalPart]
    if source is None:
        return []
    if isinstance(source, Viewed):
        return tensors_of(source.source)
    if isinstance(source, Fused):
        parts = source.parts
    elif isinstance(source, Parts):
        parts = [part.source for part in source.parts]
    else:
        parts = [source]
    return [part if isinstance(part, str) else part.tensor for part in parts]


def boxes_of(
    name: str, source: Source, shape: tuple[int, ...]
) -> Iterator[tuple[CanonicalPart, tuple[Any, ...]]]:
    """The parts of a parameter, each with its index in the parameter, or in its view if the source is Viewed.

    Raises:
      LayoutError: the source does not fit the parameter's shape.
    """
    if isinstance(source, Viewed):
        yield from boxes_of(name, source.source, source.permuted(source.shape))
    elif isinstance(source, Parts):
        for box in source.parts:
            yield box.source, tuple(slice(*b) if isinstance(b, tuple) else b for b in box.box)
    elif isinstance(source, Fused):
        begin = 0
        extents = source.extents(name, shape[source.dim])
        for part, extent in zip(source.parts, extents):
            yield part, (slice(None),) * source.dim + (slice(begin, begin + extent),)
            begin += extent
    elif source is not None:
        yield source, ()


def as_viewed(elements: Any, source: Source) -> Any:
    """The parameter, of torch or numpy, as boxes_of has indexes for it."""
    return source.of(elements) if isinstance(source, Viewed) else elements


def source_of(name: str, mapping: Optional[Mapped]) -> Source:
    """What parameter `name` is made of: by default the canonical tensor of the same name."""
    return mapping[name] if mapping and name in mapping else name


def check_mapping(mapping: Optional[Mapped], names: Sequence[str]) -> None:
    """Raises LayoutError if the mapping names parameters that do not exist."""
    unknown = sorted(set(mapping or {}) - set(names))
    if unknown:
        raise LayoutError(f"mapping= names parameters the engine does not have: {unknown}")


def parameter_views(placed: Placed, source: Source) -> Iterator[Any]:
    """The ParameterView messages of one parameter.

    Raises:
      LayoutError: the source does not fit the parameter's shape.
    """
    if source is None:
        return
    if isinstance(source, Viewed):
        yield from parameter_views(source.placed(placed), source.source)
        return
    if isinstance(source, Parts):
        for box in source.parts:
            yield _part_view(placed, box)
        return
    if not isinstance(source, Fused):
        yield _view(placed, source, placed.shape, placed.strides, 0, placed.name)
        return
    if not 0 <= source.dim < len(placed.shape):
        raise LayoutError(
            f"parameter '{placed.name}' {list(placed.shape)} has no dimension {source.dim} "
            "to fuse on"
        )
    begin = 0
    stride = placed.strides[source.dim]
    extents = source.extents(placed.name, placed.shape[source.dim])
    for part, extent in zip(source.parts, extents):
        shape = (*placed.shape[: source.dim], extent, *placed.shape[source.dim + 1 :])
        label = f"{placed.name}[dim {source.dim}, {begin}:{begin + extent}]"
        yield _view(placed, part, shape, placed.strides, begin * stride, label)
        begin += extent


def _part_view(placed: Placed, part: Part) -> Any:
    label = f"{placed.name}{list(part.box)}"
    if len(part.box) > len(placed.shape):
        raise LayoutError(
            f"parameter '{label}': the box has {len(part.box)} dimensions, the parameter "
            f"{list(placed.shape)}"
        )
    shape, strides, first = [], [], 0
    for dim, (extent, stride) in enumerate(zip(placed.shape, placed.strides)):
        bounds = part.box[dim] if dim < len(part.box) else (0, extent)
        begin, end = bounds if isinstance(bounds, tuple) else (bounds, bounds + 1)
        if not 0 <= begin < end <= extent:
            raise LayoutError(
                f"parameter '{label}': [{begin}, {end}) of dimension {dim}, which has {extent} "
                "elements"
            )
        first += begin * stride
        if isinstance(bounds, tuple):
            shape.append(end - begin)
            strides.append(stride)
    return _view(placed, part.source, tuple(shape), tuple(strides), first, label)


def _view(
    placed: Placed,
    source: CanonicalPart,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    first_element: int,
    label: str,
) -> Any:
    ranges = ranges_of(source)
    view = engine_pb2.ParameterView(
        engine_name=label,
        tensor=source if isinstance(source, str) else source.tensor,
        dtype=placed.dtype.value,
        whole=not ranges,
        shape=shape,
        strides=strides,
        region=placed.place.region,
        offset_bytes=placed.place.offset_bytes + first_element * placed.dtype.itemsize,
    )
    for dim, (begin, end) in sorted(ranges.items()):
        if dim >= len(shape) or shape[dim] != end - begin:
            raise LayoutError(
                f"parameter '{label}' {list(shape)} cannot hold [{begin}, {end}) of dim {dim} of "
                f"'{view.tensor}': its extent must be {end - begin}"
            )
        if len(ranges) > 1:
            view.ranges.add(dim=dim, begin=begin, end=end)
        else:
            view.dim, view.begin, view.end = dim, begin, end
    return view
