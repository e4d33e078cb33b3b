"""The rollout engine's side: weights in shared memory that a dws-receiver patches in place.

engine = dws.Engine("/run/dws/receiver.sock")
engine.attach(model)                        # parameters become views of shared memory
engine.wait_ready(timeout=60)
while True:
    with engine.running() as lease:         # commits fall between these blocks
        tokens = model.generate(prompts)
    send(tokens, lease.version, lease.state_token)
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any, Callable, Iterator, Optional, Sequence

from dws._proto import engine_pb2_grpc
from dws.attachment import Attachment
from dws.errors import DeadlineError, EngineEndedError, InvalidArgumentError, StateError
from dws.handles import HandleConnection
from dws.lease import ExecutionLease, Grant, LeaseStats
from dws.lease_stream import LeaseStream, PostCommitHook
from dws.mapping import Mapped
from dws.rpc import RPC_TIMEOUT_SECONDS, DaemonConnection

ATTACH_TIMEOUT_SECONDS = 60.0
_RETRY_SECONDS_MIN = 0.05
_RETRY_SECONDS_MAX = 2.0
# How often a wait for forward passes to end looks whether the lease is still there.
_DRAIN_POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class EngineStats:
    """Attributes:
    lease: time open and paused.
    reattachments: times the receiver was lost and found again.
    connected: whether the lease stream is up.
    last_error: what was wrong last with the receiver, "" if nothing.
    """

    lease: LeaseStats
    reattachments: int
    connected: bool
    last_error: str


class Engine:
    """One engine rank's connection to its dws-receiver.

    Lifecycle: make, attach once, run; close (or `with`). The engine starts paused. If the receiver
    goes away while it may generate, it goes on with the version it has; if it goes away while the
    engine is paused, the engine stays paused. Either way a background thread attaches again, under
    a new generation: forward passes stop, the receiver checks the live weights and releases the
    engine. A receiver that says that the engine has ended (its commit group has) pauses it for good.

    Threads: `running` from any; everything else from one.
    """

    def __init__(self, socket: str, engine_rank: int = 0, world_size: int = 1) -> None:
        """Args:
          socket: the receiver's --socket.
          engine_rank, world_size: of this engine (tensor-parallel ranks, say); of an engine over
            several hosts, of its ranks on this host, from 0.

        Raises:
          InvalidArgumentError: the rank does not fit.
        """
        if not 0 <= engine_rank < world_size:
            raise InvalidArgumentError(
                f"engine rank {engine_rank} of world size {world_size}: expected 0 <= rank < it"
            )
        self.engine_rank = engine_rank
        self.world_size = world_size
        self._socket = socket
        self._lease = ExecutionLease()
        self._attachment: Optional[Attachment] = None
        self._drain: Optional[Callable[[], None]] = None
        self._post_commit: Optional[PostCommitHook] = None
        self._closing = threading.Event()
        self._guard = threading.Lock()  # of the fields below
        self._daemon = self._connect()
        self._handles: Optional[HandleConnection] = None
        self._stream: Optional[LeaseStream] = None
        self._reattachments = 0
        self._last_error = ""
        self._thread: Optional[threading.Thread] = None

    def attach(
        self,
        target: Any,
        mapping: Optional[Mapped] = None,
        excluded: Sequence[str] = (),
        post_commit: Optional[PostCommitHook] = None,
        drain: Optional[Callable[[], None]] = None,
        timeout: float = ATTACH_TIMEOUT_SECONDS,
    ) -> dict[str, Any]:
        """Moves the engine's weights into shared memory and registers them.

        Args:
          target: a torch module (its parameters and persistent buffers become views, tied ones
            included, once, under the first of their names), or name -> numpy array or torch tensor.
            Values are copied in.
          mapping: engine name -> what it is made of (see dws.mapping); by default the canonical
            tensor of the same name. None leaves a tensor alone: it is the engine's own.
          excluded: canonical tensors this engine knowingly does not hold.
          post_commit: called with the version after each commit, before the engine resumes, to
            rebuild derived tensors; must be idempotent. Runs on a background thread.
          drain: called when forward passes have ended, returns when the device is idle
            (torch.cuda.synchronize); not needed on CPUs.
          timeout: seconds; the receiver answers once it has heard the trainer's layout.

        Returns:
          name -> view of shared memory. For a module they are in place already; a dict's owner uses
          these from now on instead of its own arrays.

        Raises:
          LayoutError, DTypeError: a tensor that cannot be mapped, by name.
          InvalidArgumentError: the receiver refused: unknown tensor, wrong shape, a slice that is
            no union of the trainer's slices (the message names the grid), tensors neither mapped
            nor excluded.
          DaemonUnavailableError: no receiver; the message says how to start it.
          DeadlineError: the receiver has not heard a trainer in time.
          EngineEndedError: the commit group of this engine has ended.
          StateError: attached before.
        """
        if self._attachment is not None:
            raise StateError("this Engine is attached: make another one to attach other tensors")
        attachment = Attachment(target, mapping)
        attachment.request.engine_rank = self.engine_rank
        attachment.request.engine_world_size = self.world_size
        attachment.request.excluded.extend(excluded)
        attachment.request.has_post_commit_hook = post_commit is not None
        self._drain, self._post_commit = drain, post_commit
        self._attach(attachment, timeout)
        try:
            attachment.bind()
        except BaseException:
            self.close()
            raise
        self._attachment = attachment
        self._thread = threading.Thread(target=self._keep_lease, name="dws-lease", daemon=True)
        self._thread.start()
        return attachment.views

    @contextlib.contextmanager
    def running(self, timeout: Optional[float] = None) -> Iterator[Grant]:
        """A block in which the weights do not change: forward passes belong here.

        Blocks while the engine is paused. Blocks may nest and run on several threads; a commit
        waits for all of them, so keep them short (a step, a batch).

        Args:
          timeout: seconds to wait for the release, None = for ever.

        Yields:
          Grant: version, stream and state token of the weights in memory.

        Raises:
          EnginePaused: not released in time; `reason` says why.
        """
        grant = self._lease.enter(timeout)
        try:
            yield grant
        finally:
            self._lease.leave()

    def wait_ready(self, timeout: float) -> Grant:
        """Waits for the first release, or the next one; returns what is in memory.

        Raises:
          EnginePaused: not released in time; `reason` says why.
        """
        with self.running(timeout) as grant:
            return grant

    @property
    def grant(self) -> Optional[Grant]:
        """What the engine may generate with now, None while paused."""
        return self._lease.grant

    def stats(self) -> EngineStats:
        with self._guard:
            return EngineStats(
                lease=self._lease.stats(),
                reattachments=self._reattachments,
                connected=self._stream is not None,
                last_error=self._last_error,
            )

    def close(self) -> None:
        """Gives the lease up and detaches: the engine is paused for good, views stay valid.
        Idempotent."""
        self._closing.set()
        self._lease.shut("closed")
        with self._guard:
            if self._stream is not None:
                self._stream.cancel()
            self._drop_registration()
            self._daemon.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    # Background: everything below runs on the lease thread (attach() lends it the first round).

    def _connect(self) -> DaemonConnection:
        return DaemonConnection(
            self._socket, f"dws-receiver --socket {self._socket} --job-id JOB --sender HOST:PORT"
        )

    def _attach(self, attachment: Attachment, timeout: float) -> None:
        """Registers and opens the lease stream. The engine must not run when descriptors go out."""
        stub = engine_pb2_grpc.EngineServiceStub(self._daemon.channel)
        what = f"attaching engine rank {self.engine_rank}"
        try:
            reply = self._daemon.call(stub.Attach, attachment.request, what, timeout)
        except DeadlineError as error:
            raise DeadlineError(
                f"{error}: the receiver on {self._socket} has not heard the trainer's layout; is "
                "its dws-sender up, with a registered trainer, and named in its --sender flags?"
            ) from error
        # From here the receiver may write: it owns an engine that it has not released.
        self._lease.shut("attached, the receiver checks the weights and brings them up to date")
        while not self._lease.wait_empty(_DRAIN_POLL_SECONDS):
            if self._closing.is_set():
                raise StateError("closed")
        if self._drain is not None:
            self._drain()
        descriptors = [attachment.region.descriptor()]
        handles = HandleConnection(
            reply.handle_socket, reply.token, descriptors, RPC_TIMEOUT_SECONDS
        )
        with self._guard:
            self._handles = handles
            self._stream = LeaseStream(stub, self.engine_rank, reply.generation)
            self._last_error = ""

    def _keep_lease(self) -> None:
        while not self._closing.is_set():
            assert self._stream is not None
            try:
                ended = self._stream.serve(self._pause, self._resume, self._post_commit)
            except Exception as error:  # the engine's drain: must not end this thread
                ended = f"{type(error).__name__}: {error}"
            with self._guard:
                self._stream = None
                self._drop_registration()
                self._last_error = f"lost the receiver on {self._socket}: {ended}"
            if self._closing.is_set():
                return
            if self._lease.grant is None:
                self._lease.shut(f"{self._last_error}; lost while paused, stays so until released")
            self._attach_again()

    def _attach_again(self) -> None:
        delay = _RETRY_SECONDS_MIN
        while not self._closing.wait(delay):
            delay = min(delay * 2, _RETRY_SECONDS_MAX)
            try:
                with self._guard:
                    self._daemon.close()
                    self._daemon = self._connect()
                assert self._attachment is not None
                self._attach(self._attachment, ATTACH_TIMEOUT_SECONDS)
                with self._guard:
                    self._reattachments += 1
                return
            except Exception as error:
                with self._guard:
                    self._drop_registration()
                    self._last_error = str(error)
                if self._lease.grant is None or isinstance(error, EngineEndedError):
                    self._lease.shut(f"lost the receiver, attaching again failed: {error}")

    def _pause(self, still_wanted: Callable[[], bool]) -> bool:
        """Stops execution; False when the lease ended before the forward passes did."""
        self._lease.shut("the receiver commits a version")
        while not self._lease.wait_empty(_DRAIN_POLL_SECONDS):
            if self._closing.is_set() or not still_wanted():
                return False
        if self._drain is not None:
            self._drain()
        return True

    def _resume(self, grant: Grant) -> None:
        if not self._closing.is_set():
            self._lease.open(grant)

    def _drop_registration(self) -> None:
        if self._handles is not None:
            self._handles.close()
            self._handles = None
