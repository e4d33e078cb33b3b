"""Ranks of a job on several hosts that gather units from each other's senders. Without torch: a rank is a thread that keeps no
gradient, and its minibatches have no microbatch."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import types
from concurrent import futures
from typing import Any, Callable, Optional

import numpy as np

import dws
from dws.dtypes import DType
from dws.on_demand.member import OPEN, AttemptId, Member, Waits
from dws.on_demand.membership import Membership
from dws.on_demand.rank_memory import RankMemory
from dws.on_demand.traffic import Traffic
from dws.on_demand.units import Unit, UnitParameter
from tests.integration.cluster import Cluster, Daemon
from tests.integration.network_hosts import NetworkHosts

_COLUMNS = 4096
_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Shape:
    """Attributes:
    hosts, ranks: how many hosts, and ranks on each.
    units, unit_bytes: of BF16; each has one tensor.
    prefetch: units that are gathered ahead.
    """

    hosts: int
    ranks: int
    units: int
    unit_bytes: int
    prefetch: int

    @property
    def world(self) -> int:
        return self.hosts * self.ranks

    @property
    def lacking_bytes(self) -> int:
        """What one host does not have of a version."""
        return self.units * self.unit_bytes // self.hosts * (self.hosts - 1)

    def layout(self) -> tuple[Unit, ...]:
        rows = self.unit_bytes // 2 // _COLUMNS
        return tuple(Unit(f"unit{i}", (UnitParameter(f"weight{i}", (rows, _COLUMNS), True),)) for i in range(self.units))


class _Rank:
    def __init__(self, sender: str, job_id: str, rank: int, shape: Shape, stream: dws.Stream) -> None:
        self._units, self._done = shape.layout(), 0
        self.trainer = dws.Trainer(sender, job_id, rank, shape.world, stream)
        parameters = [unit.parameters[0] for unit in self._units]
        rows = parameters[0].shape[0] // shape.world
        edges = dws.Cut(tuple(rows * each for each in range(1, shape.world)))
        specs = [dws.TensorSpec(each.name, DType.BF16, each.shape, (edges,)) for each in parameters]
        shards = {each.name: (rank, 1) for each in parameters}
        self.parts = self.trainer.register(specs, shards, views="numpy")
        self._random = np.random.default_rng(rank)
        self._change(1.0)
        self.version = 1
        self.trainer.publish(1)
        self._memory = RankMemory(self._units, shape.world, DType.BF16, DType.BF16, prefetch=shape.prefetch, exact=False)
        self._membership = Membership(
            types.SimpleNamespace(trainer=self.trainer, close=self.trainer.close),
            self._memory,
            lambda: Member(sender, job_id, rank, _SECONDS),
            lambda member, outbox: Traffic(
                member, outbox, shape.world, None, self._memory.slots, _SECONDS, Waits()
            ),
            1,
            lambda traffic: None,
        )

    def _change(self, share: float) -> None:
        """1: all elements get other values; less: so many of them change by one unit in the last place."""
        for part in self.parts.values():
            if share == 1.0:
                part[...] = self._random.integers(0, 1 << 15, part.shape, np.uint16)
            else:
                part ^= self._random.random(part.shape, np.float32) < share

    def join(self) -> None:
        self._membership.join(self.version)

    def begin(self) -> None:
        member = self._membership.member
        view = member.wait(lambda view: view.phase == OPEN and view.attempt.minibatch > self._done, "a minibatch")
        member.attempt = AttemptId.from_proto(view.attempt)
        self._membership.traffic.begin()

    def gather(self, read: Callable[[int, Any], None]) -> None:
        """Gathers all units; `read` gets the number of each and its weights."""
        traffic = self._membership.traffic
        traffic.begin_microbatch()
        for index, unit in enumerate(self._units):
            gathering = traffic.start_gather(index, unit.name)
            shape = unit.parameters[0].shape
            traffic.end_gather(
                gathering, lambda at: read(index, self._memory.arena.view("numpy", DType.BF16, shape, at))
            )

    def publish(self, share: float) -> None:
        """Ends the minibatch, changes weights, and publishes the next version."""
        membership = self._membership
        self._done = membership.member.finish(0, 1.0, Waits()).attempt.minibatch
        membership.traffic.end()
        self.version += 1
        self._change(share)
        self.trainer.publish(self.version)
        membership.traffic.version = self.version

    def close(self) -> None:
        self._membership.close()


class HostRanks:
    """A context manager; inside, all ranks have joined."""

    def __init__(self, shape: Shape, hosts: Optional[NetworkHosts], *flags: str) -> None:
        """Args:
        hosts: where the senders run; None: all over loopback.
        flags: of each sender.
        """
        self._shape, self._hosts, self._flags = shape, hosts, flags

    def __enter__(self) -> HostRanks:
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(Cluster("bench"))
            self.senders = self._start(cluster)
            stream = dws.Stream.new()
            self._pool = stack.enter_context(futures.ThreadPoolExecutor(self._shape.world))
            sockets = [sender.socket for sender in self.senders]
            self._ranks = list(
                self._pool.map(
                    lambda rank: _Rank(sockets[rank], cluster.job_id, rank, self._shape, stream), range(len(sockets))
                )
            )
            for rank in self._ranks:
                stack.callback(rank.close)
            self._each(_Rank.join)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _start(self, cluster: Cluster) -> list[Daemon]:
        """Starts the senders twice: first to learn their ports."""
        for rank in range(self._shape.world):
            host = rank // self._shape.ranks
            if self._hosts is not None:
                self._hosts.enter(cluster, host)
            cluster.start_sender(rank, "--insecure", f"--host-id=host-{host}", *self._flags)
        peers = ",".join(sender.address for sender in cluster.senders)
        for sender in cluster.senders:
            sender.stop()
            sender.command.append(f"--train-peers={peers}")
            sender.start()
        return cluster.senders

    def _each(self, act: Callable[[_Rank], Any]) -> None:
        list(self._pool.map(act, self._ranks))

    def minibatch(self, share: float = 1.0, check: bool = False) -> float:
        """The seconds in which all ranks gather all units of the present version.

        Args:
          share: of the weights that change after it.
          check: compares what was gathered.

        Raises:
          RuntimeError: a rank has gathered other weights than the owners' ones.
        """

        def compare(unit: int, found: Any) -> None:
            wanted = np.concatenate([rank.parts[f"weight{unit}"] for rank in self._ranks])
            if check and not np.array_equal(found.view(np.uint16), wanted.view(np.uint16)):
                raise RuntimeError(f"unit {unit} is not what its owners have")

        self._each(_Rank.begin)
        begin = time.monotonic()
        self._each(lambda rank: rank.gather(compare if check else lambda unit, found: None))
        seconds = time.monotonic() - begin
        self._each(lambda rank: rank.publish(share))
        return seconds
