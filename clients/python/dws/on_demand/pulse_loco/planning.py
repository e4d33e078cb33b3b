"""What rank 0 decides about a round: who takes part, who contributes, who needs theta_g in full; and which digest counts."""

from __future__ import annotations

from collections import Counter
from typing import Any, Mapping, NamedTuple

from dws._proto import local_rounds_pb2
from dws.digest import Digest
from dws.errors import InvalidArgumentError, LayoutError
from dws.on_demand.pulse_loco.exchange import from_proto, to_proto
from dws.on_demand.pulse_loco.worker import PulseLoCo


class Hello(NamedTuple):
    """Attributes:
      process: of the worker, as its sender numbers it.
      number: of the hello.
      message: a RoundHello.
    """

    process: int
    number: int
    message: Any


class Plan(NamedTuple):
    """Attributes:
      attempt: its number.
      process: of rank 0, which has made it.
      members: by rank, a RoundMember each.
      source: the rank that gives theta_g and u in full.
      round, digest: of the workers that are not behind.
    """

    attempt: int
    process: int
    members: Mapping[int, Any]
    source: int
    round: int
    digest: Digest

    @property
    def contributors(self) -> list[int]:
        return [rank for rank, member in self.members.items() if member.contributes]

    @property
    def takers(self) -> list[int]:
        return [rank for rank, member in self.members.items() if member.takes_full]

    def owner(self, shard: int) -> int:
        """Its own rank if that takes part and shards are numbered like ranks."""
        ranks = list(self.members)
        return shard if shard in self.members else ranks[shard % len(ranks)]

    @classmethod
    def from_proto(cls, process: int, attempt: int, message: Any) -> "Plan":
        """Raises InvalidArgumentError if no member is the source."""
        members = {member.rank: member for member in message.members}
        if message.source not in members:
            raise InvalidArgumentError(f"rank 0 plans attempt {attempt} with source {message.source}, members {list(members)}")
        return cls(attempt, process, members, message.source, message.round, from_proto(message.digest))


def common_of(worker: PulseLoCo) -> Any:
    settings = worker.settings
    return local_rounds_pb2.RoundCommon(
        shards=worker.shards, values=settings.values.value, outer_lr=settings.outer_lr, momentum=settings.momentum
    )


def require_same(mine: Any, theirs: Any, rank: int) -> None:
    """Raises LayoutError unless two RoundCommon are equal."""
    for name in ("shards", "values", "outer_lr", "momentum"):
        found, expected = getattr(mine, name), getattr(theirs, name)
        if found != expected:
            raise LayoutError(f"this worker of rank {rank} has {name} {found}, rank 0 has {expected}: they have to be equal")


def make_plan(hellos: Mapping[int, Hello]) -> Any:
    """Returns a RoundPlan for workers whose RoundCommon are equal. The latest round counts, and of its digests the one that
    most have; then that of the lowest rank. The others take theta_g in full, and do not contribute: their local steps
    began elsewhere.

    Args:
      hellos: by rank, ascending; that of rank 0 is there.
    """
    latest = max(hello.message.round for hello in hellos.values())
    states = {rank: from_proto(hello.message.digest) for rank, hello in hellos.items() if hello.message.round == latest}
    digest = most_common(states)
    current = [rank for rank, state in states.items() if state == digest]
    members = [
        local_rounds_pb2.RoundMember(
            rank=rank,
            process=hello.process,
            hello=hello.number,
            contributes=rank in current and hello.message.contributes,
            takes_full=rank not in current,
        )
        for rank, hello in hellos.items()
    ]
    return local_rounds_pb2.RoundPlan(
        round=latest, digest=to_proto(digest), source=current[0], members=members, common=hellos[0].message.common
    )


def most_common(digests: Mapping[int, Digest]) -> Digest:
    """Returns the most frequent digest; the first of those that are equally frequent."""
    return Counter(digests.values()).most_common(1)[0][0]
