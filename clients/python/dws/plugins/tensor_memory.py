"""Tensors of torch as memory: where their elements are, copies of them, and stand-ins for them."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any, Iterator, Mapping

# Bytes of no meaning: a period of them fills a tensor.
_PERIOD = 4093


def device_of(live: Mapping[str, Any]) -> Any:
    return next((t.device for t in live.values() if t is not None), "cpu")


@contextlib.contextmanager
def working_on(device: Any) -> Iterator[None]:
    """A block for work on tensors of a device, on any thread. No gradients are recorded."""
    torch: Any = importlib.import_module("torch")
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if device is not None and device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))  # not that of this thread
        yield


def synchronize(device: Any) -> None:
    """Returns when the device has done all that this process has asked of it, on any stream."""
    if device.type != "cpu":
        importlib.import_module("torch").get_device_module(device).synchronize(device)


def filled_like(meta: Any, device: Any) -> Any:
    """A tensor like the one on the meta device, with values of no meaning."""
    torch: Any = importlib.import_module("torch")
    memory = torch.empty_strided(tuple(meta.shape), tuple(meta.stride()), dtype=meta.dtype, device=device)
    numbers = torch.arange(_PERIOD, device=device) * 7 % 127 + 1  # of any type, and none special
    values = (numbers / 32 if meta.dtype.is_floating_point else numbers).to(meta.dtype)
    size = sum((extent - 1) * step for extent, step in zip(memory.shape, memory.stride())) + 1
    size = size if memory.numel() else 0
    flat = memory.as_strided((size,), (1,), 0)
    whole = size // _PERIOD * _PERIOD
    flat[:whole].view(-1, _PERIOD).copy_(values.expand(whole // _PERIOD, _PERIOD))
    flat[whole:].copy_(values[: size - whole])
    return with_class_of(memory, meta)


def twin_of(tensor: Any) -> Any:
    """Another object in the same memory."""
    return with_class_of(tensor.detach(), tensor)


def copy_of(tensor: Any) -> Any:
    """Another object with the same elements in memory of its own."""
    torch: Any = importlib.import_module("torch")
    memory = torch.empty_strided(
        tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device=tensor.device
    )
    memory.copy_(tensor.detach())
    return with_class_of(memory, tensor)


def with_class_of(memory: Any, like: Any) -> Any:
    """`memory` with the class and the attributes of `like`."""
    memory.__class__ = type(like)
    vars(memory).update(vars(like))
    return memory


def bytes_of(tensor: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def bits_of(tensor: Any) -> Any:
    """A view of the same memory as integers."""
    torch: Any = importlib.import_module("torch")
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def may_be_addresses(tensor: Any) -> bool:
    """Returns whether the tensor may hold addresses of memory that lasts as long as what is made: a
    library's handle, a table for a kernel."""
    return bool(not tensor.dtype.is_floating_point and tensor.element_size() == 8)


def alike_for_copy(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.device == b.device)


def same_bits(a: Any, b: Any) -> bool:
    return alike_for_copy(a, b) and bool(bytes_of(a).equal(bytes_of(b)))


def alike(a: Any, b: Any) -> bool:
    return alike_for_copy(a, b) and bool(a.stride() == b.stride())


def same_place(a: Any, b: Any) -> bool:
    return alike(a, b) and bool(a.data_ptr() == b.data_ptr())


def shares_storage(a: Any, b: Any) -> bool:
    return storage_of(a) == storage_of(b)


def storage_of(tensor: Any) -> int:
    held = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return int(held.data_ptr())


def shown(value: Any) -> str:
    return repr(value)[:80]
