"""Shared memory that a daemon maps: one sealed memfd per region, and numpy or torch views."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from typing import Any, Literal, Sequence

import numpy as np

from dws.dtypes import DType, loaded_torch
from dws.errors import DwsError, InvalidArgumentError

# Alignment of tensors in a region: a cache line, which is more than any element type needs.
ALIGNMENT_BYTES = 64

# An attribute of the views that are made here. The tensor that an array of numpy has as its base is another object.
MARK = "_dws_view"

ViewKind = Literal["numpy", "torch"]


def aligned(offset_bytes: int, alignment_bytes: int = ALIGNMENT_BYTES) -> int:
    """`offset_bytes` rounded up to a multiple of `alignment_bytes`."""
    return -(-offset_bytes // alignment_bytes) * alignment_bytes


class SharedRegion:
    """A memfd of fixed size, mapped here and, through its descriptor, in a daemon.

    The size is sealed: no process can shrink it under another's mapping. Other users cannot open it
    again with more rights than the descriptor that they got. The memory lives until the last view,
    mapping and descriptor are gone; close() drops only this object's descriptor.
    """

    def __init__(self, name: str, size_bytes: int) -> None:
        """Args:
          name: shown in /proc/*/maps.
          size_bytes: at least 1.

        Raises:
          InvalidArgumentError: size_bytes is less than 1.
          DwsError: the system has no memory or descriptors left.
        """
        self._fd = -1
        if size_bytes < 1:
            raise InvalidArgumentError(f"region '{name}': {size_bytes} bytes, expected at least 1")
        self.size_bytes = size_bytes
        try:
            self._fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.fchmod(self._fd, 0o600)
            os.ftruncate(self._fd, size_bytes)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._map = mmap.mmap(self._fd, size_bytes, mmap.MAP_SHARED)
        except OSError as error:
            self.close()
            raise DwsError(
                f"region '{name}' of {size_bytes} bytes cannot be made: {error}; check free memory "
                "and ulimit -n"
            ) from error

    def descriptor(self) -> int:
        """The read-write descriptor; the region keeps it."""
        if self._fd < 0:
            raise InvalidArgumentError("the region is closed")
        return self._fd

    def read_only_descriptor(self) -> int:
        """Returns a new descriptor that can be read, and mapped for reading only; the caller closes
        it."""
        return os.open(f"/proc/self/fd/{self.descriptor()}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Drops the descriptor. Views stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def view(self, kind: ViewKind, dtype: DType, shape: Sequence[int], offset_bytes: int) -> Any:
        """A writable, row-major view. The daemon sees writes at once.

        Args:
          kind: "numpy" (BF16 and F8 as unsigned integers) or "torch".
          offset_bytes: a multiple of the element size.

        Raises:
          DTypeError: torch has no such type.
          InvalidArgumentError: the view is not inside the region.
        """
        count = math.prod(shape)
        if offset_bytes < 0 or offset_bytes + count * dtype.itemsize > self.size_bytes:
            raise InvalidArgumentError(
                f"a view of {count * dtype.itemsize} bytes at {offset_bytes} lies outside the "
                f"region's {self.size_bytes} bytes"
            )
        if kind == "numpy":
            return np.frombuffer(self._map, dtype.numpy, count, offset_bytes).reshape(shape)
        torch_type = dtype.torch
        torch = loaded_torch()
        assert torch is not None
        with torch.inference_mode(False):  # the caller may be in that mode, and others write to the view
            if count == 0:  # frombuffer refuses it
                return torch.empty(tuple(shape), dtype=torch_type)
            flat = torch.frombuffer(self._map, dtype=torch_type, count=count, offset=offset_bytes)
            view = flat.reshape(tuple(shape))
            for made in (flat, view):  # a view holds what it is a view of
                setattr(made, MARK, True)
            return view

    def bytes(self) -> np.ndarray[Any, Any]:
        """A view of the whole region."""
        return np.frombuffer(self._map, np.uint8)

    def raw(self, dtype: DType, count: int, offset_bytes: int) -> np.ndarray[Any, Any]:
        """A 1-D view of `count` elements as unsigned integers of the element's size."""
        return np.frombuffer(self._map, dtype.raw, count, offset_bytes)
