"""An engine's weights in the form that the receiver gets: placed in memory, and described."""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional

from dws._proto import engine_pb2
from dws.arrays import is_torch, raw_bits, require_plain, spec_of
from dws.cuda_memory import CudaMemory
from dws.device_tensor import (
    DeviceTensor,
    Whereabouts,
    address_of,
    device_tensor,
    is_on_device,
    row_major_strides,
)
from dws.errors import LayoutError
from dws.held.aliases import Extents, extent_of, followers, warn_of_parameters
from dws.held.places import Places
from dws.handles import Descriptor
from dws.mapping import Mapped, Place, Placed, check_mapping, parameter_views, source_of
from dws.memory import SharedRegion, ViewKind, aligned
from dws.torch_module import bind, holders, is_module, named_tensors


class Attachment:
    """The tensors of one engine. Tensors of the host move into one shared region, row-major;
    tensors of CUDA devices stay where they are. The target changes only in `bind`.

    Attributes:
      views: name -> view of the shared region, torch or numpy like the target's tensor; for a
        tensor of a device the tensor itself.
      request: an AttachRequest in which the last `describe` has set all fields about memory and
        mapping.
      on_devices: whether any tensor is on a device.
    """

    def __init__(self, target: Any, mapping: Optional[Mapped], holder: Optional[Any] = None) -> None:
        """Args:
          target: a torch module, or name -> numpy array or torch tensor, or anything with
            `__cuda_array_interface__`.
          mapping, holder: as for Engine.attach.

        Raises:
          LayoutError, DTypeError: a tensor or its mapping cannot be attached (the message names
            it), or a tensor that shares memory with one that moves cannot follow it.
        """
        tensors = _tensors_of(target)
        check_mapping(mapping, list(tensors))
        chosen = {n: t for n, t in tensors.items() if source_of(n, mapping) is not None}
        if not chosen:
            raise LayoutError("nothing to attach: the target has no mapped tensors")
        # A module is read again at each describe; a dict is copied now.
        self._target = target if is_module(target) else tensors
        self._holder = target if holder is None else holder
        self._names = frozenset(tensors)
        self._mapping = mapping
        self.request = engine_pb2.AttachRequest(client=f"dws-python, pid {os.getpid()}")
        self.views: dict[str, Any] = dict(chosen)
        self._host: list[Placed] = []
        moved = {n: t for n, t in chosen.items() if not is_on_device(t)}
        self._region = self._move_in(moved)
        if is_module(target):
            followers(moved, self._holder)
        else:
            _require_none_left(moved, {n: t for n, t in tensors.items() if n not in chosen})
        self._device_names = [name for name, tensor in chosen.items() if is_on_device(tensor)]
        self.on_devices = bool(self._device_names)
        self._memory: Optional[CudaMemory] = None
        self._places: Optional[Places] = None  # of a module's host tensors, once it is bound
        self._described: list[Whereabouts] = []  # whereabouts of the tensors on devices

    def _move_in(self, tensors: Mapping[str, Any]) -> Optional[SharedRegion]:
        if not tensors:
            return None
        self._host, size_bytes = _place(tensors)
        region = SharedRegion("dws-engine", size_bytes)
        for item in self._host:
            tensor, offset = tensors[item.name], item.place.offset_bytes
            kind: ViewKind = "torch" if is_torch(tensor) else "numpy"
            self.views[item.name] = region.view(kind, item.dtype, item.shape, offset)
            bits = raw_bits(item.name, tensor, item.dtype)
            region.raw(item.dtype, bits.size, offset)[:] = bits.reshape(-1)
        return region

    def describe(self) -> None:
        """Sets the present places of all tensors in `request`. Call it before each Attach: tensors
        of devices may have moved since the last one.

        Raises:
          LayoutError, DTypeError: a tensor of a device cannot be handed over, or is gone, asleep or
            on the host; the message names it.
          CudaError: the driver failed.
        """
        del self.request.regions[:], self.request.views[:]
        placed = list(self._host)
        if self._region is not None:
            self.request.regions.add(size_bytes=self._region.size_bytes)
        if self._device_names:
            tensors = self._on_devices_now()
            self._memory = CudaMemory(tensors)
            first = len(self.request.regions)
            self._memory.describe(self.request.regions)
            if not self.request.regions:
                raise LayoutError("nothing to attach: no tensor has elements")
            for t in tensors:
                place = self._memory.place(t, first)
                placed.append(Placed(t.name, t.dtype, t.shape, t.strides, place))
        for item in placed:
            self.request.views.extend(parameter_views(item, source_of(item.name, self._mapping)))

    def _on_devices_now(self) -> list[DeviceTensor]:
        """Returns the target's tensors of these names; they may be other objects than before."""
        tensors = _tensors_of(self._target)
        self._require_known(tensors)
        held_by = holders(self._target) if is_module(self._target) else {}
        found = []
        self._described = []
        for name in self._device_names:
            tensor = tensors.get(name)
            require_plain(name, tensor)
            located = None if tensor is None else device_tensor(name, tensor, writable=True)
            if located is None:
                raise LayoutError(
                    f"tensor '{name}' was on a CUDA device when it was attached, and is now "
                    f"{'missing' if tensor is None else 'on the host'}: bring it back to a device"
                )
            found.append(located)
            holder, key = held_by.get(name, (self._target, name))
            self._described.append(Whereabouts(holder, key, tensor, address_of(tensor)))
            self.views[name] = tensor
        return found

    def _require_known(self, tensors: Mapping[str, Any]) -> None:
        """Raises LayoutError if a tensor is new, or has another name than before: it is not mapped,
        so nothing would update it."""
        new = sorted(set(tensors) - self._names)
        if new:
            raise LayoutError(
                f"the target has tensors that it did not have when it was attached: {new[:3]}"
                f"{' ...' if len(new) > 3 else ''} ({len(new)} in all). Were they tied to others, "
                "and moving the module (.cpu(), .cuda()) has separated them, as it does with buffers? "
                "Tie them again, or attach the module with another Engine"
            )

    def descriptors(self) -> list[Descriptor]:
        """The descriptors of the request's regions, in order."""
        found: list[Descriptor] = []
        if self._region is not None:
            found.append(self._region.descriptor())
        if self._memory is not None:
            found.extend(self._memory.descriptors())
        return found

    def unchanged(self) -> bool:
        """Returns whether everything is still where it was described, in the same allocations, and
        a module computes with what commits write."""
        if self.left() is not None:
            return False
        if self._memory is None:
            return True
        return all(place.unchanged for place in self._described) and self._memory.unchanged()

    def left(self) -> Optional[str]:
        """Does what Places.left does, for the host's tensors of a module that is bound. Attaching
        again does not repair it."""
        return None if self._places is None else self._places.left()

    def synchronize(self) -> None:
        """Returns when the devices have finished the work of this process.

        Raises:
          CudaError: a device failed, or is gone.
        """
        if self._memory is not None:
            self._memory.synchronize()

    def bind(self) -> None:
        """Makes a module's host parameters and buffers views of the region; nothing for a dict."""
        if is_module(self._target):
            views = {item.name: self.views[item.name] for item in self._host}
            bind(self._target, views, self._holder)
            self._places = Places(self._target, views)


def _tensors_of(target: Any) -> dict[str, Any]:
    if is_module(target):
        return named_tensors(target)
    if isinstance(target, Mapping):
        return dict(target)
    raise LayoutError(f"attach() got a {type(target).__name__}, expected a torch module or a dict")


def _require_none_left(moved: Mapping[str, Any], unmapped: Mapping[str, Any]) -> None:
    """For a dict, whose owner uses other tensors after the attach.

    Raises:
      LayoutError: one that is not mapped shares memory with one that is, by name.
    """
    extents = Extents(moved)
    for name, tensor in unmapped.items():
        extent = None if is_on_device(tensor) else extent_of(tensor)
        for weight, _, _ in extents.overlapping(extent) if extent is not None else ():
            raise LayoutError(
                f"'{name}' shares memory with '{weight}', which is copied into shared memory, and is not mapped itself: "
                "nothing would update it. Leave it out, and make it a view of what attach() returns"
            )
    warn_of_parameters(moved)


def _place(tensors: Mapping[str, Any]) -> tuple[list[Placed], int]:
    """Each tensor's place in the first region, and that region's size in bytes."""
    placed, end = [], 0
    for name, tensor in tensors.items():
        spec = spec_of(name, tensor)
        strides = tuple(row_major_strides(spec.shape))
        placed.append(Placed(name, spec.dtype, spec.shape, strides, Place(0, end)))
        end = aligned(end + spec.size_bytes)
    return placed, max(end, 1)
