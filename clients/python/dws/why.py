"""Asks a receiver what an engine that attaches or is paused waits for."""

from __future__ import annotations

from typing import Any, Callable

import grpc

from dws._proto import engine_pb2
from dws.deadline import Deadline
from dws.errors import DeadlineError, StateError
from dws.rpc import DaemonConnection

# How long the receiver has to answer; also the interval of the questions while an attach waits.
ASK_SECONDS = 1.0
NO_ANSWER = "the receiver does not answer; is its process stopped?"


def why_waiting(stub: Any, timeout: float) -> str:
    """The receiver's answer, "" if it has none. Never raises; takes at most `timeout` seconds."""
    try:
        return str(stub.Why(engine_pb2.WhyRequest(), timeout=timeout).waits_for)
    except grpc.RpcError as error:
        return NO_ANSWER if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED else ""
    except ValueError:  # the channel was closed meanwhile
        return ""


def call_attach(
    daemon: DaemonConnection,
    stub: Any,
    request: Any,
    what: str,
    deadline: Deadline,
    tell: Callable[[str], None],
) -> Any:
    """Calls Attach, which waits for a trainer's layout.

    Args:
      what: the call in words, for messages.
      tell: called every ASK_SECONDS with the text in which the receiver says what it is waiting
        for.

    Raises:
      StateError: the channel was closed meanwhile.
      DwsError: as DaemonConnection.error makes it.
    """
    waits_for = ""
    pending = stub.Attach.future(request, timeout=deadline.left)
    while True:
        try:
            return pending.result(timeout=ASK_SECONDS)
        except grpc.FutureTimeoutError:
            waits_for = why_waiting(stub, min(deadline.left, ASK_SECONDS)) or waits_for
            tell(waits_for)
        except grpc.FutureCancelledError as error:
            raise StateError("closed while the weights were being attached") from error
        except grpc.RpcError as error:
            failure = daemon.error(error, what)
            if not isinstance(failure, DeadlineError):
                raise failure from error
            raise DeadlineError(
                f"{failure}: not attached within {deadline.seconds:g} s"
                f"{f' ({waits_for})' if waits_for else ''}. Is a dws-sender running, with a "
                "registered trainer, and do the receiver's --sender flags name it?"
            ) from error
