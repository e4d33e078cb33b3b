"""Calls to a daemon over its unix socket: deadlines, and gRPC's codes as our errors."""

from __future__ import annotations

import os
from typing import Any, Callable

import grpc

from dws.errors import (
    DaemonUnavailableError,
    DeadlineError,
    DwsError,
    EngineEndedError,
    InvalidArgumentError,
    RegistrationLostError,
    StateError,
    VersionLostError,
)

RPC_TIMEOUT_SECONDS = 30.0
_MESSAGE_BYTES_MAX = 64 << 20
_SOCKET_PATH_BYTES_MAX = 107


class DaemonConnection:
    """A channel to one daemon. Cheap to make; connects with the first call."""

    def __init__(self, socket_path: str, start_command: str) -> None:
        """Args:
          socket_path: the daemon's --socket.
          start_command: what to type when nobody answers there.

        Raises:
          InvalidArgumentError: the path is too long for a unix socket.
        """
        self.socket_path = os.path.abspath(socket_path)
        self.start_command = start_command
        if len(self.socket_path.encode()) > _SOCKET_PATH_BYTES_MAX:
            raise InvalidArgumentError(
                f"socket path {self.socket_path} is longer than {_SOCKET_PATH_BYTES_MAX} bytes: "
                "choose a shorter one with the daemon's --socket"
            )
        self.channel = grpc.insecure_channel(
            f"unix:{self.socket_path}",
            options=[
                ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
                ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
                # A connection of its own: a restarted daemon must not meet another object's
                # backoff.
                ("grpc.use_local_subchannel_pool", 1),
                # A restarted daemon is met again at once, not after gRPC's minutes.
                ("grpc.initial_reconnect_backoff_ms", 50),
                # How long one attempt may take, in truth: a busy machine needs its time.
                ("grpc.min_reconnect_backoff_ms", 5000),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )

    def call(
        self,
        method: Callable[..., Any],
        request: Any,
        what: str,
        timeout: float = RPC_TIMEOUT_SECONDS,
    ) -> Any:
        """One unary call.

        Args:
          method: of a stub on `channel`.
          what: the call in words, for messages: "registering rank 0".
          timeout: seconds.

        Raises:
          DwsError: as `error` makes it.
        """
        try:
            return method(request, timeout=timeout)
        except grpc.RpcError as error:
            raise self.error(error, what) from error

    def error(self, error: Any, what: str) -> DwsError:
        """The exception that says what a failed call means for its caller."""
        code, details = error.code(), error.details() or "no details"
        if code == grpc.StatusCode.UNAVAILABLE and details.startswith("this sender"):
            return DaemonUnavailableError(f"{what}: {details}")  # it answers, and says why not
        if code == grpc.StatusCode.UNAVAILABLE:
            exists = os.path.exists(self.socket_path)
            return DaemonUnavailableError(
                f"{what}: no daemon answers on {self.socket_path} "
                f"({'nobody listens there' if exists else 'there is no such socket'}: {details}). "
                f"Start it: {self.start_command}"
            )
        if code == grpc.StatusCode.CANCELLED:  # by the daemon: nobody here cancels a call
            return DaemonUnavailableError(f"{what}: the daemon ended before it answered: {details}")
        kind = _KINDS.get(code, DwsError)
        if code == grpc.StatusCode.DEADLINE_EXCEEDED and details == "Deadline Exceeded":
            details = "the daemon did not answer in time; is its process stopped?"  # gRPC here says so
        suffix = f" [{code.name}]" if kind is DwsError else ""
        return kind(f"{what}: {details}{suffix}")

    def close(self) -> None:
        self.channel.close()


def details_of(error: Any) -> bytes:
    """What a daemon sent with the failure of a call besides its message; b"" if that is nothing."""
    for key, value in (error.trailing_metadata() or ()) if isinstance(error, grpc.Call) else ():
        if key == "grpc-status-details-bin":
            return bytes(value)
    return b""


_KINDS: dict[grpc.StatusCode, type[DwsError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgumentError,
    grpc.StatusCode.ALREADY_EXISTS: InvalidArgumentError,
    grpc.StatusCode.FAILED_PRECONDITION: StateError,
    grpc.StatusCode.ABORTED: VersionLostError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.NOT_FOUND: RegistrationLostError,
    grpc.StatusCode.PERMISSION_DENIED: EngineEndedError,
}
