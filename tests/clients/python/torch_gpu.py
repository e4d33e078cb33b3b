"""Tensors of torch that stand for those of a CUDA device: torch works on their memory as on the host's, and dws finds
them on a device. With //tests/fakes/cuda their memory is that of the fake driver's device; without, of this process."""

from __future__ import annotations

import contextlib
import ctypes
import math
from typing import Any, Callable, Iterator
from unittest import mock

import torch

from dws.device_tensor import DeviceTensor
from dws.trainers import device_buffers

DEVICE = torch.device("cuda", 0)


class OnGpu(torch.Tensor):
    """Views of one are such tensors, too; results of type conversions are, but lie in memory of the host."""

    is_cuda = True  # type: ignore[assignment]
    device = DEVICE  # type: ignore[assignment]


class TorchGpu:
    """Attributes:
    free: what device_buffers finds free, in bytes.
    calls: "synchronize" and ("allocate", size in bytes), as device_buffers has called them.
    """

    def __init__(self, malloc: Callable[[int], int]) -> None:
        """Args:
        malloc: allocates so many bytes, and returns their address.
        """
        self._malloc = malloc
        self.free = 64 << 30
        self.calls: list[Any] = []

    def tensor(self, values: torch.Tensor, offset_elements: int = 0) -> Any:
        """A row-major copy in an allocation of its own, so many elements after its start."""
        offset = offset_elements * values.element_size()
        memory = self._memory(offset + max(values.numel(), 1) * values.element_size())
        found = memory[offset:].view(values.dtype)[: values.numel()].view(values.shape)
        found.copy_(values)
        return found

    def _memory(self, size_bytes: int) -> Any:
        address = self._malloc(size_bytes)
        memory = (ctypes.c_uint8 * size_bytes).from_address(address)
        return torch.frombuffer(memory, dtype=torch.uint8).as_subclass(OnGpu)

    @contextlib.contextmanager
    def installed(self) -> Iterator[TorchGpu]:
        """A block in which buffers are allocated here."""

        def allocated(device: Any, size_bytes: int) -> Any:
            assert device == DEVICE
            self.calls.append(("allocate", size_bytes))
            return self._memory(size_bytes).zero_()

        with contextlib.ExitStack() as patched:
            for name, call in (
                ("free_bytes", lambda device: self.free),
                ("allocated", allocated),
                ("synchronize", lambda device: self.calls.append("synchronize")),
            ):
                patched.enter_context(mock.patch.object(device_buffers, name, call))
            yield self


class OwnMemory:
    """A `malloc` for TorchGpu without a driver. Memory lives as long as this."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def __call__(self, size_bytes: int) -> int:
        self._held.append(ctypes.create_string_buffer(size_bytes + 64))
        return -(-ctypes.addressof(self._held[-1]) // 64) * 64


def content(part: DeviceTensor) -> torch.Tensor:
    """A copy of the elements at its address."""
    dtype = part.dtype.torch
    size_bytes = math.prod(part.shape) * part.dtype.itemsize
    data = bytearray(ctypes.string_at(part.address, size_bytes))
    return torch.frombuffer(data, dtype=dtype).view(part.shape)
