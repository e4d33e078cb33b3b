"""Which part of a tensor this process has, read from the tensor itself.

A tensor that is no DTensor is replicated: every process has all of it, and rank 0 owns it. A DTensor
of fully_shard is cut on one dimension into parts of ceil(extent / ranks) elements; the last ones are
smaller, or empty.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional

from dws.errors import LayoutError
from dws.layout import Cut

_SUPPORTED = "supported are tensors that fully_shard cut over all processes, and replicated ones"


@dataclasses.dataclass(frozen=True)
class Placement:
    """The part [begin, end) on dimension `dim` of an extent.

    Attributes:
      boundaries: between the parts of all ranks: strictly increasing, inside the extent.
      rank, ranks: whose part it is, of how many; some may have empty ones.
    """

    dim: int
    begin: int
    end: int
    boundaries: tuple[int, ...]
    rank: int
    ranks: int

    @classmethod
    def chunk(cls, dim: int, extent: int, rank: int, ranks: int) -> "Placement":
        """Part `rank` of `extent` elements in `ranks` parts, as torch.chunk cuts."""
        size = max(-(-extent // ranks), 1)
        bounds = sorted({min(size * i, extent) for i in range(ranks + 1)})
        begin, end = min(size * rank, extent), min(size * (rank + 1), extent)
        return cls(dim, begin, end, tuple(bounds[1:-1]), rank, ranks)


def placement_of(name: str, tensor: Any) -> Optional[Placement]:
    """None for a tensor that every process has whole.

    Raises:
      LayoutError: a layout cannot express where its elements are, or they are not in the tensor.
    """
    _refuse_foreign(name, tensor)
    if not hasattr(tensor, "placements"):
        return None
    mesh, kinds = tensor.device_mesh, [type(kind).__name__ for kind in tensor.placements]
    if kinds == ["Replicate"]:
        return None
    if kinds != ["Shard"]:
        axes = f", {list(mesh.mesh_dim_names)}" if mesh.mesh_dim_names else ""
        raise LayoutError(
            f"'{name}' {list(tensor.shape)} is placed as {list(tensor.placements)} on a device mesh "
            f"of {mesh.ndim} dimensions{axes}: {_SUPPORTED}"
        )
    dim = int(tensor.placements[0].dim)
    found = Placement.chunk(dim, int(tensor.shape[dim]), mesh.get_local_rank(), mesh.size())
    local = int(tensor.to_local().shape[dim])
    if local != found.end - found.begin:
        raise LayoutError(
            f"'{name}' {list(tensor.shape)}: this rank has {local} elements of dimension {dim}, "
            f"expected {found.end - found.begin}, those from {found.begin} on: {_SUPPORTED}"
        )
    return found


def _refuse_foreign(name: str, tensor: Any) -> None:
    """Raises LayoutError for tensors that do not hold the weight's elements as they are."""
    why = None
    if hasattr(tensor, "ds_id"):
        why = "is partitioned by DeepSpeed ZeRO-3: use its stage 2, or FSDP2"
    elif type(tensor).__name__ == "FlatParameter" or getattr(tensor, "_is_flat_param", False):
        why = "is a flat parameter of FSDP1: use FSDP2 (fully_shard)"
    elif getattr(tensor, "quant_state", None) is not None:
        why = "is quantised by bitsandbytes: publish a model with plain weights"
    elif getattr(tensor, "is_meta", False):
        why = "is on the meta device, without values: load the weights first"
    if why is not None:
        raise LayoutError(f"'{name}' {why}")


def merged_cut(name: str, placement: Optional[Placement], wanted: Optional[Cut]) -> Optional[Cut]:
    """The tensor's cut for its ranks and for its engines: the boundaries of both.

    Raises:
      LayoutError: they are on different dimensions.
    """
    if placement is None or not placement.boundaries:
        return wanted
    if wanted is None or not wanted.boundaries:
        return Cut(placement.boundaries, placement.dim)
    if wanted.dim != placement.dim:
        raise LayoutError(
            f"'{name}' is sharded on dimension {placement.dim}, and an engine needs it cut on dimension "
            f"{wanted.dim}: a tensor can be cut on one dimension. Use an engine that holds it whole, or "
            "shard it on that dimension (shard_placement_fn= of fully_shard)"
        )
    return Cut(tuple(sorted({*placement.boundaries, *wanted.boundaries})), placement.dim)


def owned_slices(placement: Placement, cut: Cut, extent: int) -> tuple[int, int]:
    """(first slice, slice count) of the part, which is not empty, in a cut with its boundaries."""
    bounds = [0, *cut.boundaries, extent]
    first = bounds.index(placement.begin)
    return first, bounds.index(placement.end) - first


def cuts_by_name(cuts: Optional[Mapping[str, Any]]) -> dict[str, Cut]:
    """`cuts` as Trainer.register takes them; plain boundaries are on dimension 0."""
    return {k: c if isinstance(c, Cut) else Cut(tuple(c)) for k, c in (cuts or {}).items()}
