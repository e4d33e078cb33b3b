"""A trainer rank's calls to its dws-sender, and the registration they belong to."""

from __future__ import annotations

import time
from typing import Any, Optional, Union

import grpc

from dws._proto import trainer_pb2, trainer_pb2_grpc
from dws.errors import DeadlineError, DwsError, RegistrationLostError
from dws.handles import HandleConnection
from dws.handover import Handover
from dws.results import PublishStats, WaitResult, wait_policy
from dws.rpc import RPC_TIMEOUT_SECONDS, DaemonConnection

# A wait's own deadline is the daemon's business; the call ends this much later at the latest.
_WAIT_SLACK_SECONDS = 5.0


class SenderLink:
    """One registration at a time. `wait` from any thread, everything else from one.

    Calls that need the registration raise RegistrationLostError when they fail and it is gone,
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

    def register(self, request: Any, handover: Handover) -> int:
        """Registers and passes the memory's descriptors.

        Args:
          request: a RegisterRequest with the identities filled in.

        Returns:
          The newest version of the stream that the sender knows, 0 for none.

        Raises:
          DwsError: any; there is no registration then, or the one before, and not of `handover`.
        """
        handover.describe(request)
        self._end_registration()
        what = f"registering rank {self._rank}"
        reply = self._daemon.call(self._stub.Register, request, what)
        descriptors = handover.descriptors()
        self._handles = HandleConnection()
        self._handles.hand_over(reply.handle_socket, reply.token, descriptors, RPC_TIMEOUT_SECONDS)
        self._session = reply.session
        handover.registered()
        return int(reply.last_version)

    def _end_registration(self) -> None:
        """Before there is another: memory that was freed must not be mapped any more, and where it
        was something else may lie, which cannot be mapped beside it.

        Raises:
          DeadlineError: the sender has not let go of the memory in time.
        """
        if self._handles is not None and not self._handles.end(RPC_TIMEOUT_SECONDS):
            raise DeadlineError(
                f"the sender of rank {self._rank} still used what was registered before "
                f"{RPC_TIMEOUT_SECONDS:g} s after that had been ended: look at its log"
            )

    @property
    def connected(self) -> bool:
        """Whether the registration is live."""
        return self._handles is not None and not self._handles.hung_up()

    def begin(self, version: int) -> None:
        """Opens a version of a ring."""
        request = trainer_pb2.BeginRequest(session=self._session, version=version)
        self._call(self._stub.Begin, request, f"opening version {version}")

    def start_put(self, version: int, bucket: int, pieces: list[Any]) -> Any:
        """Starts a Put; `await_put` ends it."""
        request = trainer_pb2.PutRequest(
            session=self._session, version=version, bucket=bucket, pieces=pieces
        )
        return self._stub.Put.future(request, timeout=RPC_TIMEOUT_SECONDS)

    def await_put(self, pending: Any) -> None:
        """Raises what the Put failed with, if it did."""
        self._call(lambda request, timeout: pending.result(), None, "putting tensors")

    def abort(self, version: int) -> None:
        """Gives the open version up."""
        request = trainer_pb2.AbortRequest(session=self._session, version=version)
        self._call(self._stub.Abort, request, f"giving up version {version}")

    def publish(self, version: int, started: float, timeout: float) -> PublishStats:
        """Args:
        started: when the stall began, on the monotonic clock.
        """
        request = trainer_pb2.PublishRequest(session=self._session, version=version)
        what = f"publishing version {version}"
        try:
            reply = self._call(self._stub.Publish, request, what, timeout)
        except BaseException:  # a time-out, an interrupt: whatever lets the caller go on
            self._settle(version)
            raise
        return PublishStats(
            version=version,
            changed_elements=reply.changed_elements,
            total_elements=reply.total_elements,
            capture_seconds=reply.capture_seconds,
            stall_seconds=time.monotonic() - started,
        )

    def _settle(self, version: int) -> None:
        """After a publish that failed: returns when the sender reads the weights no more.

        The sender takes a rank's calls one by one, so an answer to this one, whatever it is, comes
        after the publish has ended; before, the caller must not overwrite the weights.
        """
        request = trainer_pb2.AbortRequest(session=self._session, version=version)
        try:
            self._stub.Abort(request, timeout=RPC_TIMEOUT_SECONDS)
        except grpc.RpcError:
            pass

    def wait(self, version: int, policy: Union[str, int], timeout: float) -> WaitResult:
        """Returns when the policy is met."""
        kind, quorum = wait_policy(policy)
        request = trainer_pb2.WaitRequest(
            session=self._session,
            version=version,
            policy=kind,
            quorum=quorum,
            timeout_seconds=timeout,
        )
        what = f"waiting for version {version}"
        reply = self._call(self._stub.Wait, request, what, timeout + _WAIT_SLACK_SECONDS)
        return WaitResult(tuple(reply.committed), reply.wire_bytes, reply.publish_to_commit_seconds)

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
                f"{error}; the registration is gone (the sender restarted, or another process "
                f"registered rank {self._rank}): call reconnect()"
            ) from error
