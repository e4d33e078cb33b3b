"""Links between receiver and sender that break, hang and slow down: bytes that arrived are not resent, nobody waits
for a receiver with a bad link, and the trainer's exact bits arrive."""

from __future__ import annotations

import time
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.fault_proxy import FaultProxy
from tests.integration.integration_case import IntegrationCase, change, eventually
from tests.integration.reflection_client import ReflectionClient

ELEMENTS = 2_000_000
CHUNK_BYTES = 1 << 20
HTTP2_WINDOW_BYTES = 4 << 20  # bytes that may be in transfer when a link breaks


class NetworkTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(31)
        self.sender = self.cluster.start_sender(0, "--insecure")
        self.dws_trainer = self.trainer()
        self.source = self.dws_trainer.register(
            {"w": self.random.standard_normal(ELEMENTS, np.float32)}
        )
        self.proxy = FaultProxy(self.sender.ports["sync"])
        self.addCleanup(self.proxy.__exit__)

    def attach(self, name: str, port: int) -> tuple[dws.Engine, Any]:
        flags = ("--insecure", f"--sender=127.0.0.1:{port}")
        engine = self.engine(self.cluster.start_receiver(name, *flags, senders=False))
        return engine, engine.attach({"w": np.zeros(ELEMENTS, np.float32)})

    def publish(self, version: int, share: float) -> None:
        """`share` of the elements change slightly; 1: all change strongly, so that no encoding helps."""
        if share == 1:
            self.source["w"][:] = self.random.standard_normal(ELEMENTS, np.float32)
        else:
            change(self.source["w"], self.random, share)
        self.dws_trainer.publish(version)

    def check(self, engine: dws.Engine, live: Any, version: int) -> None:
        self.await_version(engine, version)
        self.assert_same_weights(engine, live, self.source)

    def begin(self) -> tuple[dws.Engine, Any]:
        """Brings an engine behind the proxy to version 1."""
        engine, live = self.attach("far", self.proxy.port)
        self.publish(1, 0)
        self.check(engine, live, 1)
        return engine, live

    def test_a_cut_transfer_continues_where_it_stopped(self) -> None:
        engine, live = self.begin()
        self.publish(2, 0.0)
        self.check(engine, live, 2)
        began, size = self.proxy.bytes_down, 4 * ELEMENTS // 8
        self.proxy.limit(4 << 20)  # so that the cuts happen during the transfer
        self.proxy.cut_after(3 * size, 2 * size)
        self.publish(3, 1)
        eventually(lambda: self.proxy.cuts == 2, lambda: f"two cuts, not {self.proxy.cuts}")
        self.proxy.limit(None)
        self.check(engine, live, 3)
        # The engine is released first, and the commit counted once the ledger has it.
        eventually(
            lambda: self.status_of("far").receiver.last_commit.version == 3,
            lambda: str(self.status_of("far")),
        )
        status = self.status_of("far").receiver
        once = status.last_commit.fetched_bytes
        self.assertGreater(once, size)
        again = self.proxy.bytes_down - began - once
        # Each cut loses the bytes in transfer: at most an incomplete chunk, and framing.
        self.assertLess(again, 2 * CHUNK_BYTES + HTTP2_WINDOW_BYTES // 8 + once // 50)
        self.assertEqual(status.repairs, 1)  # the first version

    def test_a_cut_transfer_of_full_tensors_arrives(self) -> None:
        engine, live = self.attach("far", self.proxy.port)
        self.proxy.limit(8 << 20)
        self.proxy.cut_after(4 << 20)
        self.publish(1, 0)
        eventually(lambda: self.proxy.cuts == 1, lambda: "the cut")
        self.proxy.limit(None)
        self.check(engine, live, 1)

    def test_a_hanging_link_is_dropped_and_connected_again(self) -> None:
        engine, live = self.begin()
        self.proxy.limit(1 << 20)
        self.publish(2, 1)
        down = self.proxy.bytes_down
        eventually(lambda: self.proxy.bytes_down > down + (1 << 20), lambda: "it is under way")
        self.proxy.stall(True)
        eventually(
            lambda: not self.status_of("far").receiver.senders[0].connected,
            lambda: str(self.status_of("far")),
        )
        self.assertEqual(engine.wait_ready(0).version, 1)  # it keeps its version
        self.proxy.limit(None)
        self.proxy.stall(False)
        self.check(engine, live, 2)

    def test_a_slow_receiver_delays_nobody_else(self) -> None:
        far, far_live = self.begin()
        near, near_live = self.attach("near", self.sender.ports["sync"])
        self.check(near, near_live, 1)
        self.proxy.limit(1_000_000)
        versions = range(2, 12)
        worst = 0.0
        for version in versions:
            # The last one takes the slow link eight seconds.
            self.publish(version, 1 if version == versions[-1] else 0.2)
            began = time.monotonic()
            self.dws_trainer.wait(version, "any", 60)
            worst = max(worst, time.monotonic() - began)
            self.check(near, near_live, version)
        # The slow one is behind: neither a version nor the trainer waited for it.
        with far.running(60) as grant:  # a commit may have paused it
            self.assertLess(grant.version, versions[-1])
        self.proxy.limit(None)
        self.check(far, far_live, versions[-1])
        self.assertLess(worst, 30)

    def test_a_stopped_receiver_delays_nobody_else(self) -> None:
        far, far_live = self.begin()
        near, near_live = self.attach("near", self.sender.ports["sync"])
        self.check(near, near_live, 1)
        self.proxy.stall(True)
        for version in range(2, 8):
            self.publish(version, 0.01)
            self.dws_trainer.wait(version, 1, 60)
            self.check(near, near_live, version)
        self.proxy.stall(False)
        self.check(far, far_live, 7)
        self.assertEqual(self.status_of("far").receiver.repairs, 1)  # one squash, no full tensors

    def status_of(self, name: str) -> Any:
        (receiver,) = (r for r in self.cluster.receivers if r.name == name)
        client = ReflectionClient(f"unix:{receiver.socket}")
        try:
            return client.call("dws.v1.AdminService", "Status")
        finally:
            client.close()


if __name__ == "__main__":
    unittest.main()
