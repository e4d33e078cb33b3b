"""Lists of what a trainer has changed in its weights, and the shared memory in which a sender reads them."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

import numpy as np

from dws.arrays import is_torch
from dws.dtypes import DType, loaded_torch
from dws.errors import DTypeError, InvalidArgumentError, LayoutError
from dws.host_pin import HostPin
from dws.layout import RankLayout, Shard
from dws.memory import SharedRegion

# The room for lists is one part in so many of the weights: for BF16 enough for 3.1 % of the elements.
ROOM_PART = 8
_ROOM_BYTES_MIN = 1 << 16
_ALIGNMENT_BYTES = 8  # of each array: proto/trainer.proto, ListedShard
# Positions travel as 32 bits, and torch has them signed.
_ELEMENTS_MAX = 1 << 31


class Changes(NamedTuple):
    """The elements of a tensor whose bits have changed. Three arrays of one dimension and the same length, torch
    tensors of any device or numpy arrays.

    Attributes:
      position: integers, ascending: the element's number in row-major order of the shape, whatever the strides are.
      before, after: the element's bits, as any type of the element's size.
    """

    position: Any
    before: Any
    after: Any


class ChangeLists:
    """Room for the lists of one version. The sender has copied them when its publish returns.

    Lifecycle: make; put before each publish; close. Threads: one at a time.
    """

    def __init__(self, layout: RankLayout) -> None:
        weights = sum(shard.size_bytes for shard in layout.shards)
        self._shards = {shard.tensor.name: (i, shard) for i, shard in enumerate(layout.shards)}
        self.region = SharedRegion("dws-lists", max(weights // ROOM_PART, _ROOM_BYTES_MIN))
        self._pin = HostPin(self.region)

    def put(self, changes: Mapping[str, Changes]) -> list[tuple[int, int, int]]:
        """Writes the lists. The devices that have them finish first.

        Args:
          changes: by tensor; positions in the rank's part of it.

        Returns:
          shard, number of entries and offset of each list, by shard. Lists for which there is no room, and those of
          parts of 2^31 elements or more, are left out: the sender compares these.

        Raises:
          InvalidArgumentError: a tensor that is not registered.
          LayoutError, DTypeError: a list that is not three arrays of one dimension and length, or of other elements.
        """
        unknown = sorted(set(changes) - set(self._shards))
        if unknown:
            raise InvalidArgumentError(
                f"changes= names '{unknown[0]}', which this rank has not registered"
            )
        for name, listed in changes.items():
            _check(self._shards[name][1], listed)
        self._pin.try_pin()
        put, end = [], 0
        for name, (number, shard) in self._shards.items():
            if name not in changes or _elements(shard) >= _ELEMENTS_MAX:
                continue
            itemsize = shard.tensor.dtype.itemsize
            count = len(changes[name].position)
            sizes = [_aligned(count * size) for size in (4, itemsize, itemsize)]
            if end + sum(sizes) > self.region.size_bytes:
                continue
            put.append((number, count, end))
            for values, size, length in zip(changes[name], (4, itemsize, itemsize), sizes):
                self._write(values, size, end)
                end += length
        return put

    def _write(self, values: Any, itemsize: int, offset: int) -> None:
        """Writes integers of any size as `itemsize` bytes each, and the bits of other types."""
        if not len(values):
            return
        signed = DType.of(np.dtype(f"i{itemsize}"))
        if not is_torch(values):
            bits = values if values.dtype.kind in "iu" else values.view(signed.numpy)
            self.region.raw(signed, len(values), offset)[...] = bits.astype(f"u{itemsize}")
            return
        torch = loaded_torch()
        assert torch is not None
        with torch.no_grad():
            bits = values.detach()
            if bits.element_size() == itemsize:
                bits = bits.view(signed.torch)
            self.region.view("torch", signed, (len(values),), offset).copy_(bits)

    def close(self) -> None:
        """Idempotent."""
        self._pin.close()
        self.region.close()


def _elements(shard: Shard) -> int:
    return shard.size_bytes // shard.tensor.dtype.itemsize


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _check(shard: Shard, listed: Changes) -> None:
    lengths = [tuple(values.shape) for values in listed]
    if len(listed) != 3 or len(set(lengths)) > 1 or len(lengths[0]) != 1:
        raise LayoutError(
            f"the list of {shard.tensor} has arrays of the shapes {lengths}: expected three, of one dimension and the "
            "same length"
        )
    if lengths[0][0] > _elements(shard):
        raise LayoutError(
            f"the list of {shard.tensor} has {lengths[0][0]} entries, and the rank's part {_elements(shard)} elements"
        )
    if not _integers(listed.position):
        raise DTypeError(
            f"the positions of {shard.tensor} are {listed.position.dtype}: expected integers"
        )
    for values in listed[1:]:
        itemsize = values.element_size() if is_torch(values) else values.itemsize
        if itemsize != shard.tensor.dtype.itemsize:
            raise DTypeError(
                f"the list of {shard.tensor} has elements of {itemsize} bytes ({values.dtype}): expected "
                f"{shard.tensor.dtype.itemsize}, its bits before and after"
            )


def _integers(values: Any) -> bool:
    if is_torch(values):
        return not values.dtype.is_floating_point and not values.dtype.is_complex
    return bool(values.dtype.kind in "iu")
