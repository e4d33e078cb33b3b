"""The arguments and results of publishing and waiting."""

from __future__ import annotations

import dataclasses
from typing import Any, Union

from google.protobuf.message import DecodeError  # type: ignore[import]

from dws._proto import trainer_pb2
from dws.errors import DeadlineError, InvalidArgumentError


@dataclasses.dataclass(frozen=True)
class PublishStats:
    """What one publish changed, and how long it took.

    Attributes:
      changed_elements, total_elements: of this rank, compared with the version before; the first
        version of a stream and those published with full=True are not compared: 0.
      capture_seconds: of the daemon's pass over resident weights; without a ring's puts.
      stall_seconds: time that the caller lost, measured here: from the start of the version's calls
        to the return.
      full: no delta leads to this version, receivers take its tensors whole: the first of a stream,
        one that was published with full=True, or one whose delta would be about as large.
    """

    version: int
    changed_elements: int
    total_elements: int
    capture_seconds: float
    stall_seconds: float
    full: bool = False


@dataclasses.dataclass(frozen=True)
class ReceiverBehind:
    """A receiver that has not committed the awaited version.

    Attributes:
      receiver_id: its --receiver-id.
      committed_version: the newest version of this stream that it has committed, 0 for none.
      staged_version: the newest it has staged, 0 for none.
      behind_seconds: since it first connected, or last committed, or another receiver committed
        what it has not, whichever was last; 0 if no receiver has more.
      last_error: why it last refused a version, "" if it has not.
    """

    receiver_id: str
    committed_version: int
    staged_version: int
    behind_seconds: float
    last_error: str

    @classmethod
    def from_proto(cls, message: Any) -> "ReceiverBehind":
        return cls(
            message.receiver_id,
            message.committed_version,
            message.staged_version,
            message.behind_seconds,
            message.last_error,
        )


@dataclasses.dataclass(frozen=True)
class WaitResult:
    """The result of a wait.

    Attributes:
      committed: ids of the receivers that have the version or a newer one.
      wire_bytes: the bytes that a following receiver fetches for the version from this rank: the
        delta object, or all its tensors if no delta leads to it (PublishStats.full).
      publish_to_commit_seconds: from the publish call until the policy was met.
      left_out: connected receivers for which "all" did not wait: they have committed nothing for
        the sender's --laggard-after, while others have.
      missing: the other receivers that have not committed the version, and those that have not
        returned since the sender's restart (with "any" and a quorum).
      present: how many receivers are connected.
    """

    committed: tuple[str, ...]
    wire_bytes: int
    publish_to_commit_seconds: float
    left_out: tuple[ReceiverBehind, ...] = ()
    missing: tuple[ReceiverBehind, ...] = ()
    present: int = 0

    @classmethod
    def from_proto(cls, reply: Any) -> "WaitResult":
        return cls(
            tuple(reply.committed),
            reply.wire_bytes,
            reply.publish_to_commit_seconds,
            tuple(map(ReceiverBehind.from_proto, reply.left_out)),
            tuple(map(ReceiverBehind.from_proto, reply.missing)),
            reply.present_count,
        )


class NotCommittedError(DeadlineError):
    """A wait ended before its policy was met. The message says how many receivers have committed the
    version, and names the others.

    Attributes:
      committed_count: how many have committed it.
      present: how many are connected.
      missing: those that have not committed it; at most 16.
      left_out: see WaitResult; at most 16.
    """

    def __init__(self, message: str, details: bytes = b"") -> None:
        """Args:
        details: from the sender: a WaitReply as bytes.
        """
        super().__init__(message)
        reply = trainer_pb2.WaitReply()
        try:
            reply.ParseFromString(details)
        except DecodeError:
            reply.Clear()
        self.committed_count: int = reply.committed_count
        self.present: int = reply.present_count
        self.missing = tuple(map(ReceiverBehind.from_proto, reply.missing))
        self.left_out = tuple(map(ReceiverBehind.from_proto, reply.left_out))


def require_all(version: int, policy: Union[str, int], result: WaitResult) -> None:
    """For a caller that goes on with the new weights everywhere: "all" is not met while a receiver
    that is connected was left out.

    Raises:
      NotCommittedError: "all" left receivers out; it names them.
    """
    if policy != "all" or not result.left_out:
        return
    behind = ", ".join(
        f"{r.receiver_id} (has {r.committed_version or 'no version'})" for r in result.left_out
    )
    error = NotCommittedError(
        f"version {version}: 'all' of {result.present} receivers was not met: left out are {behind}, "
        "which have committed nothing for the sender's --laggard-after. Repair or stop them, or wait for "
        "a number of receivers"
    )
    error.committed_count, error.present = len(result.committed), result.present
    error.missing, error.left_out = result.missing, result.left_out
    raise error


def wait_policy(policy: Union[str, int]) -> tuple[int, int]:
    """The protocol's (policy, quorum) for "all", "any" or a number of receivers.

    Raises:
      InvalidArgumentError: none of these.
    """
    if policy == "all":
        return trainer_pb2.WAIT_POLICY_ALL, 0
    if policy == "any":
        return trainer_pb2.WAIT_POLICY_ANY, 0
    if isinstance(policy, int) and policy > 0:
        return trainer_pb2.WAIT_POLICY_QUORUM, policy
    raise InvalidArgumentError(f"policy {policy!r}: expected 'all', 'any' or a number above 0")
