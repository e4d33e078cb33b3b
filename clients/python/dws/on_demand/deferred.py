"""What has to wait for copies of a device: leases, pushes and comparisons. Needs no torch."""

from __future__ import annotations

import collections
import logging
from typing import Callable, Deque, Optional, Protocol

_LOG = logging.getLogger(__name__)


class Done(Protocol):
    """The end of work that a device does in the background; torch.cuda.Event is one."""

    def query(self) -> bool:
        """Returns whether it has ended."""
        ...

    def synchronize(self) -> None:
        """Waits for it."""
        ...


class Deferred:
    """Actions, each done when its copy and those before it have ended. Threads: one at a time."""

    def __init__(self) -> None:
        self._waiting: Deque[tuple[Done, Callable[[], None]]] = collections.deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, done: Done, action: Callable[[], None]) -> None:
        self._waiting.append((done, action))

    def run(self, at_most: Optional[int] = None) -> None:
        """Does what can be done.

        Args:
          at_most: waits until so few are left; None: does not wait.

        Raises:
          The errors of the actions, each of which is done once; those of the device.
        """
        while self._waiting:
            done, action = self._waiting[0]
            if not done.query():
                if at_most is None or len(self._waiting) <= at_most:
                    return
                done.synchronize()
            self._waiting.popleft()
            action()

    def end(self) -> list[Callable[[], None]]:
        """Waits until all copies have ended, and returns the actions, which are not done. If the device has failed, that is
        logged: then nothing more is copied."""
        waiting, self._waiting = self._waiting, collections.deque()
        for done, _ in waiting:
            try:
                done.synchronize()
            except RuntimeError as error:  # torch's errors of devices
                _LOG.warning("dws: a copy of a device has failed: %s", error)
                break
        return [action for _, action in waiting]
