"""The demo's table: a row for each version."""

from __future__ import annotations

import collections
import math

from tools.demo.inbox import Inbox
from tools.demo.publisher import Committed, Published

# A version without rollouts is shown without a reward after this many newer ones.
_PATIENCE = 3


class Table:
    """Prints rows in order, each once the first rollouts of its version have arrived."""

    def __init__(self, weights_bytes: int, inbox: Inbox) -> None:
        self._weights_bytes = weights_bytes
        self._inbox = inbox
        self._waiting: collections.deque[tuple[Published, Committed]] = collections.deque()
        print(
            f"{'version':>7} {'density':>8} {'wire':>10} {'reduction':>9} {'bits/change':>11} "
            f"{'stall':>9} {'commit':>9} {'pause':>9} {'reward':>7}"
        )

    def add(self, published: Published, committed: Committed) -> None:
        """A version, in order, that every receiver has committed."""
        self._waiting.append((published, committed))

    def show(self, everything: bool = False) -> None:
        """Prints the rows that are ready, or all."""
        while self._waiting:
            version = self._waiting[0][0].version
            missing = math.isnan(self._inbox.reward(version))
            if missing and not everything and len(self._waiting) <= _PATIENCE:
                return
            self._print(*self._waiting.popleft())

    def _print(self, published: Published, committed: Committed) -> None:
        delta, wire = not published.full, committed.wire_bytes
        density = f"{published.changed / published.elements:8.2%}" if delta else f"{'full':>8}"
        bits = f"{wire * 8 / max(published.changed, 1):11.2f}" if delta else f"{'-':>11}"
        pause = self._inbox.pause_seconds(published.version)
        reward = self._inbox.reward(published.version)
        print(
            f"{published.version:7} {density} {wire / 1e3:7.0f} kB "
            f"{self._weights_bytes / wire:8.1f}x {bits} "
            f"{published.stall_seconds * 1e3:6.1f} ms {committed.commit_seconds * 1e3:6.0f} ms "
            f"{pause * 1e3:6.1f} ms {reward:7.3f}",
            flush=True,
        )
