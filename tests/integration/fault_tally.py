"""Counts the faults that a test injects and their outcome, for the last line of its log."""

from __future__ import annotations

import statistics
import time
from typing import Any, Mapping, Optional

import numpy as np


class FaultTally:
    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._since: Optional[float] = None
        self._injected = 0
        self._versions = 0
        self._bytes = 0
        self._wrong = 0
        self._seconds: list[float] = []

    def injected(self) -> None:
        """Counts a fault that was just noticed; the next comparison shows the recovery."""
        self._injected += 1
        self._since = time.monotonic()

    def compared(self, live: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """An engine has been released with a version whose weights are `wanted`."""
        if self._since is not None:
            self._seconds.append(time.monotonic() - self._since)
            self._since = None
        self._versions += 1
        for name, array in wanted.items():
            self._bytes += array.nbytes
            bits = (np.ascontiguousarray(a).view(np.uint8) for a in (live[name], array))
            self._wrong += int(np.count_nonzero(np.not_equal(*bits)))

    def __str__(self) -> str:
        seconds = sorted(self._seconds) or [0.0]
        return (
            f"{self._fault}: {self._injected} injected, {self._versions} versions compared, "
            f"{self._wrong} of {self._bytes} bytes wrong, recovered in {statistics.median(seconds):.2f} s "
            f"(median), {seconds[-1]:.2f} s at most"
        )
