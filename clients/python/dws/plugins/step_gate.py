"""Steps of one rank inside the lease: on all ranks of an engine, or on none.

Ranks of an engine wait for each other in the middle of a forward pass (collectives), and each is
told of a pause separately. If one rank began a pass while another was held before it, the first
would wait for the second, the second for the commit and the commit for the first. So ranks agree
before every step:

    1. go inside the lease, if it is open
    2. all ranks tell each other whether they are inside, and with which weights
    3. if all are inside with the same weights: run, and leave
    4. otherwise leave at once and begin again; all give up together after the timeout

A step may be one call (`step`, `wrap`), or several of one thread: `opening` enters the lease and
keeps it if the call says that more follows; `closing` runs inside and leaves. Everything computed
between the first and the last call uses one version. The rules for a step that stays open:

    1. it is left when `closing` returns or raises, or when the opening call itself raises
    2. a step that is not closed is given up: by the next `opening` or `step` of its thread, or
       `give_up`
    3. `closing` never continues a step that was given up: it raises. If none was open at all
       (the opening call failed, which its engine reports itself) it only calls through

A gate does not wait for asyncio: agreeing blocks the thread. The asynchronous engines of vLLM and
SGLang run their steps in a process or thread of its own, one call after the other. Where tasks of one
thread do take steps, the lease refuses a second one while another is inside.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable, ContextManager, Iterator, Optional, Protocol, Sequence

from dws.errors import EnginePaused, StateError
from dws.lease import Caller, Grant, caller

# The lowest of each number over all ranks. Every rank calls it equally often.
Minimum = Callable[[Sequence[int]], Sequence[int]]

# A rank held at the lease makes the ranks inside wait, and with them a commit, for at most this
# time; for longer if the last round found no rank inside.
_HELD_SECONDS = 0.002
_HELD_SECONDS_ALONE = 0.05
# Bits of a state token that ranks compare: as many as fit in 64 bits with a sign.
_TOKEN_MASK = (1 << 62) - 1


class Leased(Protocol):
    """What a gate enters: a dws.Engine, or several as one."""

    def inside(self, timeout: Optional[float] = None) -> ContextManager[Grant]:
        """See Engine.inside."""

    def passed(self) -> None:
        """See Engine.passed."""

    @property
    def stopped(self) -> Optional[str]:
        """See Engine.stopped."""


class _Thread(threading.local):
    """The state of one thread in a gate."""

    grant: Optional[Grant] = None
    inside: Optional[Caller] = None  # what is in a call that is part of a step
    opened: Optional[contextlib.ExitStack] = None  # leaves the step open between two calls
    given_up = False  # the last opened step was given up; until another stays open


class StepGate:
    """Threads: the calls of a step come from one thread; each thread has its own steps."""

    def __init__(self, engine: Leased, minimum: Optional[Minimum], timeout: float) -> None:
        """Args:
        minimum: None for an engine of one rank.
        timeout: seconds a step waits for the lease.
        """
        self._engine = engine
        self._minimum = minimum
        self._timeout = timeout
        self._thread = _Thread()
        self.passes = 0

    @property
    def held(self) -> Optional[Grant]:
        """The grant of this thread's step; None outside a step."""
        return self._thread.grant

    @contextlib.contextmanager
    def step(self, timeout: Optional[float] = None) -> Iterator[Grant]:
        """A block for one step. Steps may nest: inner ones are part of the outermost.

        Args:
          timeout: seconds it waits for the lease; by default the gate's.

        Yields:
          Grant: the weights in memory, on all ranks.

        Raises:
          EnginePaused: not released in time on this rank or another, or one has stopped; raised on all.
          StateError: as Engine.running, by `with`; the other ranks raise EnginePaused.
        """
        if self._thread.inside is caller():
            # This enters the lease too, because the outer step may end before this one: both may be
            # generators.
            with self._engine.inside(0) as held:
                yield held
            return
        with self._begun(timeout) as grant, self._calling():
            yield grant

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, wrapped as a step."""

        def stepped(*args: Any, **kwargs: Any) -> Any:
            with self.step():
                return call(*args, **kwargs)

        return stepped

    def opening(
        self, call: Callable[..., Any], goes_on: Callable[[Any], bool]
    ) -> Callable[..., Any]:
        """`call`, wrapped as the first of a step; the step stays open if goes_on(its result)."""

        def opened(*args: Any, **kwargs: Any) -> Any:
            if self._thread.inside is caller():
                return call(*args, **kwargs)
            with contextlib.ExitStack() as step:
                step.enter_context(self._begun())
                with self._calling():
                    result = call(*args, **kwargs)
                if goes_on(result):
                    self._thread.opened, self._thread.given_up = step.pop_all(), False
            return result

        return opened

    def closing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, wrapped as the last of the open step.

        Raises:
          StateError: the step was given up, so a commit may have happened in between.
        """

        def closed(*args: Any, **kwargs: Any) -> Any:
            mine = self._thread
            if mine.given_up and mine.inside is None:
                mine.given_up = False
                raise StateError(
                    "this step was abandoned between its two calls (by detach, suspend, sleep or a "
                    "step after it): its first half may have run with other weights. Run the whole "
                    "step again"
                )
            step, mine.opened = mine.opened, None
            if step is None:
                return call(*args, **kwargs)
            with step, self._calling():
                return call(*args, **kwargs)

        return closed

    def give_up(self) -> None:
        """Leaves the step that this thread has open between two calls and will not close."""
        step, self._thread.opened = self._thread.opened, None
        if step is not None:
            self._thread.given_up = True
            step.close()

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        self._thread.inside = caller()
        try:
            yield
        finally:
            self._thread.inside = None

    @contextlib.contextmanager
    def _begun(self, timeout: Optional[float] = None) -> Iterator[Grant]:
        """Begins a step of this thread; a step that was not closed ends first."""
        self.give_up()
        with self._entered(self._timeout if timeout is None else timeout) as grant:
            self._thread.grant = grant
            try:
                yield grant
            finally:
                self._thread.grant = None
                self.passes += 1

    @contextlib.contextmanager
    def _entered(self, timeout: float) -> Iterator[Grant]:
        if self._minimum is None:
            with self._engine.inside(timeout) as grant:
                yield grant
                self._engine.passed()
            return
        deadline = time.monotonic() + timeout
        wait = _HELD_SECONDS
        while True:
            with contextlib.ExitStack() as inside:
                own: Optional[Grant] = None
                failure: Exception = EnginePaused("another rank of the engine is")
                refused = False
                try:
                    own = inside.enter_context(self._engine.inside(wait))
                except EnginePaused as paused:
                    failure = paused
                except StateError as error:  # the other ranks wait for this one's answer
                    failure, refused = error, True
                token = 0 if own is None else 1 + (int(own.state_token, 16) & _TOKEN_MASK)
                waits = not refused and self._engine.stopped is None
                patient = int(waits and time.monotonic() < deadline)
                lowest, highest, all_patient = self._minimum([token, -token, patient])
                if own is not None and lowest == -highest > 0:
                    yield own
                    self._engine.passed()
                    return
                if not all_patient:
                    raise failure
                wait = _HELD_SECONDS if highest else _HELD_SECONDS_ALONE
