"""Buffers on CUDA devices for weights that are cast, joined or reordered before they are published."""

from __future__ import annotations

from typing import Any, Sequence

from dws.dtypes import loaded_torch
from dws.memory import aligned
from dws.trainers.shares import Share

# A buffer must leave so many bytes of the device free, as the sender's snapshot there must
# (kGpuSpareBytes): the training needs memory that it has not allocated yet.
DEVICE_SPARE_BYTES = 8 << 30


def views_on(device: Any, shares: Sequence[Share]) -> tuple[dict[str, Any], str]:
    """Allocates one buffer for the shares.

    Args:
      device: torch's.

    Returns:
      A tensor of zeros for each share, by name, of its published type and its shape, and ""; or none, and why
      the device does not have the memory.
    """
    torch = loaded_torch()
    assert torch is not None
    offsets, end = [], 0
    for share in shares:
        offsets.append(end)
        end = aligned(end + share.size_bytes)
    free = free_bytes(device)
    if free < end + DEVICE_SPARE_BYTES:
        return {}, (
            f"{device} has {free} bytes free, and a buffer takes {end} and leaves at least {DEVICE_SPARE_BYTES}"
        )
    try:
        with torch.inference_mode(False):  # the caller may be in that mode
            buffer = allocated(device, end)
    except torch.cuda.OutOfMemoryError as error:
        return {}, f"{device} cannot allocate a buffer of {end} bytes: {error}"
    found = {}
    for share, offset in zip(shares, offsets):
        flat = buffer[offset : offset + share.size_bytes].view(share.spec.dtype.torch)
        found[share.spec.name] = flat.view([last - first for first, last in share.ranges])
    return found, ""


def free_bytes(device: Any) -> int:
    """The driver's count: memory that torch has freed and keeps for itself is not in it."""
    torch = loaded_torch()
    assert torch is not None
    return int(torch.cuda.mem_get_info(device)[0])


def allocated(device: Any, size_bytes: int) -> Any:
    """Zeros, as a tensor of bytes."""
    torch = loaded_torch()
    assert torch is not None
    return torch.zeros(size_bytes, dtype=torch.uint8, device=device)


def synchronize(device: Any) -> None:
    """Returns when the device has finished the work of this process, on all streams."""
    torch = loaded_torch()
    assert torch is not None
    torch.cuda.synchronize(device)
