"""Calls the CUDA driver directly: the part of it that is needed to hand device memory over.

libcuda.so.1 is loaded when device memory is first used, and never linked, so the package works on
machines without it. No framework is asked: only the driver knows for certain the kind of a piece of
memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
from typing import Any, Iterable, Iterator, Optional

from dws import cuda_api as api
from dws.cuda_api import HANDLE_BYTES, LIBRARY, Attribute, HandleType
from dws.errors import CudaError

_int, _uint, _u64, _size = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t
_pointer = ctypes.c_void_p


@dataclasses.dataclass(frozen=True)
class VirtualAllocation:
    """Attributes:
    handle_types: the ways in which it can be exported, chosen at allocation.
    on_device: whether it is memory of a device.
    """

    handle_types: HandleType
    on_device: bool


class CudaDriver:
    """Lifecycle: load() or in_use(); nothing to close. Threads: safe from any.

    Every method raises CudaError with the driver's name and text of the error.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, parameters in api.PARAMETERS.items():
            function = getattr(library, name, None)
            if function is None:
                raise CudaError(
                    f"{LIBRARY} has no {name}: the CUDA driver is too old, install 515 or newer"
                )
            function.argtypes, function.restype = parameters, _int

    @classmethod
    def load(cls) -> "CudaDriver":
        """Loads and initialises the driver.

        Raises:
          CudaError: there is none, it is too old, or it finds no device.
        """
        try:
            driver = cls(ctypes.CDLL(LIBRARY))
        except OSError as error:
            raise CudaError(
                f"{LIBRARY} cannot be loaded ({error}): install the NVIDIA driver, or give the "
                "container its devices (docker run --gpus)"
            ) from error
        driver._call("cuInit", 0)
        return driver

    @classmethod
    def in_use(cls) -> Optional["CudaDriver"]:
        """The driver if this process already uses a device, else None.

        Initialises nothing: a process that does not use CUDA can still fork, and no context takes
        memory of a device.
        """
        try:
            driver = cls(ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
            return driver if driver._active_devices() else None
        except (OSError, CudaError):
            return None

    # Devices.

    def device_uuid(self, ordinal: int) -> str:
        """The UUID as nvidia-smi shows it, "GPU-...".

        Raises:
          CudaError: the device is a MIG instance, whose memory cannot be shared.
        """
        device = self._device(ordinal)
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, len(name), device)
        if b" MIG " in name.value:
            raise CudaError(
                f"device {ordinal} is '{name.value.decode(errors='replace')}': memory of a MIG "
                "instance cannot be shared between processes, give this one a whole GPU"
            )
        uuid = (ctypes.c_uint8 * 16)()
        self._call("cuDeviceGetUuid_v2", uuid, device)
        digits = bytes(uuid).hex()
        return "GPU-" + "-".join(
            (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        )

    @contextlib.contextmanager
    def context(self, ordinal: int) -> Iterator[None]:
        """A block in which this thread uses the device's primary context, as frameworks do."""
        device = self._device(ordinal)
        before, context = _pointer(), _pointer()
        self._call("cuCtxGetCurrent", ctypes.byref(before))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self._call("cuCtxSetCurrent", context)
            yield
        finally:
            self._call("cuCtxSetCurrent", before)
            self._call("cuDevicePrimaryCtxRelease_v2", device)

    @contextlib.contextmanager
    def any_context(self) -> Iterator[None]:
        """A block in which this thread has the context of some device, to query addresses."""
        current = _pointer()
        self._call("cuCtxGetCurrent", ctypes.byref(current))
        if current.value:
            yield
            return
        active = self._active_devices()
        if not active:
            raise CudaError("this process uses no CUDA device: there is no context for the query")
        with self.context(active[0]):
            yield

    def synchronize(self, ordinal: int) -> None:
        """Returns when the device has finished the work of this process."""
        with self.context(ordinal):
            self._call("cuCtxSynchronize")

    def _device(self, ordinal: int) -> int:
        device = _int()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        return device.value

    def _active_devices(self) -> list[int]:
        """Devices whose primary context exists; none if nothing has initialised the driver."""
        count, flags, active = _int(), _uint(), _int()
        code = self._library.cuDeviceGetCount(ctypes.byref(count))
        if code == api.NOT_INITIALIZED:
            return []
        self._check("cuDeviceGetCount", code)
        found = []
        for ordinal in range(count.value):
            device = self._device(ordinal)
            arguments = (device, ctypes.byref(flags), ctypes.byref(active))
            self._call("cuDevicePrimaryCtxGetState", *arguments)
            if active.value:
                found.append(ordinal)
        return found

    # Memory. Call these within `context` of its device; `attribute` in any context.

    def attribute(self, attribute: Attribute, address: int) -> Optional[int]:
        """Returns the driver's value for the address; None: it is not CUDA memory, or there is no
        such attribute."""
        value = _u64()  # zero, and at least as wide as any attribute
        code = self._library.cuPointerGetAttribute(ctypes.byref(value), attribute, address)
        if code in (api.INVALID_VALUE, api.NOT_SUPPORTED):
            return None
        self._check("cuPointerGetAttribute", code)
        return value.value

    def all_are(self, attribute: Attribute, expected: Iterable[tuple[int, int]]) -> bool:
        """Returns whether the attribute still has these values, given as (address, value). A pause
        waits for thousands of these queries, so this does nothing else."""
        value = _u64()
        get, out, number = self._library.cuPointerGetAttribute, ctypes.byref(value), int(attribute)
        for address, wanted in expected:
            if get(out, number, address) != 0 or value.value != wanted:
                return False
        return True

    def address_range(self, address: int) -> tuple[int, int]:
        """(base, size) of the allocation at the address; for virtual memory, of the mapping."""
        base, size = _u64(), _size()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        return base.value, size.value

    def ipc_handle(self, base: int) -> bytes:
        """An IPC handle of a whole cudaMalloc allocation."""
        return self._bytes("cuIpcGetMemHandle", base)

    def virtual_allocation(self, address: int) -> Optional[VirtualAllocation]:
        """Returns the allocation mapped at the address; None: it is not virtual memory
        (cuMemCreate)."""
        handle = _u64()
        code = self._library.cuMemRetainAllocationHandle(ctypes.byref(handle), address)
        if code in (api.INVALID_VALUE, api.NOT_SUPPORTED):
            return None
        self._check("cuMemRetainAllocationHandle", code)
        try:
            found = api.AllocationProperties()
            self._call("cuMemGetAllocationPropertiesFromHandle", ctypes.byref(found), handle)
        finally:
            self._call("cuMemRelease", handle)
        types = HandleType(found.handle_types & (HandleType.DESCRIPTOR | HandleType.FABRIC))
        return VirtualAllocation(types, found.location_type == api.LOCATION_DEVICE)

    def export_descriptor(self, address: int) -> int:
        """Returns a new descriptor of the virtual allocation at the address; the caller closes it.
        """
        descriptor = _int(-1)
        self._export(ctypes.byref(descriptor), address, HandleType.DESCRIPTOR)
        return descriptor.value

    def export_fabric(self, address: int) -> bytes:
        """A fabric handle of the virtual allocation at the address."""
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        self._export(handle, address, HandleType.FABRIC)
        return handle.raw

    def export_pool(self, pool: int) -> int:
        """Returns a new descriptor of a memory pool; the caller closes it."""
        descriptor = _int(-1)
        target = ctypes.byref(descriptor)
        self._call("cuMemPoolExportToShareableHandle", target, pool, HandleType.DESCRIPTOR, 0)
        return descriptor.value

    def export_pool_pointer(self, base: int) -> bytes:
        """The pointer data that finds an allocation in its exported pool."""
        return self._bytes("cuMemPoolExportPointer", base)

    def register_host(self, address: int, size_bytes: int) -> None:
        """Page-locks host memory for all devices.

        Raises:
          CudaError: also if no device is in use.
        """
        with self.any_context():
            self._call("cuMemHostRegister_v2", address, size_bytes, api.HOST_REGISTER_PORTABLE)

    def unregister_host(self, address: int) -> None:
        """Undoes register_host."""
        if self._active_devices():  # without a device in use nothing is registered
            with self.any_context():
                self._call("cuMemHostUnregister", address)

    def _export(self, target: Any, address: int, kind: HandleType) -> None:
        handle = _u64()
        self._call("cuMemRetainAllocationHandle", ctypes.byref(handle), address)
        try:
            self._call("cuMemExportToShareableHandle", target, handle, kind, 0)
        finally:
            self._call("cuMemRelease", handle)

    def _bytes(self, function: str, address: int) -> bytes:
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        self._call(function, handle, address)
        return handle.raw

    def _call(self, function: str, *arguments: Any) -> None:
        self._check(function, getattr(self._library, function)(*arguments))

    def _check(self, function: str, code: int) -> None:
        if code == api.SUCCESS:
            return
        words = []
        for describe in (self._library.cuGetErrorName, self._library.cuGetErrorString):
            text = ctypes.c_char_p()
            describe(code, ctypes.byref(text))
            words.append((text.value or b"unknown").decode(errors="replace"))
        raise CudaError(f"{function}: {words[0]} ({code}): {words[1]}")
