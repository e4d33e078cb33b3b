"""What an engine tells about itself."""

from __future__ import annotations

import dataclasses

from dws.lease import LeaseStats


@dataclasses.dataclass(frozen=True)
class EngineStats:
    """Attributes:
    lease: time open and paused.
    reattachments: times the receiver was lost and found again.
    connected: whether the lease stream is up.
    last_error: what was wrong last with the receiver, "" if nothing.
    """

    lease: LeaseStats
    reattachments: int
    connected: bool
    last_error: str
