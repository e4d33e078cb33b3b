"""Sender and receiver on two hosts whose network fails: the link is down, packets vanish, one side dies and the
other does not notice. The engine keeps its version, and gets the newest one once the link works again.
"""

from __future__ import annotations

import threading
import unittest
from typing import Any

import numpy as np

from tests.integration.integration_case import IntegrationCase, change, eventually
from tests.integration.network_hosts import NetworkHosts
from tests.integration.reflection_client import ReflectionClient

ELEMENTS = 2_000_000
DOWN_SECONDS = 30
MESSAGE_BYTES_MAX = 2 << 20  # a frame, and packets sent again


class HostNetworkTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.hosts = NetworkHosts.of_test(self)
        self.random = np.random.default_rng(37)
        self.hosts.enter(self.cluster, 0)
        self.sender = self.cluster.start_sender(0, "--insecure")
        self.hosts.enter(self.cluster, 1)
        self.receiver = self.cluster.start_receiver("receiver-0", "--insecure")
        self.dws_trainer = self.trainer()
        self.source = self.dws_trainer.register(
            {"w": self.random.standard_normal(ELEMENTS, np.float32)}
        )
        self.dws_engine = self.engine()
        self.live = self.dws_engine.attach({"w": np.zeros(ELEMENTS, np.float32)})
        self.version = 0
        self.publish()
        self.check()

    def publish(self, share: float = 0.01) -> None:
        """`share` of the elements change slightly; 1: all change strongly, so that no encoding helps."""
        self.version += 1
        if share == 1:
            self.source["w"][:] = self.random.standard_normal(ELEMENTS, np.float32)
        else:
            change(self.source["w"], self.random, share)
        self.dws_trainer.publish(self.version)

    def check(self) -> None:
        self.await_version(self.dws_engine, self.version)
        self.assert_same_weights(self.dws_engine, self.live, self.source)

    def status(self) -> Any:
        client = ReflectionClient(f"unix:{self.receiver.socket}")
        try:
            return client.call("dws.v1.AdminService", "Status").receiver
        finally:
            client.close()

    def sent_bytes(self) -> int:
        return self.hosts.traffic()[0][0]

    def await_loss(self) -> None:
        eventually(
            lambda: not self.status().senders[0].connected, lambda: f"it is missed: {self.status()}"
        )
        self.assertEqual(self.dws_engine.wait_ready(0).version, 1)

    def test_a_fetch_continues_after_its_link_was_down(self) -> None:
        size = 4 * ELEMENTS
        self.hosts.limit(1, 1_000_000)
        self.publish(1)
        eventually(lambda: self.status().stage_done_bytes > size // 2, lambda: "it is under way")
        self.hosts.set_link(1, False)
        sent, arrived = self.sent_bytes(), int(self.status().stage_done_bytes)
        threading.Event().wait(DOWN_SECONDS)
        self.assertEqual(self.dws_engine.wait_ready(0).version, 1)
        self.hosts.set_link(1, True)
        self.hosts.restore()
        self.check()
        # Bytes that had arrived were not sent again, but for the message that the link broke.
        self.assertLess(self.sent_bytes() - sent, size - arrived + MESSAGE_BYTES_MAX)

    def test_versions_arrive_although_packets_are_lost(self) -> None:
        self.hosts.drop()
        for _ in range(3):
            self.publish()
        self.await_loss()
        self.publish()
        self.hosts.restore()
        self.check()
        self.assertEqual(
            self.status().repairs, 1
        )  # the first version: then one squash, no full tensors

    def test_a_receiver_whose_death_the_sender_does_not_notice_is_replaced(self) -> None:
        self.hosts.drop()
        self.receiver.kill()
        self.publish()
        self.hosts.restore()
        self.receiver.start()
        self.check()

    def test_a_sender_whose_death_the_receiver_does_not_notice_is_replaced(self) -> None:
        self.hosts.drop()
        self.sender.kill()
        self.sender.start()
        self.hosts.restore()
        self.dws_trainer.reconnect()
        self.publish()
        self.check()


if __name__ == "__main__":
    unittest.main()
