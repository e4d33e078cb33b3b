"""Keeps an engine rank's registration with its dws-receiver alive: the lease, a lost receiver that
comes back, weights that move."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Callable, Optional, Sequence

from dws._proto import engine_pb2_grpc
from dws.attachment import Attachment
from dws.deadline import Deadline
from dws.engine_stats import EngineStats
from dws.errors import DeadlineError, EngineEndedError, EnginePaused, StateError
from dws.handed_over import HandedOver
from dws.handles import again_while_displaced
from dws.lease import Block, ExecutionLease, Grant
from dws.lease_stream import ChangedTensors, CommitHook, LeaseStream, PostCommitHook
from dws.printable import printable
from dws.rpc import DaemonConnection
from dws.stream import Stream
from dws.why import ASK_SECONDS, call_attach, why_waiting

ATTACH_TIMEOUT_SECONDS = 60.0
_RETRY_SECONDS_MIN = 0.05
_RETRY_SECONDS_MAX = 2.0
# The receiver releases an engine's memory after the piece of work in progress: a batch of staging,
# but also a full tensor that is applied in place, or a stalled read of what to apply. These may
# take longer than this; then ask again.
RELEASE_TIMEOUT_SECONDS = 30.0
# After close() the memory is not needed, so close() does not wait longer for a receiver that hangs.
CLOSE_TIMEOUT_SECONDS = 10.0
# How often a wait for forward passes to end checks that the lease still exists.
_DRAIN_POLL_SECONDS = 0.2
_JOIN_SECONDS_MIN = 1.0  # for the lease thread, which the engine's hooks may delay further
# The least time for the hand-over, if forward passes have used up the timeout.
_HAND_OVER_SECONDS_MIN = 1.0

# See `rebuild` of Engine.attach.
RebuildHook = Callable[[Optional[frozenset[str]]], None]


class _WeightsMoved(Exception):
    """Raised instead of answering a pause: the weights are not where they were registered."""


class ReceiverLink:
    """One registration at a time.

    Lifecycle: attach, keep; close. `keep` starts the lease thread, which attaches again whenever
    the registration ends. Threads: one calls `attach` and `keep`; any may call everything else.
    """

    def __init__(self, socket: str, engine_rank: int, lease: ExecutionLease) -> None:
        """Args:
        lease: this object opens and shuts it.
        """
        self._socket = socket
        self._engine_rank = engine_rank
        self._lease = lease
        self._attachment: Optional[Attachment] = None
        self._drain: Optional[Callable[[], None]] = None
        self._post_commit: Optional[CommitHook] = None
        self._hooks = threading.Lock()  # held while one runs
        self._changes = ChangedTensors()
        self._closing = threading.Event()
        self._awake = threading.Event()  # not set while suspended
        self._awake.set()
        self._handed = HandedOver()
        self._guard = threading.Lock()  # guards the fields below
        self._daemon = self._connect()
        self._stream: Optional[LeaseStream] = None
        self._request: tuple[int, Optional[Stream]] = (0, None)  # for a commit; 0: none
        # Counts events on this side that make registrations stale, and the count at the live
        # registration.
        self._moves = 0
        self._moves_registered = 0
        self._reattachments = 0
        self._last_error = ""
        self._thread: Optional[threading.Thread] = None

    def attach(
        self, attachment: Attachment, drain: Optional[Callable[[], None]], timeout: float
    ) -> None:
        """Registers and opens the lease stream.

        Raises:
          The errors of Engine.attach.
        """
        self._drain = drain
        deadline = Deadline(timeout)
        again_while_displaced(lambda: self._register(attachment, deadline.left))
        self._attachment = attachment

    def keep(
        self, post_commit: Optional[PostCommitHook], rebuild: Optional[RebuildHook] = None
    ) -> None:
        """Serves the lease from now on, on its own thread."""
        if post_commit is not None or rebuild is not None:
            self._post_commit = self._finished(post_commit, rebuild)
        self._thread = threading.Thread(target=self._keep_lease, name="dws-lease", daemon=True)
        self._thread.start()

    def enter(self, timeout: Optional[float]) -> Block:
        """As ExecutionLease.enter; the error says what the receiver waits for, given time."""
        if timeout is None or timeout < 2 * ASK_SECONDS:
            return self._lease.enter(timeout)
        deadline = Deadline(timeout)
        try:
            return self._lease.enter(timeout - ASK_SECONDS)
        except EnginePaused:
            self._explain(min(deadline.left, ASK_SECONDS))
            return self._lease.enter(deadline.left)

    async def enter_async(self, timeout: Optional[float]) -> Block:
        """As `enter`, by ExecutionLease.enter_async."""
        if timeout is None or timeout < 2 * ASK_SECONDS:
            return await self._lease.enter_async(timeout)
        deadline = Deadline(timeout)
        try:
            return await self._lease.enter_async(timeout - ASK_SECONDS)
        except EnginePaused:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._explain, min(deadline.left, ASK_SECONDS))
            return await self._lease.enter_async(deadline.left)

    def _explain(self, timeout: float) -> None:
        """Asks the receiver why the engine is paused, for at most `timeout` seconds."""
        stub = engine_pb2_grpc.EngineServiceStub(self._daemon.channel)
        if not self._closing.is_set():
            self._lease.explain(why_waiting(stub, timeout))

    def let_commit(self, version: int, stream: Optional[Stream], timeout: float) -> Grant:
        """See Engine.let_commit."""
        if self._lease.inside:
            raise StateError("let_commit() waits for a commit: call it outside of running() blocks")
        try:
            self._set_request(version, stream)
            grant = self._lease.wait_until(lambda held: held.reaches(version, stream), timeout)
        finally:
            self._set_request(0, None)
        if grant is None:
            held = self._lease.grant
            why = (
                f"the engine is paused: {self._lease.reason}"
                if held is None
                else f"memory has version {held.version} of stream {held.stream}; was it published, and "
                "does the receiver's status show that it is fetched?"
            )
            raise DeadlineError(f"version {version} was not committed within {timeout:.3g} s: {why}")
        return grant

    def _set_request(self, version: int, stream: Optional[Stream]) -> None:
        with self._guard:
            self._request = (version, stream)
            if self._stream is not None:
                self._stream.request_commit(version, stream)

    def suspend(self, timeout: float) -> None:
        """See Engine.suspend."""
        if self._lease.inside:
            raise StateError("suspend() waits for running() blocks to end: call it outside of them")
        self._awake.clear()
        self._move("suspended until refresh()")
        while not self._lease.wait_empty(_DRAIN_POLL_SECONDS) and not self._closing.is_set():
            pass
        deadline = Deadline(timeout)
        released = self._end_registration(timeout)
        if not self._hooks.acquire(timeout=max(deadline.left, 0)):
            raise DeadlineError(
                f"a hook of this engine still worked on the weights {timeout:g} s after suspend(): leave them where they are"
            )
        self._hooks.release()
        if not released:
            raise DeadlineError(
                f"the receiver on {self._socket} still used the weights {timeout:g} s after suspend(): "
                "leave them where they are, and look at its log and status for what it is doing"
            )

    def refresh(self, timeout: float) -> None:
        """See Engine.refresh."""
        self._move("the weights are being attached again")
        self._end_registration(timeout)  # the next suspend() waits if it is not released
        self._awake.set()

    def stats(self) -> EngineStats:
        with self._guard:
            return EngineStats(
                lease=self._lease.stats(),
                reattachments=self._reattachments,
                connected=self._stream is not None,
                last_error=printable(self._last_error),
            )

    def stop(self, reason: str) -> None:
        """Does what Engine.stop does. The receiver ends the registration when it has read the
        reason; then the lease thread ends."""
        self._closing.set()
        self._awake.set()
        self._lease.end(reason)
        with self._guard:
            self._last_error = reason
            if self._stream is not None:
                self._stream.stop(reason)

    def close(self, timeout: float) -> None:
        """Gives up the lease and ends the registration for good. Idempotent."""
        deadline = Deadline(timeout)
        self._closing.set()
        self._awake.set()
        self._lease.end("closed")
        if not self._end_registration(timeout):
            warnings.warn(
                f"the receiver on {self._socket} still used the weights {timeout:g} s after close(): "
                "it may still write to them",
                ResourceWarning,
                stacklevel=3,
            )
        with self._guard:
            self._daemon.close()
        self._handed.close()  # also wakes the lease thread if it is handing memory over
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(deadline.left, _JOIN_SECONDS_MIN))

    def _move(self, reason: str) -> None:
        """From here on no registration made before, or in progress, opens the gate."""
        with self._guard:
            self._moves, self._last_error = self._moves + 1, reason
        self._lease.shut(reason)

    def _end_registration(self, timeout: float) -> bool:
        """Ends the registration; the lease thread notices, and attaches again when it may.

        Returns:
          True if the receiver has released the weights of this registration and of all earlier
          ones.
        """
        with self._guard:
            if self._stream is not None:
                self._stream.cancel()
        return self._handed.released(timeout)

    # Everything below runs on the lease thread (the first time on the caller's, in attach()).

    def _connect(self) -> DaemonConnection:
        return DaemonConnection(
            self._socket, f"dws-receiver --socket {self._socket} --job-id JOB --sender unix:PATH"
        )

    def _register(self, attachment: Attachment, timeout: float) -> None:
        """The engine must not run when descriptors are sent."""
        self._handed.released(0)  # forgets earlier ones that are released
        with self._guard:
            moves = self._moves
        attachment.describe()
        stub = engine_pb2_grpc.EngineServiceStub(self._daemon.channel)
        deadline = Deadline(timeout)
        what = f"attaching engine rank {self._engine_rank}"
        reply = call_attach(self._daemon, stub, attachment.request, what, deadline, self._tell)
        # From here the receiver may write: its engine is not released.
        self._lease.shut("attached, the receiver checks the weights and brings them up to date")
        while not self._lease.wait_empty(_DRAIN_POLL_SECONDS):
            if self._closing.is_set():
                raise StateError("closed")
        self._drain_devices(attachment)
        if not attachment.unchanged():
            raise StateError("the weights moved to other memory while they were being attached")
        self._handed.hand_over(
            reply.handle_socket,
            reply.token,
            attachment.descriptors(),
            lambda: self._require_still_wanted(moves),
            max(deadline.left, _HAND_OVER_SECONDS_MIN),
        )
        with self._guard:
            self._require_wanted(moves)
            self._moves_registered = moves
            self._stream = LeaseStream(
                stub, self._engine_rank, reply.generation, drains_devices=attachment.on_devices
            )
            if self._request[0]:
                self._stream.request_commit(*self._request)
            self._last_error = ""

    def _tell(self, waits_for: str) -> None:
        with self._guard:
            self._last_error = f"attaching: {waits_for}"
        self._lease.explain(f"attaching: {waits_for}")

    def _require_still_wanted(self, moves: int) -> None:
        with self._guard:
            self._require_wanted(moves)

    def _require_wanted(self, moves: int) -> None:
        if self._moves != moves or self._closing.is_set() or not self._awake.is_set():
            self._handed.shut()
            raise StateError("suspended, moved or closed while the weights were being attached")

    def _keep_lease(self) -> None:
        while not self._closing.is_set():
            assert self._stream is not None
            try:
                why = self._stream.serve(self._pause, self._resume, self._post_commit)
                ended = f"lost the receiver on {self._socket}: {why}"
            except _WeightsMoved as moved:
                ended = str(moved)
            except Exception as error:  # from the drain or a device; must not end the thread
                ended = f"the engine cannot be paused: {type(error).__name__}: {error}"
            self._handed.shut()
            with self._guard:
                self._stream = None
                moved_since = self._moves != self._moves_registered
                if not moved_since and not self._closing.is_set():
                    self._last_error = ended
            if self._closing.is_set():
                return
            if self._lease.grant is None and not moved_since:
                self._lease.shut(f"{ended}; lost while paused, attaching again")
            self._attach_again()

    def _attach_again(self) -> None:
        delay = _RETRY_SECONDS_MIN
        while not self._closing.wait(delay):
            self._awake.wait()
            delay = min(delay * 2, _RETRY_SECONDS_MAX)
            try:
                with self._guard:
                    if self._closing.is_set():
                        return
                    self._daemon.close()
                    self._daemon = self._connect()
                assert self._attachment is not None
                # Meanwhile the engine may have lost the tensors that it had made from the weights.
                self._changes.forget()
                self._register(self._attachment, ATTACH_TIMEOUT_SECONDS)
                with self._guard:
                    self._reattachments += 1
                return
            except Exception as error:
                self._handed.shut()
                if self._closing.is_set():
                    return
                with self._guard:
                    self._last_error = str(error)
                if self._lease.grant is None or isinstance(error, EngineEndedError):
                    self._lease.shut(f"lost the receiver, attaching again failed: {error}")

    def _pause(self, still_wanted: Callable[[], bool]) -> Optional[float]:
        """Stops execution. Returns None if the lease ended before the forward passes did.

        Returns:
          seconds since the last of them ended.
        """
        self._lease.shut("the receiver commits a version")
        while not self._lease.wait_empty(_DRAIN_POLL_SECONDS):
            if self._closing.is_set() or not still_wanted():
                return None
        assert self._attachment is not None
        self._drain_devices(self._attachment)
        if self._closing.is_set():  # the drain may have stopped the engine
            return None
        if not self._attachment.unchanged():
            raise _WeightsMoved("the weights lie in other memory now, they are attached again")
        return self._lease.stopped_seconds

    def _finished(
        self, post_commit: Optional[PostCommitHook], rebuild: Optional[RebuildHook]
    ) -> CommitHook:
        """Makes one of the hooks, which returns when the devices have finished their work: no stream of
        the engine waits for this thread's stream."""

        def after_commit(version: int, contents: Sequence[int]) -> None:
            with self._hooks:
                assert self._attachment is not None
                tensors = [view.tensor for view in self._attachment.request.views]
                if rebuild is not None:
                    changed = self._changes.since_done(tensors, contents)
                    self._changes.forget()  # unless all of it is done
                    rebuild(changed)
                if post_commit is not None:
                    post_commit(version)
                self._attachment.synchronize()
                self._changes.done(tensors, contents)

        return after_commit

    def _drain_devices(self, attachment: Attachment) -> None:
        """Waits for work that a stopped engine may have left on its devices."""
        if self._drain is not None:
            self._drain()
        attachment.synchronize()

    def _resume(self, grant: Grant) -> None:
        with self._guard:
            if not self._closing.is_set() and self._moves == self._moves_registered:
                self._lease.open(grant)
