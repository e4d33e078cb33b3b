"""Requests of one pass, one after the other, while versions change and processes die."""

from __future__ import annotations

import threading
import time
from typing import Callable, Collection, Optional

from tools.real.engines.engine_server import EngineServer
from tools.real.engines.observation import Probe


class Traffic:
    """A context manager: inside it, a thread makes requests. It repeats a request that fails.

    Attributes:
      passes: that were answered.
      wrong: those that no version computes; the first is in `first_wrong`.
      seen: indexes of the versions that were.
      failures: requests without an answer.
    """

    def __init__(self, server: Callable[[], EngineServer], versions: Collection[Probe]) -> None:
        """Args:
        versions: what each computes.
        """
        self.passes = 0
        self.wrong = 0
        self.failures = 0
        self.seen: set[int] = set()
        self.first_wrong: Optional[Probe] = None
        self._server = server
        self._versions = list(versions)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stopping.set()
        self._thread.join(150.0)
        if self._thread.is_alive():
            raise RuntimeError("a request did not end")

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._judge(self._server().probe())
            except (RuntimeError, OSError, ValueError, KeyError):
                self.failures += 1
                self._stopping.wait(0.1)

    def _judge(self, found: Probe) -> None:
        self.passes += 1
        if found in self._versions:
            self.seen.add(self._versions.index(found))
            return
        self.wrong += 1
        self.first_wrong = self.first_wrong or found

    def await_passes(self, count: int, timeout: float) -> None:
        """Waits until `count` more passes were answered.

        Raises:
          RuntimeError: not in time.
        """
        until, deadline = self.passes + count, time.monotonic() + timeout
        while self.passes < until:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.passes} passes after {timeout} s, expected {until}")
            time.sleep(0.02)
