"""The memory of a trainer's registration: allocated, filled with initial values, described."""

from __future__ import annotations

from typing import Any, Optional

from dws.arrays import is_torch, raw_bits
from dws.declare import Tensors, declared, owned_part
from dws.layout import Cuts, RankLayout, ShardRanges
from dws.memory import SharedRegion, ViewKind, aligned
from dws.ring import BucketRing


class Handover:
    """The memory of a registration: a resident region with a place for each shard, or a ring."""

    def __init__(
        self,
        layout: RankLayout,
        region: SharedRegion,
        offsets: Optional[list[int]] = None,
        ring: Optional[BucketRing] = None,
    ) -> None:
        """Args:
        offsets: in bytes, parallel to the layout's shards; none for a ring.
        """
        self.layout = layout
        self.region = region
        self.ring = ring
        self._offsets = offsets or []

    def describe(self, request: Any) -> None:
        """Fills the fields of a RegisterRequest that are about the layout and its memory."""
        request.layout.CopyFrom(self.layout.to_proto())
        if self.ring is not None:
            request.ring.bucket_bytes = self.ring.bucket_bytes
            request.ring.bucket_count = self.ring.bucket_count
            return
        request.resident.region_bytes.append(self.region.size_bytes)
        for offset in self._offsets:
            request.resident.shards.add(region=0, offset_bytes=offset)


def resident_handover(
    tensors: Tensors,
    shards: Optional[ShardRanges],
    cuts: Optional[Cuts],
    views: Optional[ViewKind],
) -> tuple[Handover, dict[str, Any]]:
    """One region for all shards, with the values that `tensors` has, and a view of each by name.

    Raises:
      DTypeError, LayoutError: as for Trainer.register.
    """
    specs, values = declared(tensors, cuts)
    layout = RankLayout(specs, shards)
    offsets, end = [], 0
    for shard in layout.shards:
        offsets.append(end)
        end = aligned(end + shard.size_bytes)
    region = SharedRegion("dws-weights", max(end, 1))
    kind: ViewKind = views or ("torch" if any(map(is_torch, values.values())) else "numpy")
    result = {}
    for shard, offset in zip(layout.shards, offsets):
        name, dtype = shard.tensor.name, shard.tensor.dtype
        result[name] = region.view(kind, dtype, shard.shape, offset)
        if name in values:
            bits = owned_part(raw_bits(name, values[name], dtype), shard)
            region.raw(dtype, bits.size, offset).reshape(bits.shape)[...] = bits
    return Handover(layout, region, offsets), result


def ring_handover(
    tensors: Tensors,
    shards: Optional[ShardRanges],
    cuts: Optional[Cuts],
    bucket_bytes: int,
    bucket_count: int,
) -> Handover:
    """A ring for the shards; values of `tensors` are not read.

    Raises:
      DTypeError, LayoutError, InvalidArgumentError: as for Trainer.register_ring.
    """
    specs, _ = declared(tensors, cuts)
    layout = RankLayout(specs, shards)
    ring = BucketRing(bucket_bytes, bucket_count)
    return Handover(layout, ring.region, ring=ring)
