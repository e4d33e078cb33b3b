"""Finds the part of a tensor that this process has, from the tensor itself.

A tensor that is not a DTensor is whole, and the same on every process that has it. A DTensor may be
cut on any dimensions, each by any axes of its device mesh, and replicated over the other axes. Axis
after axis, Shard cuts what is there into parts of ceil(rows / ranks) rows; the last ones are
smaller, or empty. _StridedShard, which fully_shard makes of a tensor that tensor parallelism has
cut on the same dimension, stands left of that cut and comes after it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Sequence

from dws.arrays import local_of
from dws.errors import LayoutError
from dws.layout import Range

# What a process has of each dimension of a tensor; nothing, if one of them is empty.
Ranges = tuple[Range, ...]


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis of a device mesh that cuts a dimension.

    Attributes:
      split_factor: of a _StridedShard: the number of parts that the axes right of it make; else None.
    """

    ranks: int
    coordinate: int
    split_factor: Optional[int] = None


def rows_of(rows: int, axes: Sequence[Axis]) -> Optional[Range]:
    """The consecutive rows that a process has of a dimension that `axes`, from left to right, cut; (0, 0) for none.

    None if they are not consecutive, or if DTensor's order of the cuts gives others than that in which
    fully_shard makes them: then the tensor's own full_tensor() is not what was sharded.
    """
    by_dtensor, by_fully_shard = [(0, rows)], [(0, rows)]
    for axis in axes:
        pieces = [
            _chunk(by_dtensor, axis.split_factor or 1, i) for i in range(axis.split_factor or 1)
        ]
        by_dtensor = [run for piece in pieces for run in _chunk(piece, axis.ranks, axis.coordinate)]
    plain = [axis for axis in axes if axis.split_factor is None]
    for axis in plain + [axis for axis in reversed(axes) if axis.split_factor is not None]:
        by_fully_shard = _chunk(by_fully_shard, axis.ranks, axis.coordinate)
    found = _joined(by_dtensor)
    if len(found) > 1 or found != _joined(by_fully_shard):
        return None
    return found[0] if found else (0, 0)


def _chunk(runs: Sequence[Range], parts: int, index: int) -> list[Range]:
    """Part `index` of the runs' rows, as torch.chunk cuts them."""
    rows = sum(end - begin for begin, end in runs)
    size = max(-(-rows // parts), 1)
    found, at = [], 0
    for begin, end in runs:
        low, high = max(size * index - at, 0), min(size * (index + 1) - at, end - begin)
        if low < high:
            found.append((begin + low, begin + high))
        at += end - begin
    return found


def _joined(runs: Sequence[Range]) -> list[Range]:
    """Returns the runs, with adjacent ones joined."""
    found: list[Range] = []
    for begin, end in runs:
        if found and found[-1][1] == begin:
            begin = found.pop()[0]
        found.append((begin, end))
    return found


def ranges_of(name: str, tensor: Any) -> Ranges:
    """Raises:
    LayoutError: a layout cannot express where its elements are, or they are not in the tensor's memory.
    """
    if getattr(tensor, "_is_flat_param", False):
        raise LayoutError(
            f"'{name}' is a flat parameter outside of FullyShardedDataParallel: use that, or FSDP2"
        )
    held = tuple(local_of(name, tensor).shape)
    shape = tuple(int(extent) for extent in tensor.shape)
    found = [(0, extent) for extent in shape]
    if not hasattr(tensor, "placements"):
        return tuple(found)
    mesh = tensor.device_mesh
    sizes = " x ".join(str(mesh.size(i)) for i in range(mesh.ndim))
    axes_names = f" {list(mesh.mesh_dim_names)}" if mesh.mesh_dim_names else ""
    where = (
        f"'{name}' {list(shape)} is placed as {list(tensor.placements)} on a device mesh of "
        f"{sizes}{axes_names}"
    )
    for dim, cutting in _cutting_axes(where, tensor).items():
        rows = rows_of(shape[dim], cutting)
        if rows is None:
            raise LayoutError(
                f"{where}: what this process has of dimension {dim} is not one range of it. Use an extent that "
                "the mesh divides, and shard with fully_shard after tensor parallelism"
            )
        found[dim] = rows
    wanted = tuple(end - begin for begin, end in found)
    if held != wanted:
        raise LayoutError(f"{where}: this process has {list(held)} of it, expected {list(wanted)}")
    return tuple(found)


def _cutting_axes(where: str, tensor: Any) -> dict[int, list[Axis]]:
    """By dimension, the axes that cut it, from left to right.

    Args:
      where: for errors.

    Raises:
      LayoutError: this process is not in the mesh, or its elements are not those of the tensor.
    """
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        raise LayoutError(
            f"{where}, which this process is not in: give it only modules that it has a part of"
        )
    found: dict[int, list[Axis]] = {}
    for i, placement in enumerate(tensor.placements):
        kind = type(placement).__name__
        if kind not in ("Replicate", "Shard", "_StridedShard"):
            raise LayoutError(f"{where}: expected Replicate and Shard; redistribute it first")
        if kind != "Replicate" and mesh.size(i) > 1:
            factor = int(placement.split_factor) if kind == "_StridedShard" else None
            axis = Axis(int(mesh.size(i)), int(coordinate[i]), factor)
            found.setdefault(int(placement.dim) % len(tensor.shape), []).append(axis)
    return found
