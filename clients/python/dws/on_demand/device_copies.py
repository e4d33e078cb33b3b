"""How parameters and gradients of a CUDA device get from and to shared memory of the host, which sender and rank map.

What torch's CUDA runtime is asked for is in CudaRuntime only; tests put another one in its place. Only `finish` waits for the
device: what else has to wait gets an event (dws.on_demand.deferred.Done).
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, Optional, Protocol

import torch

from dws.on_demand.deferred import Done

_LOG = logging.getLogger(__name__)
# Units on the device that the arena's bytes were copied to: one is read while the next is on its way.
_BUFFERS = 2


class Runtime(Protocol):
    """Copies between host and device, in order on streams. The current stream is torch's, of the calling thread."""

    def empty(self, size_bytes: int) -> Any:
        """Memory of the device, as bytes."""
        ...

    def host(self, like: Any) -> Any:
        """Memory of the host for a tensor of the device, page-locked."""
        ...

    def copy_in(self, to: Any, source: Any, after: Done) -> Done:
        """Copies to the device, beside the current stream, when `after` has ended."""
        ...

    def copy_out(self, to: Any, source: Any) -> Done:
        """Copies to the host, on the current stream."""
        ...

    def copied(self, source: Any) -> Any:
        """A copy on the device of memory of the host that no longer changes, made on the current stream."""
        ...

    def mark(self) -> Done:
        """The end of what was given to the current stream so far."""
        ...

    def current(self) -> Any:
        """The current stream."""
        ...

    def follow(self, stream: Any, done: Done) -> None:
        """What is given to the stream from now on begins after `done`."""
        ...

    def finish(self) -> None:
        """Waits until the device has done all work of this process."""
        ...


class CudaRuntime:
    """A Runtime of a CUDA device."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._in: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def empty(self, size_bytes: int) -> Any:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def host(self, like: Any) -> Any:
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)

    def copy_in(self, to: Any, source: Any, after: Done) -> Done:
        with torch.cuda.stream(self._in):
            self._in.wait_event(after)
            return self.copy_out(to, source)

    def copy_out(self, to: Any, source: Any) -> Done:
        to.copy_(source, non_blocking=True)
        return self.mark()

    def copied(self, source: Any) -> Any:
        return source.to(self._device, non_blocking=True)

    def mark(self) -> Done:
        event: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self.current())
        found: Done = event
        return found

    def current(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def follow(self, stream: Any, done: Done) -> None:
        stream.wait_event(done)

    def finish(self) -> None:
        torch.cuda.synchronize(self._device)


class Arrival(NamedTuple):
    """A unit on the device, as it is in the arena.

    Attributes:
      bytes: for the current stream.
      done: the end of the copy: then the arena's slot may be filled again.
      buffer: its number.
    """

    bytes: Any
    done: Done
    buffer: int


class DeviceCopies:
    """Copies of one rank. A unit is copied in one piece to a buffer of the device, and taken apart there.

    Lifecycle: made on the stream that `bring` is called on later. Threads: one at a time.

    Attributes:
      runtime: the device's.
    """

    def __init__(self, runtime: Runtime, unit_bytes: int) -> None:
        """Args:
        unit_bytes: of the largest unit in the arena.
        """
        self.runtime = runtime
        self._buffers = [runtime.empty(unit_bytes) for _ in range(_BUFFERS)]
        self._read = [runtime.mark()] * _BUFFERS  # the last one that has read each buffer
        self._next = 0

    def bring(self, source: Any) -> Arrival:
        """Copies a unit to the device. The current stream waits for it, the host does not; call `was_read` after.

        Args:
          source: its bytes in the arena.
        """
        index, self._next = self._next, (self._next + 1) % _BUFFERS
        found = self._buffers[index][: source.numel()]
        done = self.runtime.copy_in(found, source, self._read[index])
        self.runtime.follow(self.runtime.current(), done)
        return Arrival(found, done, index)

    def was_read(self, arrival: Arrival) -> Done:
        """Call it when all that reads an arrival was given to the current stream. Returns the end of that."""
        done = self._read[arrival.buffer] = self.runtime.mark()
        return done

    def finish(self) -> None:
        """Waits until the device has done all work of this process. If it has failed, that is logged."""
        try:
            self.runtime.finish()
        except RuntimeError as error:  # torch's errors of devices
            _LOG.warning("dws: the device has failed: %s", error)


def copies_of(device: Any, unit_bytes: int) -> Optional[DeviceCopies]:
    """What copies to and from torch's `device`; None: parameters are on the host."""
    return None if device.type == "cpu" else DeviceCopies(CudaRuntime(device), unit_bytes)
