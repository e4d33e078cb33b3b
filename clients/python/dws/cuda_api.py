"""The CUDA driver interface that the package uses: names, parameters, numbers, structures.

Declared here as in cuda.h of CUDA 12 and 13; dws.cuda_driver calls it.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any

LIBRARY = "libcuda.so.1"
HANDLE_BYTES = 64  # of an IPC handle, a fabric handle and a pool's pointer

SUCCESS = 0
# Results that answer a question: no such memory, no such kind of it, an older driver.
INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED = 1, 3, 801
LOCATION_DEVICE = 1
HOST_REGISTER_PORTABLE = 1

_int, _uint, _u64, _size = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t
_pointer = ctypes.c_void_p
# The versioned names to which cuda.h maps the plain ones since CUDA 11.4.
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "cuInit": (_uint,),
    "cuGetErrorName": (_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuGetErrorString": (_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGetCount": (_pointer,),
    "cuDeviceGet": (_pointer, _int),
    "cuDeviceGetName": (_pointer, _int, _int),
    "cuDeviceGetUuid_v2": (_pointer, _int),
    "cuDevicePrimaryCtxGetState": (_int, _pointer, _pointer),
    "cuDevicePrimaryCtxRetain": (_pointer, _int),
    "cuDevicePrimaryCtxRelease_v2": (_int,),
    "cuCtxGetCurrent": (_pointer,),
    "cuCtxSetCurrent": (_pointer,),
    "cuCtxSynchronize": (),
    "cuPointerGetAttribute": (_pointer, _int, _u64),
    "cuMemGetAddressRange_v2": (_pointer, _pointer, _u64),
    "cuIpcGetMemHandle": (_pointer, _u64),
    "cuMemRetainAllocationHandle": (_pointer, _u64),
    "cuMemGetAllocationPropertiesFromHandle": (_pointer, _u64),
    "cuMemExportToShareableHandle": (_pointer, _u64, _int, _u64),
    "cuMemRelease": (_u64,),
    "cuMemPoolExportToShareableHandle": (_pointer, _pointer, _int, _u64),
    "cuMemPoolExportPointer": (_pointer, _u64),
    "cuMemHostRegister_v2": (_pointer, _size, _uint),
    "cuMemHostUnregister": (_pointer,),
}


class Attribute(enum.IntEnum):
    """What can be queried about an address: CUpointer_attribute."""

    MEMORY_TYPE = 2
    BUFFER_ID = 7
    IS_MANAGED = 8
    DEVICE_ORDINAL = 9
    IS_LEGACY_IPC_CAPABLE = 10
    ALLOWED_HANDLE_TYPES = 14
    POOL = 17
    MEMORY_BLOCK_ID = 20


class HandleType(enum.IntFlag):
    """Export types of a virtual memory allocation: CUmemAllocationHandleType."""

    NONE = 0
    DESCRIPTOR = 1
    FABRIC = 8


MEMORY_OF_DEVICE = 2  # Attribute.MEMORY_TYPE of device memory


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", _int),
        ("handle_types", _int),
        ("location_type", _int),
        ("location_id", _int),
        ("windows_metadata", _pointer),
        ("flags", ctypes.c_uint8 * 8),
    ]
