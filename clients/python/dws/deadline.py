"""One time limit for a call that consists of several steps."""

from __future__ import annotations

import time


class Deadline:
    """Starts when it is made. Immutable."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds, at least 0."""
        return max(0.0, self._end - time.monotonic())
