"""Ranks that train on demand, with a real sender each, through the Python client without torch: numpy takes the place of the
model."""

from __future__ import annotations

import dataclasses
import math
from concurrent import futures
from typing import Any, Callable, Optional, Sequence

import numpy as np

import dws
from dws.dtypes import DType
from dws.on_demand.member import DECIDED, OPEN, STEPPED, AttemptId, Member, Waits
from dws.on_demand.membership import Membership
from dws.on_demand.outbox import Outbox
from dws.on_demand.rank_memory import RankMemory
from dws.on_demand.traffic import Traffic
from dws.on_demand.units import RECORD_BYTES, Unit, UnitParameter
from tests.integration.integration_case import IntegrationCase

RANKS = 3
SECONDS = 30.0
OUTBOX_BUFFERS = 2
UNITS = (
    Unit("first", (UnitParameter("a", (7, 5), True), UnitParameter("b", (4,), False))),
    Unit("second", (UnitParameter("c", (30_011, 3), True),)),
)


def weights_at(units: Sequence[Unit], version: int) -> dict[str, np.ndarray[Any, Any]]:
    """Whole ones: at each step 1 is taken from what trains."""
    found = {}
    for each in (each for unit in units for each in unit.parameters):
        first = np.arange(math.prod(each.shape), dtype=np.float32).reshape(each.shape)
        found[each.name] = first - (version - 1 if each.trains else 0)
    return found


@dataclasses.dataclass(frozen=True)
class Job:
    """What all ranks have in common.

    Attributes:
      seconds: of each wait of a rank.
      gradients: the type of what is pushed.
    """

    units: Sequence[Unit] = UNITS
    ranks: int = RANKS
    seconds: float = SECONDS
    gradients: DType = DType.F32
    exact: bool = True


class NumpyPublisher:
    """As dws.trainers.Publisher, of weights that are registered."""

    def __init__(self, trainer: dws.Trainer) -> None:
        self.trainer, self.close = trainer, trainer.close

    def publish(self, version: int) -> Optional[dws.PublishStats]:
        try:
            return self.trainer.publish(version)
        except dws.DaemonUnavailableError:
            self.trainer.reconnect()
        return None if self.trainer.last_version >= version else self.trainer.publish(version)


class Rank:
    """One rank: a Trainer with its part of the weights, and a membership."""

    def __init__(self, sender: str, rank: int, stream: dws.Stream, job: Job) -> None:
        self.rank, self.version, self.done = rank, 0, 0
        self.job, self.ranks, self.units = job, job.ranks, job.units
        ranks, units, seconds = job.ranks, job.units, job.seconds
        self.parameters = {each.name: each for unit in units for each in unit.parameters}
        self.trainer = dws.Trainer(sender, "test", rank, ranks, stream)
        specs, shards = [], {}
        for name, each in self.parameters.items():
            edges = sorted({each.rows_of(r, ranks)[0] for r in range(ranks)} - {0, each.shape[0]})
            low, high = each.rows_of(rank, ranks)
            if low < high:
                specs.append(dws.TensorSpec(name, DType.F32, each.shape, (dws.Cut(tuple(edges)),)))
                shards[name] = ([0, *edges].index(low), 1)
        self.part = self.trainer.register(specs, shards, views="numpy")
        self.memory = RankMemory(units, ranks, DType.F32, job.gradients, prefetch=1, exact=job.exact)

        def traffic(member: Member, outbox: Outbox) -> Traffic:
            return Traffic(member, outbox, ranks, None, self.memory.slots, seconds, self.waits)

        self.waits = Waits()
        self.membership = Membership(
            NumpyPublisher(self.trainer),
            self.memory,
            lambda: Member(sender, "test", rank, seconds),
            traffic,
            OUTBOX_BUFFERS,
            lambda traffic: None,
        )
        self.joined = False
        self.publish()

    def publish(self) -> None:
        weights = weights_at(self.units, self.version + 1)
        for name, part in self.part.items():
            low, high = self.parameters[name].rows_of(self.rank, self.ranks)
            part[...] = weights[name][low:high]
        if self.joined:
            self.membership.publish(self.version + 1)
            self.traffic.version = self.version + 1
        else:
            self.trainer.publish(self.version + 1)
        self.version += 1

    @property
    def member(self) -> Member:
        return self.membership.member

    @property
    def traffic(self) -> Traffic:
        return self.membership.traffic

    def publish_first_step(self) -> None:
        """A minibatch without a microbatch."""
        self.begin()
        self.finish(1.0)
        self.publish()

    def join(self) -> None:
        self.membership.join(self.version)
        self.joined = True

    def begin(self) -> None:
        """Waits for the next attempt, and takes part."""

        def ready(view: Any) -> bool:
            is_next = view.version == self.version and view.attempt.minibatch > self.done
            # The news that the last one is over may still be on its way.
            return bool(view.phase == OPEN and is_next and AttemptId.from_proto(view.attempt) != self.member.attempt)

        view = self.member.wait(ready, f"a minibatch of rank {self.rank}")
        self.member.attempt = AttemptId.from_proto(view.attempt)
        self.traffic.begin()

    def check_gathers(self) -> None:
        """Gathers all units, and compares all of their weights."""
        for index, unit in enumerate(self.units):
            gathering = self.traffic.start_gather(index, f"gathering {unit.name}")
            self.traffic.end_gather(gathering, lambda offset: self._compare(unit, offset))

    def _compare(self, unit: Unit, offset: int) -> None:
        weights = weights_at((unit,), self.version)
        for each, begin in zip(unit.parameters, unit.arena_offsets(4)[0]):
            view = self.memory.arena.view("numpy", DType.F32, each.shape, offset + begin)
            np.testing.assert_array_equal(view, weights[each.name])

    def push(self, value: float) -> None:
        """Pushes gradients of all units, all of them `value` times the owner's number plus one."""
        for index, unit in enumerate(self.units):
            of_owner = np.float32(value) * (1.0 + np.arange(self.ranks, dtype=np.float32)[:, None])
            self.push_unit(index, np.broadcast_to(of_owner, (self.ranks, unit.shard_elements(self.ranks))))

    def push_unit(self, index: int, gradients: np.ndarray[Any, Any]) -> None:
        """Pushes gradients of one unit. Args: gradients: by owner and element; FP32, or the bits of BF16."""
        buffer = self.traffic.allocate(index, "pushing")
        buffer.bytes[: gradients.nbytes].view(gradients.dtype).reshape(gradients.shape)[...] = gradients
        self.traffic.push(index, self.units[index], self.job.gradients)

    def finish(self, weight: float) -> Any:
        view = self.member.finish(self.traffic.pushes, weight, self.waits)
        self.done = view.attempt.minibatch
        self.traffic.end()
        return view

    def gradients(self) -> list[np.ndarray[Any, Any]]:
        """The sum, by unit."""
        flat = self.memory.gradients.view("numpy", DType.F32, (self.memory.gradient_elements,), RECORD_BYTES)
        found = []
        for unit, begin in zip(self.units, self.memory.gradient_offsets):
            found.append(flat[begin : begin + unit.shard_elements(self.ranks)])
        return found

    def close(self) -> None:
        self.membership.close()


class OnDemandCase(IntegrationCase):
    job = Job()

    def start_job(self, seconds: float = SECONDS, flags: Callable[[int], list[str]] = lambda rank: []) -> None:
        """Starts senders on one host, and ranks. Args: seconds: of each wait of a rank; flags: of the sender of a rank."""
        sockets = [f"unix:{self.cluster.folder}/sender-{rank}/d.sock" for rank in range(self.job.ranks)]
        for rank in range(self.job.ranks):
            self.cluster.start_sender(rank, f"--train-peers={','.join(sockets)}", *flags(rank))
        self.start_ranks(seconds)

    def start_ranks(self, seconds: float = SECONDS) -> None:
        """Each joins beside its sender, which runs."""
        stream = dws.Stream.new()
        sockets = [sender.socket for sender in self.cluster.senders]
        job = dataclasses.replace(self.job, seconds=seconds)
        self.ranks = [Rank(sockets[rank], rank, stream, job) for rank in range(job.ranks)]
        for rank in self.ranks:
            self.addCleanup(rank.close)
        self.each(Rank.join)

    def each(self, what: Callable[[Rank], Any]) -> list[Any]:
        """Calls what(rank) for all ranks at once."""
        with futures.ThreadPoolExecutor(self.job.ranks) as pool:
            return list(pool.map(what, self.ranks))

    def minibatch(self, pushes: Sequence[Sequence[float]]) -> list[Any]:
        """Up to the decision, in one attempt.

        Args:
          pushes: of each rank, the value of each microbatch.
        """
        return self.each(lambda rank: self.attempt(rank, pushes[rank.rank]))

    def attempt(self, rank: Rank, values: Sequence[float]) -> Any:
        """Takes part in the next attempt, and returns its decision."""
        rank.begin()
        for value in values:
            rank.traffic.begin_microbatch()
            rank.check_gathers()
            rank.push(value)
        return rank.finish(float(len(values)))

    def decided(self, rank: Rank, values: Sequence[float], on_lost: Optional[Callable[[dws.DwsError], None]] = None) -> Any:
        """What is decided about the next minibatch, in as many attempts as it takes; joins again where the sender has ended.

        Args:
          on_lost: called with why an attempt has ended without a decision.
        """

        def news(view: Any) -> bool:
            is_next = view.attempt.minibatch > rank.done
            return bool(is_next and (view.phase == OPEN or view.phase in DECIDED))

        while True:
            try:
                rank.membership.join_if_lost(rank.version)
                view = rank.member.wait(news, f"a minibatch of rank {rank.rank}")
                if view.phase in DECIDED:  # by the sender's last process
                    rank.done = view.attempt.minibatch
                    return view
                return self.attempt(rank, values)
            except (dws.RankLostError, dws.MinibatchAbandonedError, dws.DaemonUnavailableError) as error:
                if on_lost is not None:
                    on_lost(error)
                rank.traffic.end()

    def check_sums(self, views: list[Any], total: float, weight: float) -> None:
        """Checks that all ranks were told of a step, and have gradients of `total` times the rank's number plus one."""
        squares = 0.0
        for rank, view in zip(self.ranks, views):
            self.assertEqual(view.phase, STEPPED)
            self.assertTrue(view.exact)
            for sums in rank.gradients():
                np.testing.assert_array_equal(sums, np.float32(total * (rank.rank + 1)))
                squares += float((sums.astype(np.float64) ** 2).sum())
        for view in views:
            self.assertAlmostEqual(view.step.norm / math.sqrt(squares), 1.0, places=12)
            self.assertEqual(view.step.weight, weight)
            self.assertTrue(view.step.finite)
