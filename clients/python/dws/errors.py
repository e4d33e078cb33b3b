"""The exceptions of the package. Every message says what was expected, found, and what to do."""

from __future__ import annotations

from typing import Optional

from dws.printable import printable


class DwsError(Exception):
    """Root of all errors of this package. Unprintable characters in its message are escaped."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(printable(a) if isinstance(a, str) else a for a in arguments))


class InvalidArgumentError(DwsError, ValueError):
    """The call can never succeed with these arguments: change them, not the timing."""


class DTypeError(InvalidArgumentError, TypeError):
    """An element type DWS does not know, or not the one that was declared."""


class LayoutError(InvalidArgumentError):
    """Names, shapes, cuts, slices or strides do not fit each other or the trainer's layout."""


class VersionError(InvalidArgumentError):
    """A version is not above the last one, or a tensor was put twice in it."""


class StateError(DwsError, RuntimeError):
    """The call does not fit the object's state: not registered, a version open, closed."""


class DaemonUnavailableError(DwsError, ConnectionError):
    """No daemon answers on the socket. The message says which one and how to start it."""


class DaemonFailedError(DaemonUnavailableError):
    """A daemon that this process has started did not serve, ended by itself, or did not end as it should.

    Attributes:
      log_tail: the last lines of its log, "" if there is none; the message ends with them.
      status: its exit status, or below 0 the number of a signal; None if it had to be killed, or never ran.
    """

    def __init__(self, message: str, log_tail: str = "", status: Optional[int] = None) -> None:
        super().__init__(message)
        self.log_tail = "\n".join(map(printable, log_tail.splitlines()))
        self.status = status

    def __str__(self) -> str:
        return f"{super().__str__()}:\n{self.log_tail}" if self.log_tail else super().__str__()


class RegistrationLostError(DaemonUnavailableError):
    """The daemon restarted or gave the registration to another: register or attach again."""


class TokenLostError(DwsError):
    """Other registrations took the place of this one before it handed its memory over: register again."""


class VersionLostError(DwsError):
    """The version will not be committed: it was lost with its sender. Publish a newer one."""


class DeadlineError(DwsError, TimeoutError):
    """The wait ended before its condition was met."""


class SenderStalledError(RegistrationLostError, DeadlineError):
    """The sender did not answer a publish in time, nor confirm that it had given the publish up.

    The registration has been ended from this side. The version may have been published, whole; what
    the sender reads from now on is never published, so the weights may be overwritten. Call
    `reconnect`, which reports the newest version and waits until the sender has released the
    memory; memory of a device must stay allocated until then.
    """


class CudaError(DwsError, RuntimeError):
    """The CUDA driver failed, or there is none. The message has the driver's name for it."""


class EngineEndedError(DwsError):
    """The engine may not continue with its weights: its commit group has ended. Start it again."""


class MinibatchAbandonedError(DwsError):
    """The attempt at a minibatch is over, on all ranks, and none of them has stepped: the same samples run again.

    Attributes:
      reason: why, in words.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = printable(reason)


class RankLostError(MinibatchAbandonedError):
    """As MinibatchAbandonedError, because of one rank: it is lost, or could not go on.

    Attributes:
      rank: its number.
    """

    def __init__(self, message: str, reason: str, rank: int) -> None:
        super().__init__(message, reason)
        self.rank = rank


class EnginePaused(DeadlineError):
    """The engine may not generate now.

    Attributes:
      reason: why, in words: "paused to commit", "never released", "lease lost while paused", ...
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the engine is paused: {reason}")
        self.reason = printable(reason)
