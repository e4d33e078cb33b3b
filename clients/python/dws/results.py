"""What publishing and waiting take and return."""

from __future__ import annotations

import dataclasses
from typing import Union

from dws._proto import trainer_pb2
from dws.errors import InvalidArgumentError


@dataclasses.dataclass(frozen=True)
class PublishStats:
    """What one publish did.

    Attributes:
      changed_elements, total_elements: of this rank against the version before; the first
        version of a stream changes nothing, receivers take it whole.
      capture_seconds: of the daemon's pass over resident weights; a ring's puts are not in it.
      stall_seconds: what the caller lost, measured here: the calls of the version, start to return.
    """

    version: int
    changed_elements: int
    total_elements: int
    capture_seconds: float
    stall_seconds: float


@dataclasses.dataclass(frozen=True)
class WaitResult:
    """What a wait found.

    Attributes:
      committed: ids of the receivers at or above the version.
      wire_bytes: the version's delta object; 0 when there is none.
      publish_to_commit_seconds: from the publish call to the policy being met.
    """

    committed: tuple[str, ...]
    wire_bytes: int
    publish_to_commit_seconds: float


def wait_policy(policy: Union[str, int]) -> tuple[int, int]:
    """The wire's (policy, quorum) for "all", "any" or a number of receivers.

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
