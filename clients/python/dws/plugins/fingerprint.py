"""A number over weights. It is equal as long as none of them is written."""

from __future__ import annotations

import importlib
from typing import Any, Iterable

from dws.torch_module import named_tensors

# Number of 64-bit numbers that are hashed at a time. On the host it fits into a core's cache; a
# device has to have the memory free.
_CHUNK_ELEMENTS = 1 << 15
_CHUNK_ELEMENTS_DEVICE = 1 << 22
# Odd, so that no bit of a weight or of its place is lost.
_WEIGHT_FACTOR = 0x1E3779B97F4A7C15
_PLACE_FACTOR = 0x42B2AE3D27D4EB4F
_MIX_FACTOR = 0x56E8FEB86659FD93
_LOW = (1 << 32) - 1
_MASK = (1 << 64) - 1


def fingerprint(model: Any) -> int:
    """As fingerprint_of, over all weights of a model.

    Args:
      model: a torch module.
    """
    return fingerprint_of(named_tensors(model).values())


def fingerprint_of(tensors: Iterable[Any]) -> int:
    """Returns a fingerprint of the bits of all tensors and their places, computed where they are.
    It detects accidental changes, not an attacker's.

    Args:
      tensors: of torch.
    """
    total = 0
    for tensor in tensors:
        total = (total * _PLACE_FACTOR + _of(tensor.detach())) & _MASK
    return total


def _of(tensor: Any) -> int:
    torch: Any = importlib.import_module("torch")
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.view(kinds[tensor.element_size()]).reshape(-1)
    chunk = _CHUNK_ELEMENTS if tensor.device.type == "cpu" else _CHUNK_ELEMENTS_DEVICE
    places = torch.arange(chunk, device=tensor.device) * _PLACE_FACTOR
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for begin in range(0, bits.numel(), chunk):
        mixed = bits[begin : begin + chunk].to(torch.int64, copy=True)  # not in the weights
        # 64-bit sums and products wrap around; a shift brings copies of the sign.
        mixed.mul_(_WEIGHT_FACTOR).add_(places[: mixed.numel()]).add_(_signed(begin * _PLACE_FACTOR))
        for _ in range(2):
            mixed.bitwise_xor_((mixed >> 32).bitwise_and_(_LOW)).mul_(_MIX_FACTOR)
        total += mixed.bitwise_xor_((mixed >> 32).bitwise_and_(_LOW)).sum()
    return int(total.item()) & _MASK


def _signed(number: int) -> int:
    return (number & _MASK) - ((number & (1 << 63)) << 1)
