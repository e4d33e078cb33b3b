"""Memory of a CUDA device for tests, allocated in every possible way through the driver that
LD_LIBRARY_PATH finds: a real one, or the fake of //tests/fakes/cuda. Uses no framework.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Optional, Sequence

import numpy as np

from dws.cuda_api import LIBRARY, AllocationProperties, HandleType
from dws.device_tensor import row_major_strides
from dws.dtypes import DType

GRANULARITY = 2 << 20
_u64, _size, _int = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int
_DEVICE, _PINNED, _READ_WRITE = 1, 1, 3


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location_type", _int), ("location_id", _int), ("flags", _int)]


class _PoolProperties(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = [
        ("type", _int),
        ("handle_types", _int),
        ("location_type", _int),
        ("location_id", _int),
        ("windows_attributes", ctypes.c_void_p),
        ("size_bytes_max", _size),
        ("rest", ctypes.c_uint8 * 56),
    ]


class Gpu:
    """One device, with its primary context held and current on the thread that made this.

    Memory lives until it is freed or the process ends.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self._library = ctypes.CDLL(LIBRARY)
        self.call("cuInit", 0)
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), ordinal)
        self.enter()

    def enter(self) -> None:
        """Makes the context current on the calling thread."""
        self.call("cuCtxSetCurrent", self._context)

    def call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            raise RuntimeError(f"{function}: error {code}")

    def malloc(self, size_bytes: int) -> int:
        address = _u64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), _size(size_bytes))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", _u64(address))

    def reserve(self, size_bytes: int) -> int:
        """Reserves an address range for `map`; sizes are multiples of GRANULARITY."""
        address = _u64()
        zero = _u64(0)
        arguments = (_size(size_bytes), _size(0), zero, zero)
        self.call("cuMemAddressReserve", ctypes.byref(address), *arguments)
        return address.value

    def map(self, address: int, size_bytes: int, types: HandleType = HandleType.DESCRIPTOR) -> None:
        """Maps a new chunk at the address, like expandable segments do."""
        wanted = AllocationProperties(
            type=_PINNED, handle_types=types, location_type=_DEVICE, location_id=self.ordinal
        )
        handle = _u64()
        size = _size(size_bytes)
        self.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(wanted), _u64(0))
        self.call("cuMemMap", _u64(address), size, _size(0), handle, _u64(0))
        self.call("cuMemRelease", handle)
        access = _Access(_DEVICE, self.ordinal, _READ_WRITE)
        self.call("cuMemSetAccess", _u64(address), size, ctypes.byref(access), _size(1))

    def unmap(self, address: int, size_bytes: int) -> None:
        self.call("cuMemUnmap", _u64(address), _size(size_bytes))

    def pool(self, types: HandleType = HandleType.DESCRIPTOR) -> Any:
        """An explicit memory pool."""
        wanted = _PoolProperties(
            type=_PINNED, handle_types=types, location_type=_DEVICE, location_id=self.ordinal
        )
        made = ctypes.c_void_p()
        self.call("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(wanted))
        return made

    def malloc_async(self, size_bytes: int, pool: Optional[Any] = None) -> int:
        """Allocates from the default pool or from `pool`."""
        address = _u64()
        size, stream = _size(size_bytes), ctypes.c_void_p(0)
        if pool is None:
            self.call("cuMemAllocAsync", ctypes.byref(address), size, stream)
        else:
            self.call("cuMemAllocFromPoolAsync", ctypes.byref(address), size, pool, stream)
        self.call("cuCtxSynchronize")
        return address.value

    def write(self, address: int, data: bytes) -> None:
        self.enter()
        self.call("cuMemcpyHtoD_v2", _u64(address), data, _size(len(data)))

    def read(self, address: int, size_bytes: int) -> bytes:
        self.enter()
        data = ctypes.create_string_buffer(size_bytes)
        self.call("cuMemcpyDtoH_v2", data, _u64(address), _size(size_bytes))
        return data.raw


class GpuTensor:
    """A device tensor with torch's interface, as far as dws uses it. `put` and `get` are for tests."""

    is_cuda = True

    def __init__(
        self,
        gpu: Gpu,
        address: int,
        shape: Sequence[int],
        dtype: DType,
        strides: Optional[Sequence[int]] = None,
    ) -> None:
        self.gpu = gpu
        self.address = address
        self.shape = tuple(shape)
        self.dtype = dtype
        self._strides = tuple(row_major_strides(shape) if strides is None else strides)

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def _span(self) -> int:
        """The number of elements from the first to the end of the last."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self._strides))

    def _view(self, memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        strides = tuple(stride * memory.itemsize for stride in self._strides)
        return np.lib.stride_tricks.as_strided(memory, self.shape, strides)

    def get(self) -> np.ndarray[Any, Any]:
        """The elements in numpy, as raw bits where numpy does not have the type."""
        if not math.prod(self.shape):
            return np.zeros(self.shape, self.dtype.numpy)
        data = self.gpu.read(self.address, self._span() * self.dtype.itemsize)
        return self._view(np.frombuffer(data, self.dtype.numpy)).copy()

    def put(self, values: np.ndarray[Any, Any]) -> None:
        """Writes all elements; bytes between them are unchanged."""
        if math.prod(self.shape):
            data = self.gpu.read(self.address, self._span() * self.dtype.itemsize)
            memory = np.frombuffer(data, self.dtype.numpy).copy()
            self._view(memory)[...] = values
            self.gpu.write(self.address, memory.tobytes())
