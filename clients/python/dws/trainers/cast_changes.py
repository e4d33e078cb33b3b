"""A mixed-precision trainer's cast of FP32 masters to BF16 weights, which lists what it changes. Works wherever torch
does; `publish(version, changes=...)` takes the lists."""

from __future__ import annotations

from typing import Any, Sequence

from dws.arrays import require_plain
from dws.change_lists import Changes
from dws.device_tensor import share_memory
from dws.dtypes import loaded_torch
from dws.errors import DTypeError, InvalidArgumentError, LayoutError


def cast_and_list(masters: Sequence[Any], weights: Sequence[Any]) -> list[Changes]:
    """Writes each weight from its master, with the bits that `weight.copy_(master)` gives, and returns what changed
    in each: positions are int64, the elements' bits int16, on the tensor's device. For the time of a tensor it takes two copies of it, and a byte for each element; lists take 12 bytes for
    each changed element.

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
    with torch.no_grad():
        return [_cast(torch, master, weight) for master, weight in zip(masters, weights)]


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
