"""Ranks that train on demand on two hosts, each of which fetches the other's weights once for all of its ranks."""

from __future__ import annotations

import unittest

import dws
from tests.integration.trainers.on_demand_case import RANKS, OnDemandCase, Rank


class HostCacheTest(OnDemandCase):
    def cached(self) -> dict[str, list[int]]:
        """For each rank: bytes that it had from the cache of a host, and from elsewhere; bytes that its sender keeps, and that
        it has fetched for its host."""
        gathered, cache = "dws_sender_train_gathered_bytes_total", "dws_sender_train_host_cache"
        found: dict[str, list[int]] = {}
        for sender in self.cluster.senders:
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
        self.start_job(flags=lambda rank: [f"--host-id={'ab'[rank // 2]}", f"--host-cache-bytes={cache_bytes}"])
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

    def test_what_has_no_room_is_fetched_by_each_rank(self) -> None:
        """The first unit has room, the second one has none."""
        found = self.run_on_two_hosts(1024)
        self.assertLessEqual(max(found["kept"]), 1024)
        self.assertGreater(min(found["from cache"]), 0)
        self.assertGreater(min(found["fetched"]), 0)

    def test_a_keeper_that_was_killed_fetches_again(self) -> None:
        self.run_on_two_hosts(1 << 20)
        self.each(Rank.begin)
        self.cluster.senders[1].kill()
        self.cluster.senders[1].start()
        for rank in (0, 2):
            with self.assertRaises(dws.RankLostError):
                self.ranks[rank].finish(1.0)
            self.ranks[rank].traffic.end()
        self.ranks[1].membership.join_if_lost(4)
        self.check_sums(self.minibatch([[1.0], [2.0], [4.0]]), 7.0, 3.0)
        self.each(Rank.publish)
        found = self.cached()
        self.assertEqual(found["fetched"], [0] * RANKS)
        self.assertEqual(found["kept"][1], found["for host"][1])  # it has them in full


if __name__ == "__main__":
    unittest.main()
