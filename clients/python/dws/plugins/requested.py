"""Commits that an engine's own API asks for, one by one: what vLLM's weight transfer backend "dws" and SGLang's
external receiver of dws.sglang have in common.

The lease is held all the time except in `update`. Memory that has no whole version is never computed with: then the
worker's process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import signal
import threading
from typing import Any, Callable, NoReturn, Optional

from dws.deadline import Deadline
from dws.errors import DeadlineError, EnginePaused, InvalidArgumentError, StateError
from dws.lease import Grant
from dws.plugins.attach import AttachedRank
from dws.plugins.fingerprint import fingerprint
from dws.plugins.step_gate import Minimum
from dws.stream import Stream

_LOG = logging.getLogger(__name__)
# Less than vLLM's HTTP client waits (300 s).
UPDATE_SECONDS = 240.0
_DETACHED = (
    "nothing was written: this engine is detached and goes on with the weights it had, and the next "
    "update attaches it again"
)


@dataclasses.dataclass
class Requested:
    """What an update asks for.

    Attributes:
      version: to be committed.
      stream: str(Stream) of the trainer that published the version. By default a version of any
        stream is accepted, also of the trainer before a restart, whose numbers may be the same: so
        name it.
      timeout: seconds until the version is in memory.
      newer: true if a newer version that the trainer has published meanwhile is also accepted.

    Raises:
      InvalidArgumentError: on construction, a field of the wrong type, by name.
    """

    version: int
    stream: Optional[str] = None
    timeout: float = UPDATE_SECONDS
    newer: bool = False

    def __post_init__(self) -> None:
        def is_number(value: Any, kinds: Any) -> bool:
            return isinstance(value, kinds) and not isinstance(value, bool)

        for name, fine, expected in (
            (
                "version",
                is_number(self.version, int) and 0 < self.version < 1 << 64,
                "a number from 1 to 2**64 - 1",
            ),
            ("stream", isinstance(self.stream, (str, type(None))), "str(trainer.stream), or none"),
            (
                "timeout",
                is_number(self.timeout, (int, float)) and 0 <= self.timeout <= threading.TIMEOUT_MAX,
                "seconds",
            ),
            ("newer", isinstance(self.newer, bool), "true or false"),
        ):
            if not fine:
                raise InvalidArgumentError(
                    f"the update has {name}={getattr(self, name)!r}, expected {expected}"
                )


class RequestedCommits:
    """One rank. Lifecycle: made, any number of updates, close. Threads: the worker's. What a rank finds out alone must
    not keep it from the calls of `minimum` that the others make."""

    def __init__(
        self,
        model: Any,
        minimum: Optional[Minimum],
        attach: Callable[[], AttachedRank],
        step_timeout: float,
        refuse_steps: Callable[[Optional[str]], None],
    ) -> None:
        """Args:
        model: the torch module whose weights are attached by the first update.
        minimum: None for an engine of one rank.
        attach: attaches it, with commits_on_request, on all ranks or on none.
        step_timeout: seconds that an update waits for memory of a whole version.
        refuse_steps: called with why no step may run, in a process that is the user's own; with None, when they
          may run again.
        """
        self._model = model
        self._minimum = minimum
        self._attach = attach
        self._step_timeout = step_timeout
        self._refuse_steps = refuse_steps
        self._attached: Optional[AttachedRank] = None
        self._inside = contextlib.ExitStack()  # the lease

    @property
    def engine(self) -> Any:
        """The dws.Engine; None: it is not attached."""
        return None if self._attached is None else self._attached.engine

    def update(self, update: Requested) -> Grant:
        """Returns with the version in memory, and the lease held.

        Raises:
          DeadlineError: it did not arrive in time; the engine goes on with its old version, or
            detached with its own weights.
          StateError: a newer version came instead, or memory has no whole version in a process of the user's own.
          LayoutError, and as Engine.attach: the first time.
        """
        stream = Stream.parse(update.stream) if update.stream is not None else None
        deadline = Deadline(update.timeout)
        known = self._attached is not None and self._attached.engine.stats().connected
        before = None if known else _fingerprint(self._model)
        attached = self._attached = self._attached or self._attach()
        held = attached.engine.grant
        if stream is None and held is not None and held.reaches(update.version, None):
            _LOG.warning(
                "dws: nothing is committed for version %d: memory has %d of stream %s, and the update "
                "names no stream. Name str(trainer.stream): a trainer that restarted counts from 1 again",
                update.version,
                held.version,
                held.stream,
            )
        self._inside.close()
        failed: Optional[BaseException] = None
        try:
            attached.engine.let_commit(update.version, deadline.left, stream)
        except BaseException as error:
            failed = error
        if self._all(_untouched(attached, self._model, before)):
            self._leave_untouched(attached, before)
            raise DeadlineError(f"{failed or 'the receiver is gone'}; {_DETACHED}") from failed
        grant = self._go_on(attached)
        # A commit that had begun at the deadline may have ended since.
        late = isinstance(failed, DeadlineError) and grant.reaches(update.version, stream)
        if failed is not None and not late:
            raise failed
        if grant.version != update.version and not update.newer:
            raise StateError(
                f"version {update.version} was asked for, and {grant.version} of stream "
                f"{grant.stream} is in memory: ask for {grant.version}, or set newer; name the stream of "
                "a trainer that restarted"
            )
        return grant

    def close(self) -> None:
        """Detaches: the engine goes on with its present version, and nobody updates it. Threads: any."""
        if self._attached is not None:
            self._attached.close()
            self._inside.close()
        self._attached = None

    def _all(self, here: bool) -> bool:
        """Returns whether `here` is true on all ranks."""
        return here if self._minimum is None else bool(self._minimum([int(here)])[0])

    def _leave_untouched(self, attached: AttachedRank, before: Optional[int]) -> None:
        """Detaches weights that no commit has written: no version was granted, and the weights are
        unchanged. After it returns, none can be written; a commit that has just begun ends the
        worker."""
        try:
            attached.engine.suspend()
            released = True
        except DeadlineError:
            released = False
        attached.close()
        self._attached = None
        if not self._all(released and _untouched(attached, self._model, before)):
            self._end("a commit had begun when the update ended")

    def _go_on(self, attached: AttachedRank) -> Grant:
        """Goes inside the lease: with the version that is in memory then. Memory of no whole version
        must not be computed with."""
        try:
            grant = self._inside.enter_context(attached.engine.running(self._step_timeout))
        except EnginePaused as paused:
            self._end(str(paused))
        self._refuse_steps(None)
        return grant

    def _end(self, why: str) -> NoReturn:
        """Ends a worker whose memory has no whole version.

        Raises:
          StateError: the process is the user's own, not one of the engine's: steps fail from now on.
        """
        if multiprocessing.parent_process() is not None:
            _LOG.critical("dws: memory has no whole version, this worker ends: %s", why)
            os.kill(os.getpid(), signal.SIGKILL)
        reason = "memory has no whole version: no step runs until an update succeeds"
        self._refuse_steps(reason)
        raise StateError(f"{reason}: {why}")


def _untouched(attached: AttachedRank, model: Any, before: Optional[int]) -> bool:
    """Returns whether the weights, for which no version is granted, are known to be unchanged.

    Args:
      before: the fingerprint of the old weights; None: not taken.
    """
    return (
        before is not None and attached.engine.grant is None and _fingerprint(model) == before
    )


def _fingerprint(model: Any) -> Optional[int]:
    """Returns None if it cannot be taken. Does not raise, because ranks take it separately."""
    try:
        return fingerprint(model)
    except Exception as error:
        _LOG.warning("dws: whether weights are written cannot be told: %r", error)
        return None
