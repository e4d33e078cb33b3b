"""Training on demand between hosts whose network fails in the middle of a push: ranks 0 and 1 are on one host, rank 2 is on
another one. Every piece is added once.
"""

from __future__ import annotations

import time
import unittest
from concurrent import futures
from typing import Callable

import dws
from tests.integration.integration_case import eventually
from tests.integration.network_hosts import NetworkHosts
from tests.integration.trainers.on_demand_case import RANKS, OnDemandCase, Rank

HOST_OF = (0, 0, 1)
AWAY = 2  # the rank that is cut off
PUSHES = 20
PORT = 7400
DOWN_SECONDS = 4.0
TIMEOUT_SECONDS = 3
RATE = 2_000_000  # so that a minibatch takes some seconds


class NetworkTest(OnDemandCase):
    def start_hosts(self, *flags: str) -> None:
        self.hosts = NetworkHosts.of_test(self)
        peers = ",".join(f"{self.hosts.address(host)}:{PORT + rank}" for rank, host in enumerate(HOST_OF))
        for rank, host in enumerate(HOST_OF):
            self.hosts.enter(self.cluster, host)
            sender = self.cluster.add_sender(rank, "--insecure", f"--host-id=host-{host}", f"--train-peers={peers}", *flags)
            sender.pages = False  # they would be inside the namespace
            sender.ports["sync"] = PORT + rank
            sender.start()
        self.start_ranks()
        self.hosts.limit(1, RATE)
        self.lost: dict[int, list[dws.DwsError]] = {rank: [] for rank in range(RANKS)}

    def train(self, disturb: Callable[[], None]) -> None:
        """A minibatch that is disturbed when pieces are on their way between the hosts, and an undisturbed one."""
        for disturbed in (True, False):
            pushes = [[float(1 + rank + RANKS * push) for push in range(PUSHES)] for rank in range(RANKS)]
            with futures.ThreadPoolExecutor(RANKS) as pool:
                views = [pool.submit(self.decided, rank, pushes[rank.rank], self.lost[rank.rank].append) for rank in self.ranks]
                if disturbed:
                    eventually(lambda: all(rank.traffic.pushes > 3 for rank in self.ranks), lambda: "all push")
                    disturb()
                    self.hosts.restore()
                self.check_sums([view.result() for view in views], sum(sum(each) for each in pushes), RANKS * PUSHES)
            self.each(Rank.publish)

    def test_a_link_that_is_mended_before_the_timeout_abandons_nothing(self) -> None:
        self.start_hosts()

        def disturb() -> None:
            self.hosts.set_link(1, False)
            time.sleep(DOWN_SECONDS / 2)
            pushed = [rank.traffic.pushes for rank in self.ranks]
            time.sleep(DOWN_SECONDS / 2)
            self.assertEqual([rank.traffic.pushes for rank in self.ranks], pushed)
            self.assertLess(max(pushed), PUSHES)
            self.hosts.set_link(1, True)

        self.train(disturb)
        self.assertEqual(self.lost, {rank: [] for rank in range(RANKS)})

    def test_a_rank_behind_a_link_that_is_down_for_longer_is_named_and_the_minibatch_done_again(self) -> None:
        self.start_hosts(f"--train-peer-timeout={TIMEOUT_SECONDS}")

        def disturb() -> None:
            self.hosts.set_link(1, False)
            eventually(lambda: bool(self.lost[0] and self.lost[1]), lambda: "the minibatch is abandoned")
            time.sleep(1.0)  # the ranks wait for the one that is away
            self.hosts.set_link(1, True)

        self.train(disturb)
        for rank, errors in self.lost.items():
            self.assertEqual(len(errors), 1, (rank, errors))
            self.assertRegex(str(errors[0]), f"because of rank {AWAY}: the sender of rank {AWAY} has been silent")
            assert isinstance(errors[0], dws.RankLostError)
            self.assertEqual(errors[0].rank, AWAY)


if __name__ == "__main__":
    unittest.main()
