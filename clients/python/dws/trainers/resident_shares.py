"""The memory in which a sender reads the shares of this process. Each share has one of three places, chosen when it is
registered:

1. A share that lies on a CUDA device as it is published, row-major and of that element type, is read where the trainer
   has it. If it has moved by the next version, the new place is registered (Trainer.publish).
2. Other shares of a device are written to a buffer there before each version: those that are cast, put together from
   several tensors, or not row-major. Each device has one buffer, allocated once (device_buffers).
3. All others are copied into shared memory of the host before each version: those of the host, and those of a device
   without enough free memory for its buffer.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Callable, Mapping, Optional

from dws.device_tensor import DeviceTensor, device_tensor, is_on_device
from dws.dtypes import loaded_torch
from dws.errors import (
    CudaError,
    DaemonUnavailableError,
    DwsError,
    LayoutError,
    RegistrationLostError,
    StateError,
)
from dws.trainer import Trainer
from dws.trainers import device_buffers
from dws.trainers.shares import Share

_LOG = logging.getLogger(__name__)
# Errors with which device memory is refused: by the driver, by dws.cuda_memory, and by the sender, which may have another
# list of devices (RegistrationLostError).
_OF_DEVICE_MEMORY = (CudaError, LayoutError, DwsError, RegistrationLostError)


@dataclasses.dataclass(frozen=True)
class Source:
    """What this process has of a share now.

    Attributes:
      near: a tensor of the trainer that has some of it, on the device where it is put together.
      tensor: its elements, of any type and strides, in the share's shape; None: no one tensor has them.
      write: writes them, cast, to a tensor of the published type and the share's shape.
    """

    near: Any
    tensor: Optional[Any]
    write: Callable[[Any], Any]

    @classmethod
    def of(cls, tensor: Any) -> Source:
        return cls(tensor, tensor, lambda target: target.copy_(tensor))


@dataclasses.dataclass(frozen=True)
class ShareMemory:
    """Bytes that this process publishes, by where the sender reads them.

    Attributes:
      in_place: where the trainer has them, on a device or in shared memory of the host.
      device_copies: in buffers on their devices, written there before each version.
      host_copies: in shared memory, copied there before each version.
      why_host: why bytes of a device are copied to the host; "" if none are.
    """

    in_place: int
    device_copies: int = 0
    host_copies: int = 0
    why_host: str = ""

    def __str__(self) -> str:
        text = (
            f"{self.in_place} bytes are read in place, {self.device_copies} from buffers on their devices, "
            f"{self.host_copies} from copies on the host"
        )
        return f"{text}: {self.why_host}" if self.why_host else text


class ResidentShares:
    """Lifecycle: make; register once; refresh before each version. Threads: one at a time. It does not keep the
    trainer's memory: a framework may free what it has moved.

    Attributes:
      memory: of the registered shares.
    """

    def __init__(self, shares: Mapping[str, Share], on_device: bool = True) -> None:
        """Args:
        shares: of this process, by name.
        on_device: False: all are copied to the host.
        """
        self._shares = shares
        self._on_device = on_device
        self._parts: dict[str, DeviceTensor] = {}  # what the sender reads on devices
        self._views: dict[str, Any] = {}  # what is written before each version, on devices and the host
        self.memory = ShareMemory(0)

    def register(
        self, trainer: Trainer, sources: Mapping[str, Source], timeout: float, lists: bool = False
    ) -> None:
        """Args:
          sources: by name; `write` is not called.
          lists: see Trainer.register.

        Raises:
          The errors of Trainer.register.
        """
        why_host = self._choose(sources)
        sizes = {name: share.size_bytes for name, share in self._shares.items()}
        on_devices = sum(sizes[name] for name in self._parts)
        buffers = sum(sizes[name] for name in self._views)
        on_host = sum(sizes.values()) - on_devices
        self.memory = ShareMemory(on_devices - buffers, buffers, on_host, why_host)
        try:
            views = trainer.register(
                [share.spec for share in self._shares.values()],
                shards={name: share.cells for name, share in self._shares.items()},
                views="torch",
                timeout=timeout,
                parts=self._parts,
                lists=lists,
            )
        except DwsError as error:
            # A sender without a driver or a device answers UNAVAILABLE.
            no_driver = isinstance(error, DaemonUnavailableError) and "CUDA" in str(error)
            if not self._parts or not (no_driver or type(error) in _OF_DEVICE_MEMORY):
                raise
            raise type(error)(
                f"{error}; or have shares copied to the host, with on_device=False"
            ) from error
        self._views.update({name: view for name, view in views.items() if name not in self._parts})
        _LOG.log(logging.WARNING if self.memory.why_host else logging.INFO, "dws: %s", self.memory)

    def _choose(self, sources: Mapping[str, Source]) -> str:
        """Finds what is read on devices, and allocates the buffers. Returns why a device's shares are copied to the host;
        "": they are not."""
        buffered: dict[Any, list[Share]] = {}  # by device
        for name, share in self._shares.items():
            near = sources[name].near
            if not is_on_device(near) or not share.size_bytes:
                continue
            found = _in_place(share, sources[name]) if self._on_device else None
            if found is None:
                buffered.setdefault(near.device, []).append(share)
            else:
                self._parts[name] = found
        self._written_on = set(buffered)
        if not self._on_device:
            return "on_device=False" if buffered else ""
        reasons = []
        for device, group in buffered.items():
            views, why_not = device_buffers.views_on(device, group)
            for name, view in views.items():
                part = device_tensor(name, view)
                assert part is not None
                self._parts[name] = part
            self._views.update(views)
            if why_not:
                reasons.append(why_not)
        return " and ".join(reasons)

    def refresh(self, sources: Mapping[str, Source]) -> None:
        """Puts the current elements where the sender reads them. Before it copies elements of a device, it waits until
        the device has finished writing them, on all streams; the publish that follows waits for the copies.

        Args:
          sources: by name.

        Raises:
          StateError: a share that the sender reads in place is no longer on a device as it is published.
        """
        torch = loaded_torch()
        assert torch is not None
        near = [source.near for name, source in sources.items() if name in self._views]
        for device in {each.device for each in near if is_on_device(each)}:
            device_buffers.synchronize(device)
        with torch.no_grad():
            for name, source in sources.items():
                share = self._shares[name]
                if name in self._views:
                    source.write(self._views[name])
                    continue
                now = _in_place(share, source)
                if now is None:
                    raise StateError(
                        f"{share.spec} was on a CUDA device, row-major and of that type, when it was registered, and "
                        f"{_found(source.tensor)} now: publish when it is as it was, or make another Publisher"
                    )
                if now != self._parts[name]:  # a publish compares the object
                    self._parts[name] = now


def _in_place(share: Share, source: Source) -> Optional[DeviceTensor]:
    """Returns where a device has the share as it is published; None: nowhere."""
    tensor = source.tensor
    if tensor is None or not is_on_device(tensor) or not tensor.is_contiguous():
        return None
    found = device_tensor(share.spec.name, tensor)
    assert found is not None
    shape = tuple(end - begin for begin, end in share.ranges)
    if found.shape != shape:
        raise LayoutError(f"{share.spec}: found {list(found.shape)} of it, expected {list(shape)}")
    return found if found.dtype is share.spec.dtype else None


def _found(tensor: Optional[Any]) -> str:
    if tensor is None:
        return "is in several tensors"
    return f"is {tensor.dtype} with strides {list(tensor.stride())} on {tensor.device}"
