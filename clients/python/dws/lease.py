"""The execution lease as the engine's threads see it: a gate, open or shut, and the threads inside.

Pure bookkeeping without a daemon: dws.Engine applies the messages of the lease stream to it.

States: shut (at first; `reason` says why) and open (a Grant is held). `shut` closes the gate for
new threads at once; `wait_empty` waits for those inside. So commits happen between forward passes.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Callable, Optional

from dws.errors import EnginePaused, StateError
from dws.stream import Stream


@dataclasses.dataclass(frozen=True)
class Grant:
    """The right to generate, and the exact weights it is for.

    Attributes:
      version: the weight version in the engine's memory.
      stream: the trainer incarnation it belongs to.
      state_token: 32 hex digits over all weights of that version.
    """

    version: int
    stream: Stream
    state_token: str

    def reaches(self, version: int, stream: Optional[Stream]) -> bool:
        """Whether it is `version` or a newer one of `stream`; None: of whatever stream it is of."""
        return self.version >= version and stream in (None, self.stream)


@dataclasses.dataclass(frozen=True)
class LeaseStats:
    """Counted since the first grant.

    Attributes:
      grants: times the gate was opened.
      granted_seconds, paused_seconds: how long it was open or had a thread inside, or neither.
      last_pause_seconds, longest_pause_seconds: from the last thread's leave until the gate opens.
    """

    grants: int
    granted_seconds: float
    paused_seconds: float
    last_pause_seconds: float
    longest_pause_seconds: float


class ExecutionLease:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._grant: Optional[Grant] = None
        self._reason = "never released: the first version has not been committed yet"
        self._detail = ""  # what the receiver adds
        self._inside = 0
        self._nested = threading.local()
        self._grants = 0
        self._first_open = 0.0
        self._paused_since: Optional[float] = None
        self._paused = self._last_pause = self._longest_pause = 0.0

    @property
    def grant(self) -> Optional[Grant]:
        """The current grant, None while shut."""
        with self._changed:
            return self._grant

    @property
    def inside(self) -> bool:
        """Whether this thread is inside."""
        return bool(getattr(self._nested, "depth", 0))

    def enter(self, timeout: Optional[float]) -> Grant:
        """Enters once the gate is open; each enter needs a leave, from the same thread.

        A thread that is inside already enters again at once, with the grant it has.

        Raises:
          EnginePaused: shut for `timeout` seconds (None = for ever).
        """
        depth = getattr(self._nested, "depth", 0)
        if depth:
            self._nested.depth = depth + 1
            held: Grant = self._nested.grant
            return held
        with self._changed:
            if not self._changed.wait_for(lambda: self._grant is not None, timeout):
                raise EnginePaused(self._why())
            assert self._grant is not None
            self._inside += 1
            self._nested.depth, self._nested.grant = 1, self._grant
            return self._grant

    def wait_until(self, wanted: Callable[[Grant], bool], timeout: float) -> Optional[Grant]:
        """A grant that is `wanted`; None if there is none within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._grant is not None and wanted(self._grant), timeout)
            return self._grant if self._grant is not None and wanted(self._grant) else None

    def leave(self) -> None:
        """Undoes one enter of this thread.

        Raises:
          StateError: this thread is not inside.
        """
        if not self.inside:
            raise StateError("left on another thread than entered: running() blocks end where they begin")
        self._nested.depth -= 1
        if self._nested.depth:
            return
        with self._changed:
            self._inside -= 1
            if self._inside == 0 and self._grant is None:
                self._start_pause()
            self._changed.notify_all()

    def shut(self, reason: str) -> None:
        """No thread can enter any more; those inside finish."""
        with self._changed:
            if self._grant is not None and self._inside == 0:
                self._start_pause()
            self._grant = None
            self._reason, self._detail = reason, ""

    def explain(self, detail: str) -> None:
        """Adds the receiver's reason why the gate is shut, until it is shut for another reason."""
        with self._changed:
            self._detail = detail

    @property
    def reason(self) -> str:
        """Why the gate is shut."""
        with self._changed:
            return self._why()

    def _why(self) -> str:
        return f"{self._reason}; {self._detail}" if self._detail else self._reason

    def wait_empty(self, timeout: float) -> bool:
        """Whether no thread is inside, after at most `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._inside == 0, timeout)

    def open(self, grant: Grant) -> None:
        """Lets all threads in with `grant`.

        Raises:
          StateError: a thread is inside: a resume without a pause before it.
        """
        with self._changed:
            if self._inside:
                raise StateError(f"resumed at version {grant.version} while forward passes run")
            now = self._clock()
            if self._paused_since is not None:
                self._last_pause = now - self._paused_since
                self._longest_pause = max(self._longest_pause, self._last_pause)
                self._paused += self._last_pause
                self._paused_since = None
            if self._grants == 0:
                self._first_open = now
            self._grants += 1
            self._grant = grant
            self._changed.notify_all()

    def stats(self) -> LeaseStats:
        with self._changed:
            now = self._clock()
            running_pause = now - self._paused_since if self._paused_since is not None else 0.0
            total = now - self._first_open if self._grants else 0.0
            paused = self._paused + running_pause
            return LeaseStats(
                self._grants, total - paused, paused, self._last_pause, self._longest_pause
            )

    def _start_pause(self) -> None:
        # A pause can only follow a grant.
        if self._grants and self._paused_since is None:
            self._paused_since = self._clock()
