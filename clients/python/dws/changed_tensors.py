"""Which canonical tensors have changed since an engine last brought up to date what it derives from them."""

from __future__ import annotations

from typing import Optional, Sequence


class ChangedTensors:
    """By the numbers that a receiver sends with each commit. Threads: one."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}

    def since_done(self, tensors: Sequence[str], contents: Sequence[int]) -> Optional[frozenset[str]]:
        """Args:
          tensors: the canonical tensor of each view that is attached.
          contents: for each view, a number over what its tensor has.

        Returns:
          those that may have changed since the last `done`; None: it is not known.
        """
        if len(tensors) != len(contents) or not self._done:
            return None
        return frozenset(t for t, content in zip(tensors, contents) if self._done.get(t) != content)

    def done(self, tensors: Sequence[str], contents: Sequence[int]) -> None:
        """Everything is up to date with these."""
        self._done = dict(zip(tensors, contents)) if len(tensors) == len(contents) else {}

    def forget(self) -> None:
        """Nothing is known to be up to date."""
        self._done = {}
