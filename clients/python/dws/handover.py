"""The memory of a trainer's registration: made or found, filled with initial values, described."""

from __future__ import annotations

import math
from typing import Any, Callable, Collection, Iterator, Mapping, Optional, Sequence

from dws.arrays import is_torch, raw_bits, require_contiguous, require_plain, runs_in_memory
from dws.change_lists import ChangeLists
from dws.cuda_memory import CudaMemory
from dws.declare.module_tensors import ModuleTensors
from dws.declare.passed import Tensors, declared, owned_part
from dws.device_tensor import DeviceTensor, Whereabouts, address_of, device_tensor, is_on_device
from dws.errors import LayoutError, StateError
from dws.handles import Descriptor
from dws.host_pin import HostPin
from dws.layout import Cuts, RankLayout, Shard, ShardRanges
from dws.mapping import Place
from dws.memory import SharedRegion, ViewKind, aligned
from dws.ring import BucketRing
from dws.torch_module import Holder, holders, is_module

# How often a publish tries again when weights move.
_SETTLE_ATTEMPTS = 8


class Handover:
    """The memory of a registration: resident, with a place for each shard, or a ring.

    Resident shards are in one shared region or, if live, in the memory of a tensor on a CUDA
    device. Lifecycle: describe for each registration; close() after the last one.
    """

    def __init__(
        self,
        layout: RankLayout,
        region: Optional[SharedRegion],
        offsets: Optional[Mapping[str, int]] = None,
        live: Optional[Mapping[str, Holder]] = None,
        ring: Optional[BucketRing] = None,
        parts: Collection[str] = (),
        lists: Optional[ChangeLists] = None,
    ) -> None:
        """Args:
        region: of the host; None if every shard is on a device.
        offsets: by name, the offsets of the shards in it, in bytes; none for a ring.
        live: by name, the places of the full tensors of shards on devices.
        parts: names in `live` whose tensors are the shards themselves.
        lists: memory for the lists of what has changed.
        """
        self.layout = layout
        self.region = region
        self.ring = ring
        self.lists = lists
        self._offsets = dict(offsets or {})
        self._live = dict(live or {})
        self._are_parts = frozenset(parts)
        self._described: list[Whereabouts] = []  # whereabouts of the live tensors
        self._memory: Optional[CudaMemory] = None
        self._known = False  # whether the sender has the last description
        self._pin = None if region is None else HostPin(region)

    def describe(self, request: Any) -> None:
        """Sets the fields of a RegisterRequest about the layout and its memory. From then until
        `registered`, the sender does not know the places of the weights.

        Raises:
          LayoutError, DTypeError: a tensor of a device cannot be handed over, by name.
          CudaError: the driver failed.
        """
        self._known = False
        request.layout.CopyFrom(self.layout.to_proto())
        if self.ring is not None:
            request.ring.bucket_bytes = self.ring.bucket_bytes
            request.ring.bucket_count = self.ring.bucket_count
            return
        if self.region is not None:
            request.resident.regions.add(size_bytes=self.region.size_bytes)
        places = {name: Place(0, offset) for name, offset in self._offsets.items()}
        if self._live:
            parts = self._live_parts()
            self._memory = CudaMemory(parts)
            first = len(request.resident.regions)
            self._memory.describe(request.resident.regions)
            places.update({part.name: self._memory.place(part, first) for part in parts})
        for shard in self.layout.shards:
            place = places[shard.tensor.name]
            request.resident.shards.add(region=place.region, offset_bytes=place.offset_bytes)
        if self.lists is not None:
            request.resident.lists_region = len(request.resident.regions)
            request.resident.regions.add(size_bytes=self.lists.region.size_bytes)

    def _live_parts(self) -> list[DeviceTensor]:
        parts = []
        self._described = []
        for name, (holder, key) in self._live.items():
            tensor = holder.get(key)
            parts.append(live_part(self.layout.shard(name), tensor, name in self._are_parts))
            self._described.append(Whereabouts(holder, key, tensor, address_of(tensor)))
        return parts

    def descriptors(self) -> list[Descriptor]:
        """The descriptors of the regions last described, in order; for the host: read-only."""
        found: list[Descriptor] = []
        if self.region is not None:
            found.append(self.region.read_only_descriptor)
        if self._memory is not None:
            found.extend(self._memory.descriptors())
        if self.lists is not None:
            found.append(self.lists.region.read_only_descriptor)
        return found

    def registered(self) -> None:
        """Call after the sender has taken what was last described."""
        self._known = True

    def settle(self, register: Callable[["Handover"], None]) -> None:
        """Call before a version is captured. Waits until devices have finished the work of this
        process, including devices to which weights have moved.

        Args:
          register: called if the sender does not know the present place of a weight: it has moved,
            or a registration failed.

        Raises:
          CudaError: a device failed, or is gone.
          StateError: the weights keep moving.
        """
        self.try_pin()
        for _ in range(_SETTLE_ATTEMPTS):
            if not self._live:
                return
            if self._known and self._memory is not None:
                self._memory.synchronize()
                if all(place.unchanged for place in self._described) and self._memory.unchanged():
                    return
            register(self)
        raise StateError("the weights keep moving to other memory: publish while they stay in place")

    def weights(self) -> Iterator[Any]:
        """The memory of resident weights, to be read: that of the host as numpy bytes, and tensors of
        devices, whole (for `parts`, the objects in the mapping), after the devices have finished the work of
        this process.

        Raises:
          CudaError: a device failed.
        """
        if self.region is not None:
            yield self.region.bytes()
        if self._memory is not None:
            self._memory.synchronize()
        for holder, key in self._live.values():
            yield holder.get(key)

    def try_pin(self) -> None:
        """Page-locks the host's memory if this process uses a device."""
        if self._pin is not None:
            self._pin.try_pin()
        if self.lists is not None:
            self.lists.try_pin()

    def close(self) -> None:
        """Views stay valid. Idempotent."""
        if self._pin is not None:
            self._pin.close()
        if self.lists is not None:
            self.lists.close()


def live_part(shard: Shard, tensor: Any, is_part: bool = False) -> DeviceTensor:
    """The shard's part of a full tensor of a device.

    Args:
      is_part: `tensor` is that part.

    Raises:
      LayoutError: its elements are not row-major and contiguous, or the tensor is on the host; as require_plain.
    """
    name, shape = shard.tensor.name, shard.shape
    require_plain(name, tensor)
    full = device_tensor(name, tensor)
    wanted = shape if is_part else shard.tensor.shape
    if full is None or (full.dtype, full.shape) != (shard.tensor.dtype, wanted):
        raise LayoutError(
            f"tensor {shard.tensor} was registered as {list(wanted)} on a CUDA device, and is now "
            f"{'not on a device' if full is None else f'{full.dtype.name} {list(full.shape)}'}"
            ": bring it back, or make another Trainer"
        )
    full.require_row_major()
    if shape == full.shape:
        return full
    narrowed = max(dim for dim, extent in enumerate(shape) if extent != full.shape[dim])
    if math.prod(shape[:narrowed]) != 1:
        raise LayoutError(
            f"the rank's part of tensor {shard.tensor} is not contiguous on the device: cut it on "
            "dimension 0, or register it as a TensorSpec and copy the part into the view"
        )
    skipped = sum(begin * stride for (begin, _), stride in zip(shard.ranges, full.strides))
    address = full.address + skipped * full.dtype.itemsize
    return DeviceTensor(name, full.dtype, shape, full.strides, address)


def resident_handover(
    tensors: Tensors,
    shards: Optional[ShardRanges],
    cuts: Optional[Cuts],
    views: Optional[ViewKind],
    parts: Optional[Mapping[str, Any]] = None,
    lists: bool = False,
) -> tuple[Handover, dict[str, Any]]:
    """One region for all shards of the host, with the values in `tensors`, and a view of each by
    name. Tensors of CUDA devices, and `parts`, stay where they are and are their own views.

    Raises:
      DTypeError, LayoutError: as for Trainer.register.
    """
    specs, values = declared(tensors, cuts)
    for name, tensor in values.items():
        require_plain(name, tensor)
    layout = RankLayout(specs, shards)
    held_by = _holders(tensors, values)
    live = {
        name: held_by[name]
        for name, tensor in values.items()
        if is_on_device(tensor) and layout.shard(name).size_bytes
    }
    result = {
        name: _live_view(layout.shard(name), tensor)
        for name, tensor in values.items()
        if is_on_device(tensor)
    }
    for name, part in (parts or {}).items():
        if not is_on_device(part):
            raise LayoutError(f"parts= has '{name}', which is not on a CUDA device: leave it out")
        if name in values:
            raise LayoutError(f"'{name}' is in parts= and has a value: expected one of the two")
        result[name] = part
        if layout.shard(name).size_bytes:
            live[name] = (parts or {}, name)
    runs = _host_runs([shard for shard in layout.shards if shard.tensor.name not in live], values)
    offsets, end = {}, 0
    for run in runs:
        for shard in run:
            offsets[shard.tensor.name] = end
            end += shard.size_bytes
        end = aligned(end)
    region = SharedRegion("dws-weights", max(end, 1)) if offsets else None
    kind: ViewKind = views or ("torch" if any(map(is_torch, values.values())) else "numpy")
    for run in runs:
        assert region is not None
        for shard, view in zip(run, _views_of_run(region, kind, run, offsets)):
            name, dtype = shard.tensor.name, shard.tensor.dtype
            result.setdefault(name, view)
            if name in values and not is_on_device(values[name]):
                bits = owned_part(raw_bits(name, values[name], dtype), shard)
                region.raw(dtype, bits.size, offsets[name]).reshape(bits.shape)[...] = bits
    room = ChangeLists(layout, live) if lists else None
    return Handover(layout, region, offsets, live, parts=parts or (), lists=room), {
        shard.tensor.name: result[shard.tensor.name] for shard in layout.shards
    }


def _holders(tensors: Tensors, values: Mapping[str, Any]) -> dict[str, Holder]:
    """Where a later publish finds the tensor of each name: a module is asked again."""
    if is_module(tensors):
        return holders(tensors)
    source = tensors if isinstance(tensors, ModuleTensors) else values
    return {name: (source, name) for name in values}


def _host_runs(shards: Sequence[Shard], values: Mapping[str, Any]) -> list[list[Shard]]:
    """The shards in groups that have places directly after each other in the region.

    Parts of one tensor that the caller declares apart, in the order of its memory, are a group, so
    that it can be one tensor there too (ModuleTensors.bind).
    """
    by_name = {shard.tensor.name: shard for shard in shards}
    whole = {}
    for name, shard in by_name.items():
        value: Any = values.get(name)
        if is_torch(value) and value.device.type == "cpu" and shard.shape == shard.tensor.shape:
            require_contiguous(name, value)
            whole[name] = value
    alone = [[shard] for name, shard in by_name.items() if name not in whole]
    return alone + [[by_name[name] for name in run] for run in runs_in_memory(whole)]


def _views_of_run(
    region: SharedRegion, kind: ViewKind, run: Sequence[Shard], offsets: Mapping[str, int]
) -> Iterator[Any]:
    """A view of each shard; those of several are parts of one tensor."""
    first = run[0].tensor
    elements = sum(math.prod(shard.shape) for shard in run)
    joined = region.view(kind, first.dtype, (elements,), offsets[first.name])
    for shard in run:
        begin = (offsets[shard.tensor.name] - offsets[first.name]) // first.dtype.itemsize
        yield joined[begin : begin + math.prod(shard.shape)].reshape(shard.shape)


def _live_view(shard: Shard, tensor: Any) -> Any:
    if shard.shape == shard.tensor.shape:
        return tensor
    if not hasattr(tensor, "__getitem__"):
        raise LayoutError(
            f"the rank owns a part of tensor {shard.tensor}, and a {type(tensor).__name__} has no "
            "parts: pass a torch tensor"
        )
    return owned_part(tensor.detach() if is_torch(tensor) else tensor, shard)


def ring_handover(
    tensors: Tensors,
    shards: Optional[ShardRanges],
    cuts: Optional[Cuts],
    bucket_bytes: int,
    bucket_count: int,
) -> Handover:
    """A ring for the shards; values in `tensors` are not read.

    Raises:
      DTypeError, LayoutError, InvalidArgumentError: as for Trainer.register_ring.
    """
    specs, _ = declared(tensors, cuts)
    layout = RankLayout(specs, shards)
    ring = BucketRing(bucket_bytes, bucket_count)
    return Handover(layout, ring.region, ring=ring)
