"""Senders on different hosts whose messages are late, in another order than they were sent in, and arrive by connections that the
other side has given up: every piece is added once.
"""

from __future__ import annotations

import time
import unittest
from concurrent import futures
from random import Random
from typing import Callable, Optional

import dws
from tests.integration.faults.late_proxy import LateProxy
from tests.integration.trainers.on_demand_case import RANKS, OnDemandCase, Rank

LATE_SECONDS = 0.02
MINIBATCHES = 3
LEFT_BEHIND_EACH_SECONDS = 0.4
PUSHES = 5
SECONDS_MAX = 120.0


def values(minibatch: int) -> list[list[float]]:
    """Powers of two, so that a sum says which pieces it has; the ranks have different numbers of them."""
    return [[2.0 ** (rank + RANKS * push) for push in range(PUSHES - (rank + minibatch) % RANKS)] for rank in range(RANKS)]


class LateTest(OnDemandCase):
    def start_late(self, seed: int) -> None:
        """A proxy for each sender and each that it connects to."""
        self.proxies: list[LateProxy] = []
        for rank in range(RANKS):
            self.cluster.add_sender(rank, "--insecure", f"--host-id=host-{rank}").reserve_ports()
        for rank, sender in enumerate(self.cluster.senders):
            seen = []
            for other, server in enumerate(self.cluster.senders):
                port = server.ports["sync"]
                if other != rank:
                    self.proxies.append(LateProxy(port, seed + len(self.proxies), LATE_SECONDS))
                    self.addCleanup(self.proxies[-1].__exit__)
                    port = self.proxies[-1].port
                seen.append(f"127.0.0.1:{port}")
            sender.command.append(f"--train-peers={','.join(seen)}")
            sender.start()
        self.start_ranks()

    def train(self, meanwhile: Optional[Callable[[], None]] = None) -> list[str]:
        """Some minibatches. Returns why attempts had to be done again."""
        lost: list[str] = []

        def note(error: dws.DwsError) -> None:
            lost.append(str(error))

        deadline = time.monotonic() + SECONDS_MAX
        for minibatch in range(MINIBATCHES):
            pushes = values(minibatch)
            with futures.ThreadPoolExecutor(RANKS) as pool:
                views = [pool.submit(self.decided, rank, pushes[rank.rank], note) for rank in self.ranks]
                while meanwhile is not None and futures.wait(views, LEFT_BEHIND_EACH_SECONDS).not_done:
                    if time.monotonic() < deadline:  # later it is undisturbed, to end
                        meanwhile()
                total, count = sum(sum(each) for each in pushes), sum(len(each) for each in pushes)
                self.check_sums([view.result() for view in views], total, count)
            self.each(Rank.publish)
        return lost

    def abandoned(self) -> int:
        return int(self.cluster.senders[0].metric("dws_sender_train_abandoned_total"))

    def test_messages_that_are_late_by_different_times_are_taken_in_turn(self) -> None:
        self.start_late(seed=11)
        self.assertEqual(self.train(), [])
        self.assertEqual(self.abandoned(), 0)

    def test_what_a_connection_that_was_given_up_brings_late_changes_nothing(self) -> None:
        self.start_late(seed=23)
        random = Random(5)
        self.train(lambda: random.choice(self.proxies).leave_behind())
        left = sum(proxy.left_behind for proxy in self.proxies)
        connections = sum(proxy.connections for proxy in self.proxies)
        print(f"{connections} connections, {left} given up by one side; {self.abandoned()} attempts done again")
        self.assertGreaterEqual(left, MINIBATCHES)
        self.assertGreater(connections, left)


if __name__ == "__main__":
    unittest.main()
