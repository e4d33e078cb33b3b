"""Tests with a stand-in for the sender, and a stand-in for a sharded tensor."""

from __future__ import annotations

import math
import tempfile
import unittest
from typing import Any, Optional, Sequence

import numpy as np
import torch

from tests.clients.python.fake_daemons import FakeSender, slice_elements


class Shard:
    """See torch.distributed.tensor.Shard."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim})"


class Replicate:
    """See torch.distributed.tensor.Replicate."""


class Mesh:
    """As torch.distributed.device_mesh.DeviceMesh, of the process at a coordinate."""

    def __init__(self, shape: Sequence[int], coordinate: Sequence[int]) -> None:
        self.shape, self.ndim = tuple(shape), len(shape)
        self.mesh_dim_names = tuple(f"axis{i}" for i in range(self.ndim))
        self.size = self.shape.__getitem__
        self.get_coordinate = lambda: tuple(coordinate)


class ShardedTensor:
    """The part of a DTensor that dws.trainers reads. One axis, unless a mesh is given: the rank's
    part of `full`, cut as torch.chunk does."""

    def __init__(
        self,
        full: torch.Tensor,
        rank: int,
        ranks: int,
        placements: Optional[Sequence[Any]] = None,
        mesh: Optional[Mesh] = None,
    ) -> None:
        self.placements = placements or [Shard(0)]
        self.device_mesh = mesh or Mesh([ranks], [rank])
        self.shape, self.dtype = full.shape, full.dtype
        self.is_floating_point = full.is_floating_point
        self.local = full
        for i, placement in enumerate(self.placements):
            if isinstance(placement, Shard):
                dim, at = placement.dim, self.device_mesh.get_coordinate()[i]
                parts = self.local.chunk(self.device_mesh.size(i), dim)
                empty = self.local.narrow(dim, 0, 0)
                self.local = parts[at] if at < len(parts) else empty

    def to_local(self) -> torch.Tensor:
        return self.local


class SenderCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.start_sender()

    def start_sender(self) -> None:
        self.sender = FakeSender(self.folder)
        self.addCleanup(self.sender.stop)

    def registered(self, name: str) -> tuple[Any, np.ndarray[Any, Any]]:
        """A tensor's shard in the registration, and the bytes that the sender reads."""
        request = self.sender.register
        sizes = slice_elements(request.layout)
        first = 0
        for shard, place in zip(request.layout.shards, request.resident.shards):
            count = math.prod(cells.count for cells in shard.cells) if shard.cells else shard.slice_count
            slices = sizes[first : first + count]
            first += count
            if shard.tensor.name == name:
                count = sum(elements * itemsize for elements, itemsize in slices)
                region = np.frombuffer(self.sender.region(), np.uint8)
                return shard, region[place.offset_bytes :][:count]
        raise KeyError(name)

    def published(self, name: str) -> torch.Tensor:
        """The values that the sender reads, as BF16 or FP32."""
        shard, found = self.registered(name)
        dtype = {10: torch.bfloat16, 13: torch.float32}[shard.tensor.dtype]
        return torch.frombuffer(bytearray(found.tobytes()), dtype=dtype)
