"""Calls to a daemon over its unix socket: deadlines, and gRPC's codes as our exceptions."""

from __future__ import annotations

import os
import socket
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
_PROBE_SECONDS = 1.0
_READY_SECONDS = 5.0


class DaemonConnection:
    """A channel to one daemon. Cheap to make; connects on the first call."""

    def __init__(self, socket_path: str, start_command: str) -> None:
        """Args:
          socket_path: the daemon's --socket.
          start_command: the command for the error message when no daemon answers.

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
                # Its own connection, so that it is not subject to another object's backoff when a
                # daemon restarts.
                ("grpc.use_local_subchannel_pool", 1),
                # Reconnect to a restarted daemon at once, not after gRPC's default of minutes.
                ("grpc.initial_reconnect_backoff_ms", 50),
                # This option is in fact the time for one attempt: a busy machine needs so much.
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
          method: a method of a stub on `channel`.
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
        """The exception that tells the caller what a failed call means."""
        code, details = error.code(), error.details() or "no details"
        if code == grpc.StatusCode.UNAVAILABLE and details.startswith("this sender"):
            return DaemonUnavailableError(f"{what}: {details}")  # it answers, with the reason
        if code == grpc.StatusCode.UNAVAILABLE:
            if self._listens():
                return DaemonUnavailableError(
                    f"{what}: the connection to {self.socket_path} broke ({details}), and a process "
                    "listens there: try again; if it stays so, look at the daemon's log"
                )
            exists = os.path.exists(self.socket_path)
            return DaemonUnavailableError(
                f"{what}: no daemon answers on {self.socket_path} "
                f"({'no process listens there' if exists else 'there is no such socket'}: {details}). "
                f"Start it: {self.start_command}"
            )
        if code == grpc.StatusCode.CANCELLED:  # by the daemon: this side cancels no calls
            return DaemonUnavailableError(f"{what}: the daemon ended before it answered: {details}")
        kind = _KINDS.get(code, DwsError)
        if code == grpc.StatusCode.DEADLINE_EXCEEDED and details == "Deadline Exceeded":
            # gRPC here says so
            details = "the daemon did not answer in time; is it busy, or its process stopped?"
        suffix = f" [{code.name}]" if kind is DwsError else ""
        return kind(f"{what}: {details}{suffix}")

    def found_again(self, error: Any) -> bool:
        """After a call that failed with `error`: whether that was only because this side has yet to
        notice that the daemon was restarted, and it has now."""
        if error.code() != grpc.StatusCode.UNAVAILABLE or not self._listens():
            return False
        ready = grpc.channel_ready_future(self.channel)
        try:
            ready.result(timeout=_READY_SECONDS)
            return True
        except grpc.FutureTimeoutError:
            ready.cancel()
            return False

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_PROBE_SECONDS)
            try:
                probe.connect(self.socket_path)
            except OSError:
                return False
            return True

    def close(self) -> None:
        self.channel.close()


def details_of(error: Any) -> bytes:
    """The details that a daemon sent with a failed call; b"" if none."""
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
