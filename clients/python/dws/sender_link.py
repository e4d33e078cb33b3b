"""A trainer rank's calls to its dws-sender, and the registration that they use."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Iterable, Iterator, Optional, Union

import grpc

from dws._proto import trainer_pb2, trainer_pb2_grpc
from dws.deadline import Deadline
from dws.errors import DeadlineError, DwsError, RegistrationLostError, SenderStalledError
from dws.handles import HandleConnection
from dws.handover import Handover
from dws.layout import RankLayout
from dws.results import NotCommittedError, PublishStats, WaitResult, wait_policy
from dws.rpc import RPC_TIMEOUT_SECONDS, DaemonConnection, details_of

# The daemon applies a wait's own deadline; the call itself ends at most this much later.
WAIT_GRACE_SECONDS = 2.0
# How long a failed publish may wait in addition for the sender's answer that it has given it up.
SETTLE_GRACE_SECONDS = 2.0


class SenderLink:
    """One registration at a time. Threads: any may call `wait`; one calls everything else.

    Calls that need the registration raise RegistrationLostError if they fail and it is gone,
    otherwise what DaemonConnection.call raises.
    """

    def __init__(self, socket: str, job_id: str, rank: int) -> None:
        self._rank = rank
        self._daemon = DaemonConnection(
            socket, f"dws-sender --socket {socket} --job-id {job_id} --trainer-rank {rank}"
        )
        self._stub = trainer_pb2_grpc.TrainerServiceStub(self._daemon.channel)
        self._handles: Optional[HandleConnection] = None
        self._session = 0
        self._refined: Optional[RankLayout] = None  # by the sender, of what is registered
        self._refined_signature: Any = None
        self._attempt = 0  # number of the session's last attempt to publish
        self._put_timeout = RPC_TIMEOUT_SECONDS
        self._stalled = ""  # if not empty: why this side ended the registration

    def register(self, request: Any, handover: Handover, deadline: Deadline) -> int:
        """Registers and passes the memory's descriptors.

        Args:
          request: a RegisterRequest with the identities filled in.

        Returns:
          The newest version of the stream that the sender knows, 0 for none.

        Raises:
          DwsError: any. Then there is no registration, or the previous one, which is not of
            `handover`.
        """
        handover.describe(request)
        self._end_registration(deadline)
        what = f"registering rank {self._rank}"
        reply = self._daemon.call(self._stub.Register, request, what, deadline.left)
        descriptors = handover.descriptors()
        self._handles = HandleConnection()
        self._handles.hand_over(reply.handle_socket, reply.token, descriptors, deadline.left)
        self._session = reply.session
        self._attempt, self._stalled = 0, ""
        self._refined = self._refined_signature = None
        handover.registered()
        return int(reply.last_version)

    def _end_registration(self, deadline: Deadline) -> None:
        """Call it before you make another registration. The sender must not keep freed memory
        mapped: other memory may be at its address, which cannot be mapped at the same time.

        Raises:
          DeadlineError: the sender has not released the memory in time.
        """
        if self._handles is not None and not self._handles.end(deadline.left):
            raise DeadlineError(
                f"the sender of rank {self._rank} has not released the memory of the previous registration within {deadline.seconds:g} s: is its process stopped? Look at its log"
            )

    @property
    def connected(self) -> bool:
        """Returns whether the registration is live."""
        return self._handles is not None and not self._handles.hung_up()

    @property
    def session(self) -> int:
        """The number by which the sender knows the registration; 0: there is none."""
        return self._session

    @contextlib.contextmanager
    def attempt(self, version: int) -> Iterator[None]:
        """A block for all calls in which the sender reads weights, to publish one version. If the
        block ends before its publish has succeeded, the version is given up, within
        SETTLE_GRACE_SECONDS: after that nothing that the sender reads is published.

        Raises:
          SenderStalledError: the block raised a DwsError, and the sender did not confirm that it
            has given the version up.
          RegistrationLostError: this happened in an earlier attempt.
        """
        if self._stalled:
            raise RegistrationLostError(f"{self._stalled}: call reconnect()")
        self._attempt += 1
        try:
            yield
        except BaseException as error:  # also a time-out or an interrupt
            given_up = self._give_up(version)
            if given_up or not isinstance(error, DwsError):
                raise
            if isinstance(error, RegistrationLostError):
                raise
            raise SenderStalledError(
                f"{error}; {self._stalled}. Version {version} may have been published completely; "
                "nothing that the sender reads from now on is published: the weights may be "
                "overwritten. Call reconnect()"
            ) from error

    def _give_up(self, version: int) -> bool:
        """Gives up a failed publish; returns whether the sender confirms that it stopped reading.

        The sender runs a session's calls one by one, and none of an aborted attempt. If it does not
        answer, the registration is ended: the kernel reports that to the sender at once, and the
        sender publishes nothing that it was still reading then.
        """
        request = trainer_pb2.AbortRequest(
            session=self._session, version=version, attempt=self._attempt
        )
        answered = False
        try:
            self._stub.Abort(request, timeout=SETTLE_GRACE_SECONDS)
            answered = True
        except grpc.RpcError as error:
            answered = error.code() == grpc.StatusCode.FAILED_PRECONDITION
        finally:
            if not answered:
                self._stalled = (
                    f"the sender of rank {self._rank} did not confirm within {SETTLE_GRACE_SECONDS:g} s "
                    f"that it had cancelled version {version}, so the registration was ended"
                )
                if self._handles is not None:
                    self._handles.shut()
        return answered

    def begin(
        self, version: int, registered: RankLayout, timeout: float, full: bool = False
    ) -> RankLayout:
        """Opens a version of a ring. Each of its puts may take `timeout` seconds.

        Args:
          registered: the layout that was registered.
          full: whether no delta is wanted.

        Returns:
          That by whose rank slices the puts have to name their pieces: the same, or a finer one of
          the sender's, which engines needed.
        """
        self._put_timeout = timeout
        deadline = Deadline(timeout)
        while True:
            request = trainer_pb2.BeginRequest(
                session=self._session,
                version=version,
                attempt=self._attempt,
                layout_signature=self._refined_signature,
                full=full,
            )
            what = f"opening version {version}"
            reply = self._call(self._stub.Begin, request, what, deadline.left)
            if not reply.HasField("layout"):
                return self._refined or registered
            self._refined = registered.refined(reply.layout)
            self._refined_signature = reply.layout_signature

    def start_put(self, version: int, bucket: int, pieces: list[Any]) -> Any:
        """Starts a Put; `await_put` ends it."""
        request = trainer_pb2.PutRequest(
            session=self._session,
            version=version,
            bucket=bucket,
            pieces=pieces,
            attempt=self._attempt,
        )
        return self._stub.Put.future(request, timeout=self._put_timeout)

    def await_put(self, pending: Any) -> None:
        """Raises the error of the Put, if it failed."""
        self._call(lambda request, timeout: pending.result(), None, "putting tensors")

    def publish(
        self,
        version: int,
        started: float,
        timeout: float,
        full: bool = False,
        lists: Iterable[tuple[int, int, int]] = (),
    ) -> PublishStats:
        """Call it inside `attempt`.

        Args:
          started: when the stall began, on the monotonic clock.
          full: whether no delta is wanted; of resident weights, since a ring says it in `begin`.
          lists: as from ChangeLists.put.
        """
        request = trainer_pb2.PublishRequest(
            session=self._session, version=version, attempt=self._attempt, full=full
        )
        for shard, count, offset in lists:
            request.lists.add(shard=shard, count=count, offset_bytes=offset)
        reply = self._call(self._stub.Publish, request, f"publishing version {version}", timeout)
        return PublishStats(
            version=version,
            changed_elements=reply.changed_elements,
            total_elements=reply.total_elements,
            capture_seconds=reply.capture_seconds,
            stall_seconds=time.monotonic() - started,
            full=reply.full,
        )

    def wait(self, version: int, policy: Union[str, int], timeout: float) -> WaitResult:
        """Returns once the policy is met."""
        if self._stalled:
            raise RegistrationLostError(f"{self._stalled}: call reconnect()")
        kind, quorum = wait_policy(policy)
        request = trainer_pb2.WaitRequest(
            session=self._session,
            version=version,
            policy=kind,
            quorum=quorum,
            timeout_seconds=timeout,
        )
        what = f"waiting for version {version}"
        try:
            reply = self._call(self._stub.Wait, request, what, timeout + WAIT_GRACE_SECONDS)
        except DeadlineError as error:
            if isinstance(error, RegistrationLostError):
                raise
            raise NotCommittedError(str(error), details_of(error.__cause__)) from error
        return WaitResult.from_proto(reply)

    def close(self) -> None:
        """Ends the registration and the connection. Idempotent."""
        if self._handles is not None:
            self._handles.close()
        self._daemon.close()

    def _call(
        self, method: Any, request: Any, what: str, timeout: float = RPC_TIMEOUT_SECONDS
    ) -> Any:
        """A call that needs the registration.

        Raises:
          RegistrationLostError: the call failed and the registration is gone.
          DwsError: as DaemonConnection.call.
        """
        try:
            return self._daemon.call(method, request, what, timeout)
        except DwsError as error:
            # A fenced registration and a restarted sender fail in many ways: ask the hang-up.
            if self.connected or isinstance(error, RegistrationLostError):
                raise
            raise RegistrationLostError(
                f"{error}; the registration no longer exists (the sender restarted, or another "
                f"process registered rank {self._rank}): call reconnect()"
            ) from error
