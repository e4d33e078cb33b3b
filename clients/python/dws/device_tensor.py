"""Finds the elements of tensors in the memory of a CUDA device, of any framework."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from dws.dtypes import DType
from dws.errors import DTypeError, LayoutError


@dataclasses.dataclass(frozen=True)
class DeviceTensor:
    """Where a tensor is. It does not keep the memory. It has the attributes of a torch tensor that `device_tensor`
    reads.

    Attributes:
      strides: in elements, none negative.
      address: of the first element; 0 if there are no elements.
    """

    is_cuda: ClassVar[bool] = True

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        return self.strides

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """The address after the last byte of any element."""
        if not self.elements:
            return self.address
        reach = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides))
        return self.address + (reach + 1) * self.dtype.itemsize

    def require_row_major(self) -> None:
        """Raises LayoutError, by name, if elements are not row-major without gaps."""
        wanted = row_major_strides(self.shape)
        if self.elements and any(
            n > 1 and stride != want for n, stride, want in zip(self.shape, self.strides, wanted)
        ):
            raise LayoutError(
                f"tensor '{self.name}' {list(self.shape)} is not contiguous (strides "
                f"{list(self.strides)}): pass a contiguous one, see .contiguous()"
            )


def row_major_strides(shape: Sequence[int]) -> list[int]:
    """Element strides of a contiguous array of `shape`."""
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def is_on_device(tensor: Any) -> bool:
    """Returns whether `tensor` is a torch tensor of a CUDA device, or has
    `__cuda_array_interface__`."""
    on_device = getattr(tensor, "is_cuda", None)
    if on_device is not None:
        return bool(on_device)
    return hasattr(tensor, "__cuda_array_interface__")


def address_of(tensor: Any) -> int:
    """The current address of a device tensor's first element; 0 if it is asleep or empty. Fast
    enough for checks in a pause."""
    if hasattr(tensor, "is_cuda"):
        return int(tensor.data_ptr()) if tensor.is_cuda else 0
    return int(tensor.__cuda_array_interface__["data"][0] or 0)


class Whereabouts(NamedTuple):
    """The place where a tensor was found. It shows cheaply whether the tensor is still there.

    Attributes:
      holder, key: the mapping that holds it, such as a module's dict, and its key there.
      address: of its first element at that time.
    """

    holder: Mapping[str, Any]
    key: str
    tensor: Any
    address: int

    @property
    def unchanged(self) -> bool:
        return self.holder.get(self.key) is self.tensor and address_of(self.tensor) == self.address


def device_tensor(name: str, tensor: Any, writable: bool = False) -> Optional[DeviceTensor]:
    """Returns where the elements are; None for a tensor of the host.

    Args:
      tensor: any object. If it has `is_cuda`, its data_ptr(), stride(), shape and dtype are read,
        as in torch; otherwise `__cuda_array_interface__`.
      writable: refuse a tensor that is marked read-only.

    Raises:
      DTypeError, LayoutError: elements of an unknown type, or that cannot be written in place.
    """
    if not is_on_device(tensor):
        return None
    try:
        found = (
            _of_torch(name, tensor)
            if hasattr(tensor, "is_cuda")
            else _of_interface(name, tensor, writable)
        )
    except DTypeError as error:
        raise DTypeError(f"tensor '{name}': {error}") from None
    _check(found)
    return found


def _of_torch(name: str, tensor: Any) -> DeviceTensor:
    layout = str(getattr(tensor, "layout", "torch.strided"))
    if layout != "torch.strided":
        raise LayoutError(f"tensor '{name}' has layout {layout}, expected torch.strided")
    shape = tuple(int(extent) for extent in tensor.shape)
    strides = _canonical(shape, tensor.stride())
    return DeviceTensor(name, DType.of(tensor.dtype), shape, strides, int(tensor.data_ptr()))


def _of_interface(name: str, tensor: Any, writable: bool) -> DeviceTensor:
    """Supports versions 2 and 3 of the protocol."""
    interface = tensor.__cuda_array_interface__
    element = np.dtype(interface["typestr"])
    if not element.isnative:
        raise DTypeError(f"element type {interface['typestr']} has the other byte order")
    address, read_only = interface["data"]
    if (writable and read_only) or interface.get("mask") is not None:
        kind = "masked" if interface.get("mask") is not None else "read-only"
        raise LayoutError(f"tensor '{name}' is {kind}: pass one that can be written in place")
    shape = tuple(int(extent) for extent in interface["shape"])
    stride_bytes = interface.get("strides")
    if stride_bytes is None:
        strides = row_major_strides(shape)
    elif any(stride % element.itemsize for stride in stride_bytes):
        raise LayoutError(
            f"tensor '{name}' has strides of {list(stride_bytes)} bytes, expected multiples of its "
            f"element's {element.itemsize}"
        )
    else:
        strides = [stride // element.itemsize for stride in stride_bytes]
    return DeviceTensor(
        name, DType.of(element), shape, _canonical(shape, strides), int(address or 0)
    )


def _canonical(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Sets the row-major stride for dimensions of one element, where frameworks set any."""
    ours = row_major_strides(shape)
    return tuple(
        int(stride) if extent > 1 else our for extent, stride, our in zip(shape, strides, ours)
    )


def _check(tensor: DeviceTensor) -> None:
    if not tensor.elements:
        return
    what = f"tensor '{tensor.name}' {list(tensor.shape)}, strides {list(tensor.strides)}"
    if not tensor.address:
        raise LayoutError(
            f"{what}: it has no memory of its own (its address is 0): is it a wrapper, or were "
            "its weights put to sleep?"
        )
    if tensor.address % tensor.dtype.itemsize:
        raise LayoutError(
            f"{what}: its address {tensor.address:#x} is not a multiple of {tensor.dtype.itemsize}, "
            "the size of its elements: copy it to memory of its own"
        )
    if share_memory(tensor.shape, tensor.strides):
        raise LayoutError(
            f"{what}: elements share memory or run backwards: an expanded view? Pass a tensor "
            "with an element of its own for each index"
        )


def share_memory(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether elements of a tensor may share memory, or run backwards."""
    # In the order of the strides, each dimension must step over all that the smaller ones cover.
    reach = 0
    for stride, extent in sorted(zip(strides, shape)):
        if extent <= 1:
            continue
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False
