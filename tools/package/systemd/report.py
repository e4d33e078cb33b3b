"""The report: a line for each check, as it is made, and how many passed and failed."""

from __future__ import annotations

import time
from typing import Callable


class CheckFailed(Exception):
    """The step cannot go on without this."""


class Report:
    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def check(self, truth: object, what: str, found: object = "") -> bool:
        """Writes the check's line. `found` is written with a check that failed."""
        if truth:
            self.passed += 1
            print(f"ok   {what}", flush=True)
        else:
            self.failed += 1
            print(f"FAIL {what}: found {str(found) or 'otherwise'}", flush=True)
        return bool(truth)

    def equal(self, found: object, expected: object, what: str) -> bool:
        return self.check(found == expected, what, f"{found!r}, not {expected!r}")

    def require(self, truth: object, what: str, found: object = "") -> None:
        if not self.check(truth, what, found):
            raise CheckFailed(what)


def until(truth: Callable[[], object], seconds: float, pause: float = 0.05) -> bool:
    """Returns whether it becomes true in time."""
    end = time.monotonic() + seconds
    while not truth():
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
    return True
