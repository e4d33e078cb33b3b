"""The result of publishing one version, on either path."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Published:
    """`seconds`: until the acknowledgement. `stall_seconds`: the part of these until the weights
    may change again. `size_bytes`: bytes sent. `full`: no delta leads to it."""

    seconds: float
    stall_seconds: float
    size_bytes: int
    full: bool = False
