"""Which daemons a job has, and where they are. One Ray actor of each job is a Table; nothing here uses Ray."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Optional, Sequence

POLL_SECONDS = 1.0
# Calls that the actor is to get at most: with more daemons each asks less often.
_CALLS_A_SECOND = 200.0
# 4096 trainer ranks and as many engines as one job can have.
_ENTRIES_MAX = 65536
_NAMED_MAX = 8


@dataclasses.dataclass(frozen=True)
class Entry:
    """One daemon of a job.

    Attributes:
      name: "sender of rank 3", unique in the job.
      claim: when its owner made it (nanoseconds), and random bits: of two daemons of one name the later one counts.
      ray_job: Ray's id of the driver that its owner belongs to.
      node: Ray's id of the node that it runs on.
      where: node and process of its owner in words.
      socket: its unix socket, on that node.
      address: HOST:PORT for other nodes; "": none.
      rank, world_size: of a sender's trainer; world_size is 0 for a receiver.
      group, group_index: of a receiver in a commit group; group is "" without.
    """

    name: str
    claim: tuple[int, int]
    ray_job: str
    node: str
    where: str
    socket: str
    address: str = ""
    rank: int = 0
    world_size: int = 0
    group: str = ""
    group_index: int = 0

    @property
    def is_dialled(self) -> bool:
        """Returns whether other daemons need its address: senders, and leaders of groups."""
        return self.world_size > 0 or bool(self.group) and self.group_index == 0


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a daemon's owner is told.

    Attributes:
      other_job: the owner belongs to another Ray job than the table; in words. "": to the same.
      later: where the later daemon of that name is; "": this one counts.
      state: names the table's content; for the next call.
      dialled: entries that others need, if they have changed since the state that the caller knew.
      poll_seconds: until the next call.
    """

    other_job: str = ""
    later: str = ""
    state: str = ""
    dialled: Optional[tuple[Entry, ...]] = None
    poll_seconds: float = POLL_SECONDS


class Table:
    """Lifecycle: ends with the process that made the actor, that of trainer rank 0; the next one fills again by itself,
    because every owner calls `exchange` all the time. Threads: one."""

    def __init__(self, job_id: str, ray_job: str) -> None:
        self._job_id = job_id
        self._ray_job = ray_job
        self._id = secrets.token_hex(8)
        self._changes = 0
        self._entries: dict[str, Entry] = {}

    def exchange(self, entry: Entry, known: str) -> Reply:
        """Notes that `entry` is there.

        Args:
          known: Reply.state of the caller's last call; "" at first.
        """
        if entry.ray_job != self._ray_job:
            return Reply(other_job=f"job '{self._job_id}' belongs to Ray job {self._ray_job}, and this is Ray job {entry.ray_job}")
        there = self._entries.get(entry.name)
        if there is not None and there.claim > entry.claim:
            return Reply(later=there.where)
        if there is None and len(self._entries) >= _ENTRIES_MAX:
            return Reply(other_job=f"job '{self._job_id}' has {_ENTRIES_MAX} daemons, and no more are supported")
        self._entries[entry.name] = entry
        if entry != there and (entry.is_dialled or there is not None and there.is_dialled):
            self._changes += 1
        state = f"{self._id}:{self._changes}"
        dialled = None if state == known else tuple(one for one in self._entries.values() if one.is_dialled)
        return Reply(state=state, dialled=dialled, poll_seconds=max(POLL_SECONDS, len(self._entries) / _CALLS_A_SECOND))

    def whose(self) -> str:
        """The job that has this table, in words."""
        return f"it belongs to Ray job {self._ray_job}"

    def leave(self, name: str, claim: tuple[int, int]) -> None:
        """Forgets the daemon, unless a later one of its name is there."""
        there = self._entries.get(name)
        if there is not None and there.claim == claim:
            del self._entries[name]
            self._changes += there.is_dialled


@dataclasses.dataclass(frozen=True)
class Dialling:
    """What a receiver has to dial.

    Attributes:
      flags: of the receiver; None: something is missing.
      missing: what, in words.
    """

    flags: Optional[tuple[str, ...]]
    missing: str = ""


def to_dial(dialled: Sequence[Entry], me: Entry) -> Dialling:
    """The flags by which receiver `me` finds the senders of all ranks and the leader of its group.

    Rank 0 says how many ranks there are; senders that say otherwise are of another trainer.
    """
    ranks = {one.rank: one for one in dialled if one.world_size}
    if 0 not in ranks:
        return Dialling(None, "no sender of rank 0: call dws.ray.sender in each trainer actor")
    count = ranks[0].world_size
    lacking = [rank for rank in range(count) if rank not in ranks or ranks[rank].world_size != count]
    if lacking:
        named = ", ".join(map(str, lacking[:_NAMED_MAX])) + (", ..." if len(lacking) > _NAMED_MAX else "")
        return Dialling(None, f"no sender of rank {named}, expected those of {count} ranks: call dws.ray.sender in each trainer actor")
    wanted = [("--sender", ranks[rank]) for rank in range(count)]
    if me.group and me.group_index:
        leaders = [one for one in dialled if one.group == me.group and not one.world_size]
        if not leaders:
            return Dialling(None, f"no receiver leads group '{me.group}': call dws.ray.receiver with group_index=0 in the engine's first actor")
        wanted.append(("--group-leader", max(leaders, key=lambda one: one.claim)))
    flags = []
    for flag, one in wanted:
        if one.node == me.node:
            flags.append(f"{flag}=unix:{one.socket}")
        elif one.address:
            flags.append(f"{flag}={one.address}")
        else:
            return Dialling(None, f"{one.name} on {one.where} listens on no TCP address, and this node is another one: give it tls_ca=, "
                            "tls_cert= and tls_key=, or insecure=True where all of the network may be trusted")  # fmt: skip
    return Dialling(tuple(flags))
