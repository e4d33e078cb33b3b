"""Tensors of numpy and torch as raw bits, which of them are their memory, and the copy from memory order to slice order."""

from __future__ import annotations

import math
from typing import Any, Iterator, Mapping, Optional

import numpy as np

from dws.device_tensor import device_tensor
from dws.dtypes import DType, loaded_torch
from dws.errors import DTypeError, LayoutError
from dws.layout import Shard, TensorSpec


def is_torch(tensor: Any) -> bool:
    """Returns whether `tensor` is a torch tensor."""
    torch = loaded_torch()
    return torch is not None and isinstance(tensor, torch.Tensor)


def require_plain(name: str, tensor: Any, values: bool = True) -> None:
    """Accepts a tensor whose memory is its elements, and everything that is not a tensor of numpy
    or torch.

    Args:
      values: False: only type and shape are needed, which wrappers and tensors on the meta device have too.

    Raises:
      LayoutError: a wrapper (torchao, Transformer Engine, DTensor, fake tensors), a tensor without values or memory, or
        in a layout of its own; with the name, the class and what to pass instead.
    """
    torch = loaded_torch()
    why = None
    if torch is not None and isinstance(tensor, torch.Tensor):
        why = _of_torch(torch, tensor, values)
    elif isinstance(tensor, np.ma.MaskedArray):
        why = "is a masked array, which has elements without values: pass its filled()"
    if why is not None:
        raise LayoutError(f"tensor '{name}' {why}")


def local_of(name: str, tensor: Any) -> Any:
    """What this process has of a DTensor; any other tensor itself.

    Raises:
      LayoutError: as require_plain.
    """
    local = tensor.to_local() if hasattr(tensor, "placements") else tensor
    require_plain(name, local)
    return local


def _of_torch(torch: Any, tensor: Any, values: bool) -> Optional[str]:
    """Returns why `tensor` is refused; None: it is plain. The checks are in an order in which each
    can be answered."""
    kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return f"is a {kind}, without a shape: run the module once, so that it makes its weights"
    if tensor.is_nested:
        return "is a nested tensor, of tensors with shapes of their own: pass these one by one"
    if not values:
        return None
    if hasattr(tensor, "placements"):
        return (
            f"is a {kind}, of which this process has a part: publish the module with dws.trainers.publisher.Publisher, "
            "or pass its full_tensor()"
        )
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return (
            f"is a {kind}, a wrapper that computes its elements from others (__torch_dispatch__): pass a plain tensor of "
            "them, as its dequantize() or the conversion of its library gives"
        )
    if tensor.is_meta:
        return "is on the meta device, without values: load the weights first"
    if getattr(tensor, "quant_state", None) is not None or _is_of_bitsandbytes(tensor):
        return f"is quantised by bitsandbytes ({kind}): pass a model with plain weights"
    if tensor.is_quantized:
        return f"is quantised ({tensor.dtype}, with a scale beside its elements): pass its dequantize()"
    if tensor.layout is not torch.strided:
        return f"has layout {tensor.layout}, expected torch.strided: pass its to_dense()"
    if tensor.is_conj() or tensor.is_neg():
        return "is a view that is conjugated or negated when it is read: pass its resolve_conj().resolve_neg()"
    return _without_memory(tensor)


def _is_of_bitsandbytes(tensor: Any) -> bool:
    return type(tensor).__module__.split(".")[0] == "bitsandbytes"


def _without_memory(tensor: Any) -> Optional[str]:
    try:
        address = tensor.data_ptr()
    except (RuntimeError, ValueError) as error:
        return f"has no memory that can be read: {error}"
    if address or not tensor.numel():
        return None
    return (
        f"{list(tensor.shape)} has no memory of its own (its address is 0): is it a wrapper, or did a framework free or "
        "put to sleep its memory? Pass one that has its values"
    )


def storage_of(tensor: Any) -> Any:
    """The storage of a torch tensor, with data_ptr() and nbytes(), in old releases of torch too."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def runs_in_memory(tensors: Mapping[str, Any]) -> list[list[str]]:
    """The names in groups; each group's tensors follow each other in one storage, without gaps.

    Args:
      tensors: contiguous torch tensors of the host.
    """
    runs: list[list[str]] = []
    end = None
    in_order = sorted(tensors, key=lambda name: (tensors[name].data_ptr(), name))
    for name in in_order:
        tensor = tensors[name]
        begin = (storage_of(tensor).data_ptr(), tensor.dtype, tensor.data_ptr())
        if begin == end and tensor.numel():
            runs[-1].append(name)
        else:
            runs.append([name])
        end = (*begin[:2], begin[2] + tensor.numel() * tensor.element_size())
    return runs


def spec_of(name: str, tensor: Any) -> TensorSpec:
    """The uncut spec of a numpy array, torch tensor or tensor of a CUDA device.

    Raises:
      DTypeError: none of these, or its element type is unknown.
      LayoutError: as require_plain; or its elements share memory.
    """
    require_plain(name, tensor, values=False)
    on_device = device_tensor(name, tensor)
    if on_device is not None:
        return TensorSpec(name, on_device.dtype, on_device.shape)
    if not is_torch(tensor) and not isinstance(tensor, np.ndarray):
        raise DTypeError(f"tensor '{name}' is a {type(tensor).__name__}, expected numpy or torch")
    try:
        return TensorSpec(name, DType.of(tensor.dtype), tuple(tensor.shape))
    except DTypeError as error:
        raise DTypeError(f"tensor '{name}': {error}") from None


def require_contiguous(name: str, tensor: Any) -> None:
    """Raises LayoutError if the elements of `tensor` are not row-major without gaps."""
    if is_torch(tensor):
        contiguous, remedy, strides = tensor.is_contiguous(), ".contiguous()", tensor.stride()
    else:
        contiguous, remedy = tensor.flags.c_contiguous, "numpy.ascontiguousarray()"
        strides = tuple(stride // max(tensor.itemsize, 1) for stride in tensor.strides)
    if not contiguous:
        raise LayoutError(
            f"tensor '{name}' {list(tensor.shape)} is not contiguous (strides {list(strides)}): "
            f"pass a contiguous one, see {remedy}"
        )


def raw_bits(name: str, tensor: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """`tensor` as an array of unsigned integers of the same shape, without a copy for host memory.

    Args:
      dtype: what the layout declares. A numpy array of raw bits passes for BF16 and the F8 types.

    Raises:
      DTypeError: the tensor has another element type.
      LayoutError: as require_plain; or it is not contiguous.
    """
    require_plain(name, tensor)
    require_contiguous(name, tensor)
    if is_torch(tensor):
        if DType.of(tensor.dtype) is not dtype:
            raise DTypeError(
                f"tensor '{name}' is {tensor.dtype}, declared as {dtype.name}: convert it first"
            )
        return _torch_bits(tensor.detach().cpu(), dtype)
    if not isinstance(tensor, np.ndarray):
        raise DTypeError(f"tensor '{name}' is a {type(tensor).__name__}, expected numpy or torch")
    if tensor.dtype != dtype.numpy:
        raise DTypeError(
            f"tensor '{name}' is {tensor.dtype}, declared as {dtype.name} (numpy {dtype.numpy}): "
            "convert it first"
        )
    return tensor.view(dtype.raw)


def _torch_bits(tensor: Any, dtype: DType) -> np.ndarray[Any, Any]:
    torch = loaded_torch()
    assert torch is not None
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    bits: np.ndarray[Any, Any] = tensor.view(signed).numpy()
    return bits.view(dtype.raw)


def slice_rows(bits: np.ndarray[Any, Any], shard: Shard) -> Iterator[np.ndarray[Any, Any]]:
    """For each slice of the shard a 2-D view of `bits` (a copy where its strides need more dimensions): its rows, flattened, are the slice order.

    Args:
      bits: the shard's elements, C-contiguous, of the shard's shape.
    """
    last_cut = shard.tensor.cuts[-1].dim if shard.tensor.cuts else 0
    origin = [begin for begin, _ in shard.ranges]
    for ranges in shard.slices():
        index = tuple(slice(low - o, high - o) for (low, high), o in zip(ranges, origin))
        box = bits[index]  # from the last dimension that is cut on, its rows are contiguous
        width = math.prod(box.shape[last_cut:])
        yield box.reshape(-1, width) if box.size else box.reshape(0, 0)


def copy_elements(target: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], first: int) -> None:
    """Copies `target.size` elements from `rows`, in slice order, beginning with element number
    `first`.

    Args:
      target: 1-D.
      rows: 2-D, in the form that slice_rows yields.
    """
    width = rows.shape[1]
    done = 0
    row, column = divmod(first, width)
    while done < target.size:
        left = target.size - done
        if column == 0 and left >= width:
            count = left // width
            target[done : done + count * width].reshape(count, width)[:] = rows[row : row + count]
            done, row = done + count * width, row + count
        else:
            count = min(left, width - column)
            target[done : done + count] = rows[row, column : column + count]
            done, row, column = done + count, row + 1, 0
