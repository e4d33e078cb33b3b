"""A stand-in for dws.cuda_driver.CudaDriver and for tensors on its devices: allocations are numbers
without memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any, Iterable, Iterator, Optional, Sequence
from unittest import mock

from dws.cuda_api import MEMORY_OF_DEVICE, Attribute, HandleType
from dws.cuda_driver import CudaDriver, VirtualAllocation
from dws.device_tensor import row_major_strides
from dws.dtypes import DType
from dws.errors import CudaError

MIB = 1 << 20


@dataclasses.dataclass
class Allocation:
    """Attributes:
    kind: "malloc", "virtual" or "pool".
    allowed: how it may be exported, unless it is a malloc.
    pool: the pool's number, for kind "pool".
    """

    base: int
    size_bytes: int
    buffer_id: int
    kind: str = "malloc"
    ordinal: int = 0
    allowed: HandleType = HandleType.DESCRIPTOR
    pool: int = 77
    managed: bool = False
    on_device: bool = True


class StandInDriver:
    """Attributes:
    asked: the calls with an effect, in order.
    lost: the ordinals of devices that have failed.
    """

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.asked: list[tuple[Any, ...]] = []
        self.lost: set[int] = set()
        self.current: Optional[int] = None
        self._ids = 0

    @contextlib.contextmanager
    def installed(self) -> Iterator["StandInDriver"]:
        """A block in which this is the machine's driver and the process uses it."""
        with mock.patch.object(CudaDriver, "load", return_value=self), mock.patch.object(
            CudaDriver, "in_use", return_value=self
        ):
            yield self

    def allocate(self, base: int, size_bytes: int, **options: Any) -> Allocation:
        self._ids += 1
        self.allocations.append(Allocation(base, size_bytes, self._ids, **options))
        return self.allocations[-1]

    def free(self, base: int) -> None:
        self.allocations = [a for a in self.allocations if a.base != base]

    def _at(self, address: int) -> Optional[Allocation]:
        for a in self.allocations:
            if a.base <= address < a.base + a.size_bytes:
                return a
        return None

    def _entered(self, address: int) -> Allocation:
        found = self._at(address)
        if found is None or self.current != found.ordinal:
            raise CudaError(f"{address:#x} in the context of {self.current}: {found}")
        return found

    def device_uuid(self, ordinal: int) -> str:
        return f"GPU-{ordinal}"

    @contextlib.contextmanager
    def context(self, ordinal: int) -> Iterator[None]:
        before, self.current = self.current, ordinal
        try:
            yield
        finally:
            self.current = before

    def any_context(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.current is not None else self.context(0)

    def synchronize(self, ordinal: int) -> None:
        if ordinal in self.lost:
            raise CudaError("cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700): it was lost")
        self.asked.append(("synchronize", ordinal))

    def attribute(self, attribute: Attribute, address: int) -> Optional[int]:
        a = self._at(address)
        assert self.current is not None
        if a is None:
            return None
        return {
            Attribute.MEMORY_TYPE: MEMORY_OF_DEVICE,
            Attribute.BUFFER_ID: a.buffer_id,
            Attribute.IS_MANAGED: int(a.managed),
            Attribute.DEVICE_ORDINAL: a.ordinal,
            Attribute.IS_LEGACY_IPC_CAPABLE: int(a.kind == "malloc"),
            Attribute.ALLOWED_HANDLE_TYPES: int(a.allowed),
            Attribute.POOL: a.pool if a.kind == "pool" else 0,
        }.get(attribute)

    def all_are(self, attribute: Attribute, expected: Iterable[tuple[int, int]]) -> bool:
        return all(self.attribute(attribute, address) == value for address, value in expected)

    def address_range(self, address: int) -> tuple[int, int]:
        a = self._entered(address)
        return a.base, a.size_bytes

    def virtual_allocation(self, address: int) -> Optional[VirtualAllocation]:
        a = self._entered(address)
        return VirtualAllocation(a.allowed, a.on_device) if a.kind == "virtual" else None

    def ipc_handle(self, base: int) -> bytes:
        return self._handle("ipc", base)

    def export_fabric(self, address: int) -> bytes:
        return self._handle("fabric", address)

    def export_pool_pointer(self, base: int) -> bytes:
        return self._handle("pointer", base)

    def export_descriptor(self, address: int) -> int:
        """A memfd whose content names its chunk."""
        return self._memfd(self._handle("chunk", address))

    def export_pool(self, pool: int) -> int:
        return self._memfd(f"pool {pool}".encode())

    def _handle(self, kind: str, address: int) -> bytes:
        assert self._entered(address).base == address
        self.asked.append((kind, address))
        return f"{kind} {address}".encode().ljust(64, b"\0")

    def _memfd(self, content: bytes) -> int:
        descriptor = os.memfd_create("stand-in")
        os.write(descriptor, content)
        return descriptor

    def register_host(self, address: int, size_bytes: int) -> None:
        self.asked.append(("register", size_bytes))

    def unregister_host(self, address: int) -> None:
        self.asked.append(("unregister",))


class StandInTensor:
    """A device tensor with torch's interface, as far as dws uses it."""

    is_cuda = True

    def __init__(
        self,
        address: int,
        shape: Sequence[int],
        dtype: DType = DType.BF16,
        strides: Optional[Sequence[int]] = None,
    ) -> None:
        self.address = address
        self.shape = tuple(shape)
        self.dtype = dtype
        self._strides = tuple(row_major_strides(shape) if strides is None else strides)

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        return self._strides


class InterfaceTensor:
    """A tensor of another framework, which has only `__cuda_array_interface__`."""

    def __init__(self, address: int, shape: Sequence[int], typestr: str, **more: Any) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, more.pop("read_only", False)),
            "shape": tuple(shape),
            "typestr": typestr,
            "version": 3,
            **more,
        }
