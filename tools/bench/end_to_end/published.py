"""The result of publishing one version, on either path."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Published:
    """`seconds`: until the acknowledgement; of them `stall_seconds` until the weights may change again.
    `size_bytes`: what was sent. `full`: no delta leads to it."""

    seconds: float
    stall_seconds: float
    size_bytes: int
    full: bool = False
