"""The lines of a check: one for each cell or case, and a last one with how many there were."""

from __future__ import annotations

import collections
import fnmatch
import sys
from typing import Optional, Sequence


class Report:
    """Lifecycle: made, one call for each case, `end`. Threads: one."""

    def __init__(self, of: str) -> None:
        """Args:
        of: what is checked, for the last line.
        """
        self._of = of
        self._counts: collections.Counter[str] = collections.Counter()

    def ok(self, name: str, text: str = "", seconds: Optional[float] = None) -> None:
        self._say("ok", name, text, seconds)

    def failed(self, name: str, text: str = "", seconds: Optional[float] = None) -> None:
        self._say("FAILED", name, text, seconds)

    def skipped(self, name: str, why: str) -> None:
        self._say("skipped", name, why, None)

    def _say(self, verdict: str, name: str, text: str, seconds: Optional[float]) -> None:
        self._counts[verdict] += 1
        took = "" if seconds is None else f" ({seconds:.0f} s)"
        print(f"{verdict:<7} {name}" + (f": {text}" if text else "") + took, flush=True)

    def end(self) -> int:
        """Prints the last line.

        Returns:
          the exit status: 0 when nothing failed.
        """
        counts = ", ".join(f"{self._counts[verdict]} {verdict}" for verdict in ("ok", "FAILED", "skipped"))
        print(f"{self._of}: {counts}", flush=True)
        return 1 if self._counts["FAILED"] else 0


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Returns those of `names` that match one of the patterns.

    Raises:
      SystemExit: a pattern matches none.
    """
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            print(f"--only: {pattern!r} matches nothing, expected for example {names[0]}", file=sys.stderr)
            raise SystemExit(2)
    return [name for name in names if any(fnmatch.fnmatchcase(name, one) for one in patterns)]
