"""slime's payload "overwrite" of a tensor: u32 count | u32 positions of bytes | the new bytes."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import xxhash
import zstandard


def encode(old: Any, new: Any, piece_bytes: int) -> Optional[Any]:
    """Returns the payload that changes `old` into `new`, both bytes; None: they are equal.
    `piece_bytes` are compared at a time."""
    found = []
    for first in range(0, new.size, piece_bytes):
        part = slice(first, first + piece_bytes)
        found.append((np.flatnonzero(new[part] != old[part]) + first).astype("<u4"))
    positions = np.concatenate(found)
    if positions.size == 0:
        return None
    count = np.array([positions.size], "<u4")
    return np.concatenate([count.view(np.uint8), positions.view(np.uint8), new[positions]])


def apply(tensor: Any, entry: Any) -> str:
    """Applies a compressed payload. Returns the digest of the tensor's bytes then."""
    payload = np.frombuffer(zstandard.ZstdDecompressor().decompress(entry), np.uint8)
    (count,) = payload[:4].view("<u4")
    tensor[payload[4 : 4 + 4 * count].view("<u4")] = payload[4 + 4 * count :]
    return xxhash.xxh3_128_hexdigest(tensor)
