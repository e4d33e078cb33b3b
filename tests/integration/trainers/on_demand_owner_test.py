"""An owner of gradients that stands still or is slow: the ranks wait when their outbox is full, no process takes more memory for
that, and every piece is added once.
"""

from __future__ import annotations

import signal
import time
import unittest
from concurrent import futures
from typing import Iterator

from dws.on_demand.units import Unit, UnitParameter
from tests.integration.fault_proxy import FaultProxy
from tests.integration.trainers.on_demand_case import OUTBOX_BUFFERS, RANKS, Job, OnDemandCase, Rank

PIECE_ELEMENTS = 250_000
PIECE_BYTES = PIECE_ELEMENTS * 4  # of FP32
PUSHES = 40  # 120 MB for each owner
WARM_UP = 10  # pushes of the minibatch before
OWNER = 1  # who is slow
STOPPED_SECONDS = 2.0  # without a push; after 10 s connections would end
SLOW_PUSHES = 10
SLOW_BYTES_PER_SECOND = 1.2e6  # a push in 0.8 s
# What a sender may take more than in a minibatch before, in memory of its own. An owner has one piece of each rank on another host,
# which it fetches and then adds; a pusher has what gRPC sends. All pushes are 120 MB.
GROWTH_BYTES_MAX = 2 * RANKS * PIECE_BYTES + (16 << 20)


def values(pushes: int) -> list[list[float]]:
    """Whole numbers, different ones from each rank and in each push."""
    return [[float(1 + rank + RANKS * push) for push in range(pushes)] for rank in range(RANKS)]


def total(pushes: list[list[float]]) -> float:
    return sum(sum(of_rank) for of_rank in pushes)


class OwnerTest(OnDemandCase):
    """Attributes:
      most: how much more memory each sender has had.
    """

    job = Job(units=(Unit("whole", (UnitParameter("a", (RANKS * PIECE_ELEMENTS,), True),)),))

    def setUp(self) -> None:
        super().setUp()
        self.most: dict[str, int] = {}

    def start_between_hosts(self) -> None:
        """Each sender on a host of its own; what owner OWNER fetches from others comes by proxies."""
        for rank in range(RANKS):
            sender = self.cluster.add_sender(rank, "--insecure", f"--host-id=host-{rank}")
            sender.reserve_ports()
        ports = [sender.ports["sync"] for sender in self.cluster.senders]
        self.proxies = [FaultProxy(port) for port in ports]
        for proxy in self.proxies:
            self.addCleanup(proxy.__exit__)
        for rank, sender in enumerate(self.cluster.senders):
            seen = [self.proxies[r].port if rank == OWNER != r else ports[r] for r in range(RANKS)]
            sender.command.append("--train-peers=" + ",".join(f"127.0.0.1:{port}" for port in seen))
            sender.start()
        self.start_ranks()

    def warm_up(self) -> None:
        """A minibatch, after which senders have what they allocate once."""
        pushes = values(WARM_UP)
        self.check_sums(self.minibatch(pushes), total(pushes), RANKS * WARM_UP)
        self.each(Rank.publish)
        for rank in self.ranks:
            rank.waits.push_seconds = 0.0

    def under_way(self, count: int) -> Iterator[None]:
        """Begins a minibatch of so many pushes of each rank, and yields again and again while they push; then checks its sums, and
        that nothing was abandoned."""
        pushes = values(count)
        before = {sender.name: sender.own_bytes() for sender in self.cluster.senders}
        with futures.ThreadPoolExecutor(RANKS) as pool:
            views = [pool.submit(self.attempt, rank, pushes[rank.rank]) for rank in self.ranks]
            while not all(view.done() for view in views):
                for sender in self.cluster.senders:
                    more = sender.own_bytes() - before[sender.name]
                    self.most[sender.name] = max(self.most.get(sender.name, 0), more)
                    self.assertLess(more, GROWTH_BYTES_MAX, f"{sender.name}: {self.most}")
                yield
                time.sleep(0.01)
            self.check_sums([view.result() for view in views], total(pushes), RANKS * count)
        print("MiB:", {name: round(more / (1 << 20), 1) for name, more in self.most.items()})
        for sender in self.cluster.senders:
            self.assertEqual(sender.metric("dws_sender_train_abandoned_total"), 0)
            self.assertEqual(sender.metric("dws_sender_train_pieces_total", "added"), RANKS * (WARM_UP + count))

    def signal_owner(self, number: signal.Signals) -> None:
        process = self.cluster.senders[OWNER].process
        assert process is not None
        process.send_signal(number)

    def outbox_is_full(self, rank: Rank) -> bool:
        return self.cluster.senders[rank.rank].metric("dws_sender_train_pushes_waiting") == OUTBOX_BUFFERS

    def stop_owner(self) -> None:
        """Stops the owner in the middle of a minibatch, until the others have pushed nothing for a while."""
        self.warm_up()
        others = [rank for rank in self.ranks if rank.rank != OWNER]
        at_stop: list[int] = []
        last: list[int] = []
        since, stopped = 0.0, False
        for _ in self.under_way(PUSHES):
            pushes = [rank.traffic.pushes for rank in others]
            if pushes != last:
                last, since = pushes, time.monotonic()
            if not at_stop and min(pushes) >= 5:
                self.signal_owner(signal.SIGSTOP)
                self.addCleanup(self.signal_owner, signal.SIGCONT)
                at_stop, stopped, since = pushes, True, time.monotonic()
            elif stopped and time.monotonic() > since + STOPPED_SECONDS and all(map(self.outbox_is_full, others)):
                for before, now in zip(at_stop, pushes):
                    # What the owner had added is acknowledged yet, and frees as many buffers as there are.
                    self.assertLessEqual(now, before + 2 * OUTBOX_BUFFERS)
                self.signal_owner(signal.SIGCONT)
                stopped = False
        self.assertTrue(at_stop)
        for rank in others:
            self.assertGreater(rank.waits.push_seconds, STOPPED_SECONDS / 2)

    def test_pushers_wait_for_an_owner_on_their_host_that_stands_still(self) -> None:
        self.start_job()
        self.stop_owner()

    def test_pushers_wait_for_an_owner_on_another_host_that_stands_still(self) -> None:
        self.start_between_hosts()
        self.stop_owner()

    def test_pushers_are_as_fast_as_an_owner_behind_a_slow_link(self) -> None:
        self.start_between_hosts()
        self.warm_up()
        for rank in (0, 2):
            self.proxies[rank].limit(SLOW_BYTES_PER_SECOND)
        began = time.monotonic()
        full = [0, 0]
        for _ in self.under_way(SLOW_PUSHES):
            for i, rank in enumerate((0, 2)):
                full[i] += self.outbox_is_full(self.ranks[rank])
        took = time.monotonic() - began
        self.assertGreater(took, SLOW_PUSHES * PIECE_BYTES / SLOW_BYTES_PER_SECOND * 0.9)
        for rank in (0, 2):
            self.assertGreater(self.ranks[rank].waits.push_seconds, 0.5)
        self.assertGreater(min(full), 10)  # times that the outbox was seen to be full


if __name__ == "__main__":
    unittest.main()
