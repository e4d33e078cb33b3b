"""A mixed-precision trainer's cast of FP32 masters to BF16 weights, which lists what it changes. Works wherever torch
does; `publish(version, changes=...)` takes the lists."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Optional, Sequence

from dws.arrays import require_plain
from dws.change_lists import Changes
from dws.device_tensor import share_memory
from dws.dtypes import loaded_torch
from dws.errors import DTypeError, InvalidArgumentError, LayoutError


def cast_and_list(masters: Sequence[Any], weights: Sequence[Any]) -> list[Optional[Changes]]:
    """Writes each weight from its master, with the bits that `weight.copy_(master)` gives, and returns what changed
    in each, on the tensor's device.

    Where there is Triton, contiguous tensors of CUDA devices are cast in one pass (cast_kernel). For the time of the
    call it takes an eighth of the weights' bytes for lists, and 32 bytes for each change to put them in order; a
    weight whose list has no room gets None. A NaN gets the bits that NVIDIA's devices since Ampere give it. All others
    take, for the time of a tensor, two copies of it and a byte for each element.

    Args:
      masters: torch tensors of FP32, of any strides.
      weights: of BF16, parallel to `masters`, on their devices, in their shapes, of any strides. One of several
        tied tensors.

    Raises:
      InvalidArgumentError: another number of weights than of masters.
      DTypeError, LayoutError: tensors that are not like that, by their number; or as require_plain. Then nothing is
        written.
    """
    torch = loaded_torch()
    if len(masters) != len(weights):
        raise InvalidArgumentError(
            f"{len(masters)} masters and {len(weights)} weights: expected one master for each weight"
        )
    for number, (master, weight) in enumerate(zip(masters, weights)):
        _check(torch, number, master, weight)
    if torch is None:
        return []
    found: list[Optional[Changes]] = [None] * len(weights)
    by_kernel: dict[Any, list[int]] = {}  # by device
    with torch.no_grad():
        for number, (master, weight) in enumerate(zip(masters, weights)):
            if _for_kernel(master) and _for_kernel(weight):
                by_kernel.setdefault(weight.device, []).append(number)
            else:
                found[number] = _cast(torch, master, weight)
        for numbers in by_kernel.values():
            kernel = _kernel()
            assert kernel is not None
            lists = kernel.cast_and_list([masters[n] for n in numbers], [weights[n] for n in numbers])
            for number, changes in zip(numbers, lists):
                found[number] = changes
    return found


def _for_kernel(tensor: Any) -> bool:
    """Returns whether the kernel casts such a tensor."""
    kernel = _kernel() if tensor.is_cuda and tensor.is_contiguous() else None
    return kernel is not None and tensor.numel() < kernel.ELEMENTS_MAX


@functools.lru_cache(maxsize=None)
def _kernel() -> Optional[Any]:
    """The module cast_kernel; None: there is no Triton."""
    try:
        return importlib.import_module("dws.trainers.cast_kernel")
    except ImportError:
        return None


def _check(torch: Any, number: int, master: Any, weight: Any) -> None:
    for what, tensor, dtype in (("master", master, "float32"), ("weight", weight, "bfloat16")):
        if torch is None or not isinstance(tensor, torch.Tensor):
            raise DTypeError(f"{what} {number} is a {type(tensor).__name__}, expected a torch tensor")
        require_plain(f"{what} {number}", tensor)
        if tensor.dtype is not getattr(torch, dtype):
            raise DTypeError(f"{what} {number} is {tensor.dtype}, expected torch.{dtype}")
    if (master.shape, master.device) != (weight.shape, weight.device):
        raise LayoutError(
            f"master {number} is {list(master.shape)} on {master.device}, and its weight {list(weight.shape)} on "
            f"{weight.device}: expected the same shape and device"
        )
    if share_memory(weight.shape, weight.stride()):
        raise LayoutError(
            f"weight {number} {list(weight.shape)} has strides {list(weight.stride())}: expected an element of its own "
            "for each index, and no expanded view"
        )


def _cast(torch: Any, master: Any, weight: Any) -> Changes:
    bits = weight.view(torch.int16)
    before = bits.clone(memory_format=torch.contiguous_format).view(-1)
    # In one call: on the CPU, the bits of a NaN depend on where the vectors of a call begin.
    weight.copy_(master)
    after = bits.reshape(-1)
    position = (before != after).nonzero().view(-1)
    return Changes(position, before[position], after[position])
