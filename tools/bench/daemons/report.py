"""CSV lines on stdout, as codec_bench writes them, and the same table on stderr."""

from __future__ import annotations

import sys
from typing import Optional


class Report:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(
        self,
        number: str,
        case: str,
        ours: float,
        reference: float,
        ratio: float,
        unit: str,
        at_most: Optional[float] = None,
        at_least: Optional[float] = None,
    ) -> None:
        """One figure. `at_most` or `at_least`: what the ratio has to be."""
        print(f"{number},{case},{ours:.6g},{reference:.6g},{ratio:.4f},{unit}", flush=True)
        bar = ""
        if at_most is not None:
            bar = f"<= {at_most:g}  {'kept' if ratio <= at_most else 'MISSED'}"
        if at_least is not None:
            bar = f">= {at_least:g}  {'kept' if ratio >= at_least else 'MISSED'}"
        self._lines.append(
            f"{number:<6}{case:<74}{ours:>12.6g}{reference:>12.6g}  {unit:<12}{ratio:>9.3f}  {bar}"
        )

    def print_table(self) -> None:
        print("\n".join(self._lines), file=sys.stderr)
