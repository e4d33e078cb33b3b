"""Sixteen receivers join at once, on hosts of their own, a sender behind a slow link: its link carries the
weights once."""

from __future__ import annotations

import time
import unittest

import numpy as np

from tests.integration.cluster import Daemon
from tests.integration.network_hosts import NetworkHosts
from tests.integration.reflection_client import ReflectionClient
from tests.integration.transfer.peers_case import SENDER_FLAGS, PeersCase

JOINERS = 16
LINK_BYTES_PER_SECOND = 16_000_000
WEIGHTS = (4_000_000, 2_000_000)


class JoinersTest(PeersCase):
    def test_sixteen_joiners_take_the_weights_once_from_the_sender(self) -> None:
        hosts = NetworkHosts.of_test(self, JOINERS + 1)
        hosts.enter(self.cluster, 0)
        self.begin(*SENDER_FLAGS, elements=WEIGHTS)
        hosts.limit(0, LINK_BYTES_PER_SECOND)
        joiners = []
        for index in range(JOINERS):
            hosts.enter(self.cluster, index + 1)
            receiver = self.cluster.start_receiver(
                f"r{index}", *self.peer_flags(""), "--full-way=auto"
            )
            joiners.append((receiver, self.engine(receiver)))
        before = hosts.traffic()[0][0]
        began = time.monotonic()
        live = [
            engine.attach({n: np.zeros(a.size, np.float32) for n, a in self.source.items()})
            for _, engine in joiners
        ]
        for _, engine in joiners:
            self.await_version(engine, 1)
        took = time.monotonic() - began
        sent = hosts.traffic()[0][0] - before
        print(f"{took:.1f} s, {sent / self.model_bytes():.2f} x the weights over the sender's link")
        for (_, engine), tensors in zip(joiners, live):
            self.assert_same_weights(engine, tensors, self.source)
        self.assertLess(sent, 2 * self.model_bytes())
        served = sum(self.served_on_host(receiver) for receiver, _ in joiners)
        self.assertEqual(served, (JOINERS - 1) * self.model_bytes())

    @staticmethod
    def served_on_host(receiver: Daemon) -> int:
        client = ReflectionClient(f"unix:{receiver.socket}")
        try:
            reply = client.call("dws.v1.AdminService", "Status")
            return int(reply.receiver.served_peers.served_bytes)
        finally:
            client.close()


if __name__ == "__main__":
    unittest.main()
