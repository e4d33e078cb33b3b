"""Forward passes of one rank inside of the lease: on all ranks of an engine, or on none.

Ranks of an engine wait for each other in the middle of a forward pass (collectives), and each hears of a
pause on its own. Were one to begin a pass while another is held before it, the first would wait for the
second, the second for the commit and the commit for the first. So ranks agree before every pass:

    1. go inside of the lease, if it is open
    2. all ranks tell whether they are inside and with which weights
    3. all inside with the same weights: run, and leave
    4. otherwise leave at once and begin again; together, all give up after the timeout
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable, Iterator, Optional, Sequence

from dws.engine import Engine
from dws.errors import EnginePaused
from dws.lease import Grant

# Of each number the lowest over all ranks. Every rank calls it equally often.
Minimum = Callable[[Sequence[int]], Sequence[int]]

# A rank held at the lease keeps those that are inside from leaving it, and a commit waiting, for so
# long at most; longer when the last round found nobody inside.
_HELD_SECONDS = 0.002
_HELD_SECONDS_ALONE = 0.05
# Bits of a state token that ranks compare: what fits beside the sign of 64.
_TOKEN_MASK = (1 << 62) - 1


class StepGate:
    """Threads: one at a time, the same for a pass and those nested in it."""

    def __init__(self, engine: Engine, minimum: Optional[Minimum], timeout: float) -> None:
        """Args:
        minimum: None for an engine of one rank.
        timeout: seconds a pass waits for the lease.
        """
        self._engine = engine
        self._minimum = minimum
        self._timeout = timeout
        self._held = threading.local()
        self.passes = 0

    @contextlib.contextmanager
    def step(self) -> Iterator[Grant]:
        """A block for one forward pass. Passes may nest: the inner ones are part of the outermost.

        Yields:
          Grant: what is in memory, on all ranks.

        Raises:
          EnginePaused: not released in time, on this rank or another; then on all.
        """
        held: Optional[Grant] = getattr(self._held, "grant", None)
        if held is not None:
            yield held
            return
        with self._entered() as grant:
            self._held.grant = grant
            try:
                yield grant
            finally:
                self._held.grant = None
                self.passes += 1

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, as a step."""

        def stepped(*args: Any, **kwargs: Any) -> Any:
            with self.step():
                return call(*args, **kwargs)

        return stepped

    @contextlib.contextmanager
    def _entered(self) -> Iterator[Grant]:
        if self._minimum is None:
            with self._engine.running(self._timeout) as grant:
                yield grant
            return
        deadline = time.monotonic() + self._timeout
        wait = _HELD_SECONDS
        while True:
            with contextlib.ExitStack() as inside:
                own: Optional[Grant] = None
                reason = "another rank of the engine is"
                try:
                    own = inside.enter_context(self._engine.running(wait))
                except EnginePaused as paused:
                    reason = paused.reason
                token = 0 if own is None else 1 + (int(own.state_token, 16) & _TOKEN_MASK)
                patient = int(time.monotonic() < deadline)
                lowest, highest, all_patient = self._minimum([token, -token, patient])
                if own is not None and lowest == -highest > 0:
                    yield own
                    return
                if not all_patient:
                    raise EnginePaused(reason)
                wait = _HELD_SECONDS if highest else _HELD_SECONDS_ALONE
