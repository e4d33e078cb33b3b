"""Lists of what a trainer has changed in its weights, and the shared memory in which a sender reads them."""

from __future__ import annotations

from typing import Any, Collection, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from dws.arrays import is_torch
from dws.device_tensor import is_on_device
from dws.dtypes import DType, loaded_torch
from dws.errors import DTypeError, InvalidArgumentError, LayoutError
from dws.host_pin import HostPin
from dws.layout import RankLayout, Shard
from dws.memory import SharedRegion, aligned

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

    def __init__(self, layout: RankLayout, on_devices: Collection[str]) -> None:
        """Args:
        on_devices: names of the tensors of which there are lists; those of the host are compared faster than a list
          is proved.
        """
        weights = sum(layout.shard(name).size_bytes for name in on_devices)
        self._shards = {shard.tensor.name: (i, shard) for i, shard in enumerate(layout.shards)}
        self._on_devices = frozenset(on_devices)
        self.region = SharedRegion("dws-lists", max(weights // ROOM_PART, _ROOM_BYTES_MIN))
        self._bytes = self.region.bytes()
        self._pin = HostPin(self.region)

    def put(self, changes: Mapping[str, Optional[Changes]]) -> list[tuple[int, int, int]]:
        """Writes the lists, after the work that this thread has given to the devices that have them.

        Args:
          changes: by tensor; positions in the rank's part of it; None: no list.

        Returns:
          shard, number of entries and offset of each list, by shard. Left out, so that the sender compares them, are
          tensors of the host, lists for which there is no room, and those of parts of 2^31 elements or more.

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
            if listed is not None:
                _check(self._shards[name][1], listed)
        put, end = [], 0
        to_bring: dict[Any, list[tuple[int, Any]]] = {}  # by device: offsets and bits
        for name, (number, shard) in self._shards.items():
            listed = changes.get(name) if name in self._on_devices else None
            if listed is None or _elements(shard) >= _ELEMENTS_MAX:
                continue
            widths = (4, shard.tensor.dtype.itemsize, shard.tensor.dtype.itemsize)
            lengths = [aligned(len(listed.position) * width, _ALIGNMENT_BYTES) for width in widths]
            if end + sum(lengths) > self.region.size_bytes:
                continue
            put.append((number, len(listed.position), end))
            for values, width, length in zip(listed, widths, lengths):
                bits = _bits(values, width)
                if is_torch(bits) and is_on_device(bits):
                    to_bring.setdefault(bits.device, []).append((end, bits))
                else:
                    raw = np.asarray(bits).view(np.uint8)
                    self._bytes[end : end + len(raw)] = raw
                end += length
        for pieces in to_bring.values():
            self._bring(pieces)
        return put

    def _bring(self, pieces: Sequence[tuple[int, Any]]) -> None:
        """Copies lists of one device, ascending by offset, each run of neighbours at once."""
        torch = loaded_torch()
        assert torch is not None
        run: list[Any] = []
        begin = end = 0
        for offset, bits in [*pieces, (self.region.size_bytes + _ALIGNMENT_BYTES, None)]:
            if run and offset != end:
                target = torch.from_numpy(self._bytes[begin:end])
                target.copy_(torch.cat(run))
                run = []
            if bits is None:
                break
            begin = begin if run else offset
            size = bits.numel() * bits.element_size()
            run.append(bits.view(torch.uint8))
            padded = aligned(size, _ALIGNMENT_BYTES)
            run.append(bits.new_zeros(padded - size, dtype=torch.uint8))
            end = offset + padded

    def try_pin(self) -> None:
        """Page-locks the room if this process uses a device."""
        self._pin.try_pin()

    def close(self) -> None:
        """Idempotent."""
        self._pin.close()
        self.region.close()


def _bits(values: Any, itemsize: int) -> Any:
    """Integers as signed ones of `itemsize` bytes, and the bits of other types; contiguous."""
    dtype = DType.of(np.dtype(f"i{itemsize}"))
    if not is_torch(values):
        bits = values if values.dtype.kind in "iu" else values.view(dtype.numpy)
        return np.ascontiguousarray(bits).astype(dtype.numpy, copy=False)
    values = values.detach()
    if values.element_size() == itemsize:
        values = values.view(dtype.torch)
    return values.to(dtype.torch).contiguous()


def _elements(shard: Shard) -> int:
    return int(shard.size_bytes) // int(shard.tensor.dtype.itemsize)


def _check(shard: Shard, listed: Changes) -> None:
    lengths = [tuple(getattr(values, "shape", ())) for values in listed]
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
