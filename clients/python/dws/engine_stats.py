"""What an engine reports about itself."""

from __future__ import annotations

import dataclasses

from dws.lease import LeaseStats


@dataclasses.dataclass(frozen=True)
class EngineStats:
    """Attributes:
    lease: time open and paused.
    reattachments: how often the receiver was lost and the engine attached again.
    connected: whether the lease stream is up.
    last_error: the last error with the receiver, "" if none.
    """

    lease: LeaseStats
    reattachments: int
    connected: bool
    last_error: str
