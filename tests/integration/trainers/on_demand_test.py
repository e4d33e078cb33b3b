"""Ranks that train on demand, with a real sender each, through the Python client without torch: numpy takes the place of the
model."""

from __future__ import annotations

import math
import threading
import time
import types
import unittest
from concurrent import futures
from typing import Any, Callable

import numpy as np

import dws
from dws.dtypes import DType
from dws.on_demand.member import DECIDED, OPEN, STEPPED, AttemptId, Member, Waits
from dws.on_demand.membership import Membership
from dws.on_demand.rank_memory import RankMemory
from dws.on_demand.traffic import Traffic
from dws.on_demand.units import RECORD_BYTES, Unit, UnitParameter
from tests.integration.cluster import Cluster

RANKS = 3
SECONDS = 30.0
UNITS = (
    Unit("first", (UnitParameter("a", (7, 5), True), UnitParameter("b", (4,), False))),
    Unit("second", (UnitParameter("c", (30_011, 3), True),)),
)
PARAMETERS = {each.name: each for unit in UNITS for each in unit.parameters}


def weights_at(version: int) -> dict[str, np.ndarray[Any, Any]]:
    """Whole ones: at each step 1 is taken from what trains."""
    found = {}
    for name, each in PARAMETERS.items():
        first = np.arange(math.prod(each.shape), dtype=np.float32).reshape(each.shape)
        found[name] = first - (version - 1 if each.trains else 0)
    return found


class Rank:
    """One rank: a Trainer with its part of the weights, and a membership."""

    def __init__(self, sender: str, rank: int, stream: dws.Stream) -> None:
        self.rank, self.version, self.done = rank, 0, 0
        self.trainer = dws.Trainer(sender, "test", rank, RANKS, stream)
        specs, shards = [], {}
        for name, each in PARAMETERS.items():
            edges = sorted({each.rows_of(r, RANKS)[0] for r in range(RANKS)} - {0, each.shape[0]})
            low, high = each.rows_of(rank, RANKS)
            if low < high:
                specs.append(dws.TensorSpec(name, DType.F32, each.shape, (dws.Cut(tuple(edges)),)))
                shards[name] = ([0, *edges].index(low), 1)
        self.part = self.trainer.register(specs, shards, views="numpy")
        self.memory = RankMemory(UNITS, RANKS, DType.F32, DType.F32, prefetch=1, exact=True)
        self.membership = Membership(
            types.SimpleNamespace(trainer=self.trainer, close=self.trainer.close),
            self.memory,
            lambda: Member(sender, "test", rank, SECONDS),
            lambda member, outbox: Traffic(
                member, outbox, RANKS, None, self.memory.slots, SECONDS, Waits()
            ),
            2,
            lambda traffic: None,
        )
        self.joined = False
        self.publish()

    def publish(self) -> None:
        self.version += 1
        for name, part in self.part.items():
            low, high = PARAMETERS[name].rows_of(self.rank, RANKS)
            part[...] = weights_at(self.version)[name][low:high]
        self.trainer.publish(self.version)
        if self.joined:
            self.traffic.version = self.version

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
        """Gathers both units, and compares all of their weights."""
        for index, unit in enumerate(UNITS):
            gathering = self.traffic.start_gather(index, f"gathering {unit.name}")
            self.traffic.end_gather(gathering, lambda offset: self._compare(unit, offset))

    def _compare(self, unit: Unit, offset: int) -> None:
        for each, begin in zip(unit.parameters, unit.arena_offsets(4)[0]):
            view = self.memory.arena.view("numpy", DType.F32, each.shape, offset + begin)
            np.testing.assert_array_equal(view, weights_at(self.version)[each.name])

    def push(self, value: float) -> None:
        """Pushes gradients of both units, all of them `value` times the owner's number plus one."""
        for index, unit in enumerate(UNITS):
            shard = unit.shard_elements(RANKS)
            buffer = self.traffic.allocate(index, "pushing")
            gradients = buffer.bytes[: RANKS * shard * 4].view(np.float32).reshape(RANKS, shard)
            gradients[...] = value * (1.0 + np.arange(RANKS, dtype=np.float32)[:, None])
            self.traffic.push(index, unit, DType.F32)

    def finish(self, weight: float) -> Any:
        view = self.member.finish(self.traffic.pushes, weight, Waits())
        self.done = view.attempt.minibatch
        self.traffic.end()
        return view

    def gradients(self) -> list[np.ndarray[Any, Any]]:
        """The sum, by unit."""
        flat = self.memory.gradients.view("numpy", DType.F32, (self.memory.gradient_elements,), RECORD_BYTES)
        found = []
        for unit, begin in zip(UNITS, self.memory.gradient_offsets):
            found.append(flat[begin : begin + unit.shard_elements(RANKS)])
        return found

    def close(self) -> None:
        self.membership.close()


class OnDemandTest(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = Cluster()
        self.addCleanup(self.cluster.stop)

    def start(self, flags: Callable[[int], list[str]] = lambda _: []) -> None:
        """`flags`: of the sender of a rank."""
        sockets = [f"unix:{self.cluster.folder}/sender-{rank}/d.sock" for rank in range(RANKS)]
        for rank in range(RANKS):
            self.cluster.start_sender(rank, f"--train-peers={','.join(sockets)}", *flags(rank))
        stream = dws.Stream.new()
        self.ranks = [Rank(self.cluster.senders[rank].socket, rank, stream) for rank in range(RANKS)]
        self.each(Rank.join)
        for rank in self.ranks:
            self.addCleanup(rank.close)

    def each(self, what: Callable[[Rank], Any]) -> list[Any]:
        """Calls what(rank) for all ranks at once."""
        with futures.ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(what, self.ranks))

    def minibatch(self, pushes: list[list[float]]) -> list[Any]:
        """Up to the decision. `pushes`: of each rank, the value of each microbatch."""

        def run(rank: Rank) -> Any:
            rank.begin()
            for value in pushes[rank.rank]:
                rank.traffic.begin_microbatch()
                rank.check_gathers()
                rank.push(value)
            return rank.finish(float(len(pushes[rank.rank])))

        return self.each(run)

    def check_sums(self, views: list[Any], total: float, weight: float) -> None:
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

    def test_ranks_gather_push_and_step_with_any_numbers_of_microbatches(self) -> None:
        self.start()
        for pushes in ([[1.0, 2.0], [4.0], []], [[], [], [8.0] * 7], [[0.5], [0.25], [2.0**-30]]):
            views = self.minibatch([list(each) for each in pushes])
            self.check_sums(views, sum(map(sum, pushes)), sum(map(len, pushes)))
            self.each(Rank.publish)
        self.assertEqual([rank.version for rank in self.ranks], [4] * RANKS)

    def cached(self) -> dict[str, list[int]]:
        """For each rank: bytes that it had from the cache of a host, and from elsewhere; bytes that its sender keeps, and that
        it has fetched for its host."""
        gathered, cache = "dws_sender_train_gathered_bytes_total", "dws_sender_train_host_cache"
        found: dict[str, list[int]] = {}
        for rank in range(RANKS):
            sender = self.cluster.senders[rank]
            for key, name, label in (
                ("from cache", gathered, "host-cache"),
                ("fetched", gathered, "grpc"),
                ("kept", f"{cache}_bytes", ""),
                ("for host", f"{cache}_fetched_bytes_total", ""),
            ):
                found.setdefault(key, []).append(int(sender.metric(name, label)))
        return found

    def run_on_two_hosts(self, cache_bytes: int) -> dict[str, list[int]]:
        """Ranks 0 and 1 are on one host. Three minibatches, in each of which each rank gathers all units twice."""
        self.start(lambda rank: [f"--host-id={'ab'[rank // 2]}", f"--host-cache-bytes={cache_bytes}"])
        for _ in range(3):
            self.check_sums(self.minibatch([[1.0, 2.0]] * RANKS), 9.0, 6.0)
            self.each(Rank.publish)
        return self.cached()

    def test_a_host_fetches_each_version_of_another_hosts_weights_once(self) -> None:
        found = self.run_on_two_hosts(1 << 20)
        bytes_of = [sum(part.nbytes for part in rank.part.values()) for rank in self.ranks]
        self.assertEqual(found["fetched"], [0] * RANKS)
        # Later versions may come as deltas.
        for fetched, lacking in ((sum(found["for host"][:2]), bytes_of[2]), (found["for host"][2], sum(bytes_of[:2]))):
            self.assertGreater(fetched, lacking)
            self.assertLessEqual(fetched, 3 * lacking)
        self.assertEqual(sum(found["kept"][:2]), bytes_of[2])
        self.assertEqual(found["from cache"][0], found["from cache"][1])
        self.assertGreaterEqual(found["from cache"][0], 3 * bytes_of[2])

    def test_what_has_no_room_in_a_hosts_cache_is_fetched_by_each_rank(self) -> None:
        """The first unit has room, the second one has none."""
        found = self.run_on_two_hosts(1024)
        self.assertLessEqual(max(found["kept"]), 1024)
        self.assertGreater(min(found["from cache"]), 0)
        self.assertGreater(min(found["fetched"]), 0)

    def test_a_keeper_of_a_hosts_cache_may_be_killed(self) -> None:
        self.run_on_two_hosts(1 << 20)
        self.each(Rank.begin)
        self.restart_sender(1)
        for rank in (0, 2):
            with self.assertRaises(dws.RankLostError):
                self.ranks[rank].finish(1.0)
            self.ranks[rank].traffic.end()
        self.ranks[1].membership.join_if_lost(4)
        self.check_sums(self.minibatch([[1.0], [2.0], [4.0]]), 7.0, 3.0)
        self.each(Rank.publish)

    def test_a_gradient_that_is_not_finite_is_skipped_by_all(self) -> None:
        self.start()
        views = self.minibatch([[1.0], [math.nan], []])
        for rank, view in zip(self.ranks, views):
            self.assertIn(view.phase, DECIDED)
            self.assertFalse(view.step.finite)
            with self.assertRaisesRegex(dws.StateError, "version 2"):
                rank.trainer.publish(2)
        self.each(lambda rank: rank.member.skip(rank.done))
        views = self.minibatch([[1.0], [2.0], []])
        self.check_sums(views, 3.0, 2.0)
        self.each(Rank.publish)
        self.assertEqual([view.version for view in views], [1] * RANKS)

    def test_a_rank_that_is_gone_is_named_in_two_seconds_and_may_come_back(self) -> None:
        self.start()
        self.each(Rank.begin)
        lost = self.ranks[1]
        for rank in self.ranks[:2]:
            rank.push(1.0)
        left: list[float] = []

        def leave() -> None:
            left.append(time.monotonic())
            lost.member.close()

        threading.Timer(0.5, leave).start()
        for rank in (self.ranks[0], self.ranks[2]):
            with self.assertRaises(dws.RankLostError) as caught:
                rank.finish(1.0)
            self.assertLess(time.monotonic() - left[0], 2.0)
            self.assertEqual(caught.exception.rank, 1)
            rank.traffic.end()
        lost.join()
        views = self.minibatch([[1.0], [2.0], [4.0]])  # what was pushed before is gone
        self.check_sums(views, 7.0, 3.0)
        self.each(Rank.publish)

    def restart_sender(self, rank: int) -> None:
        self.cluster.senders[rank].kill()
        self.cluster.senders[rank].start()

    def test_a_sender_that_is_killed_before_the_decision_is_joined_again(self) -> None:
        self.start()
        self.each(Rank.publish_first_step)
        self.each(Rank.begin)
        for rank in self.ranks[:2]:
            rank.push(1.0)
        self.restart_sender(1)
        with self.assertRaises(dws.DaemonUnavailableError):
            self.ranks[1].finish(1.0)
        self.ranks[1].traffic.end()
        for rank in (self.ranks[0], self.ranks[2]):
            with self.assertRaisesRegex(dws.RankLostError, "because of rank 1"):
                rank.finish(1.0)
            rank.traffic.end()
        self.ranks[1].membership.join_if_lost(2)
        self.check_sums(self.minibatch([[1.0], [2.0], [4.0]]), 7.0, 3.0)
        self.each(Rank.publish)

    def test_a_sender_that_is_killed_after_the_decision_still_has_it(self) -> None:
        self.start()
        for killed in (1, 0):  # 0 has the leader
            views = self.minibatch([[1.0], [2.0], [4.0]])
            self.restart_sender(killed)
            lost = self.ranks[killed]
            while lost.member.lost is None:
                time.sleep(0.01)
            lost.membership.join_if_lost(lost.version)
            again = lost.member.wait(lambda view: view.phase in DECIDED, "the decision")
            self.assertEqual(again.step, views[killed].step)
            views[killed] = again
            self.check_sums(views, 7.0, 3.0)
            self.each(Rank.publish)

    def decided(self, rank: Rank) -> Any:
        """What is decided about the next minibatch, with one push in each attempt."""

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
                rank.begin()
                rank.push(2.0**rank.rank)
                return rank.finish(1.0)
            except (dws.RankLostError, dws.MinibatchAbandonedError, dws.DaemonUnavailableError):
                rank.traffic.end()

    def test_the_leader_may_be_killed_when_its_decision_is_told_to_nobody_or_to_some(self) -> None:
        self.start()
        leader = self.cluster.senders[0]
        for told in range(RANKS):
            leader.kill()
            leader.start_armed(DWS_FAILPOINT=f"sender.train.before_step:kill@{told + 1}")
            with futures.ThreadPoolExecutor(RANKS) as pool:
                views = [pool.submit(self.decided, rank) for rank in self.ranks]
                self.assertIsNotNone(leader.process)
                leader.process.wait(SECONDS)
                leader.start()
                self.check_sums([view.result(SECONDS) for view in views], 7.0, 3.0)
            self.each(Rank.publish)

    def test_a_rank_that_gives_up_says_why_to_the_others(self) -> None:
        self.start()
        self.each(Rank.begin)
        self.ranks[2].member.abandon("no memory left")
        for rank in self.ranks[:2]:
            with self.assertRaisesRegex(dws.RankLostError, "because of rank 2: .*no memory left"):
                rank.finish(1.0)
            rank.traffic.end()
        self.check_sums(self.minibatch([[1.0], [], []]), 1.0, 1.0)

    def test_a_sender_without_peers_refuses_by_name(self) -> None:
        self.cluster.start_sender(0)
        trainer = dws.Trainer(self.cluster.senders[0].socket, "test")
        self.addCleanup(trainer.close)
        trainer.register({"a": np.zeros(4, np.float32)})
        trainer.publish(1)
        member = Member(self.cluster.senders[0].socket, "test", 0, SECONDS)
        self.addCleanup(member.close)
        with self.assertRaisesRegex(dws.StateError, "start it with --train-peers"):
            memory = RankMemory(UNITS, RANKS, DType.F32, DType.F32, 1, False)
            outbox = memory.outbox(2)
            self.addCleanup(outbox.close)
            member.join(memory.request(trainer.session, outbox), memory.descriptors(outbox), SECONDS)


if __name__ == "__main__":
    unittest.main()
