"""A receiver whose link is 50 times slower than the others': it delays neither them nor the trainer, and ends with
the trainer's weights, also if its link is cut on the way."""

from __future__ import annotations

import time
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.integration_case import IntegrationCase, change, eventually
from tests.integration.network_hosts import NetworkHosts
from tests.integration.reflection_client import ReflectionClient

SHAPES = {"a": (4096, 1024), "b": (2048, 1024), "c": (33,)}  # 24 MiB of float32
FAST, SLOW = 32_000_000, 640_000  # bytes a second
SENDER, FIRST, SECOND, FAR = range(4)  # hosts
VERSIONS = 4


class FairnessTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.hosts = NetworkHosts.of_test(self, 4)
        self.hosts.limit(FIRST, FAST)
        self.hosts.limit(SECOND, FAST)
        self.hosts.limit(FAR, SLOW)
        self.random = np.random.default_rng(47)
        self.hosts.enter(self.cluster, SENDER)
        self.cluster.start_sender(0, "--insecure")
        self.dws_trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = self.dws_trainer.register(weights)
        self.size = sum(array.nbytes for array in weights.values())
        self.version = 0
        self.publish()

    def publish(self, full: bool = False) -> float:
        """Seconds until the trainer may go on."""
        self.version += 1
        for array in self.source.values():
            change(array, self.random, 0.5 if full else 0.01)
        began = time.monotonic()
        self.dws_trainer.publish(self.version, full=full)
        return time.monotonic() - began

    def attach(self, name: str, host: int) -> tuple[dws.Engine, Any]:
        self.hosts.enter(self.cluster, host)
        engine = self.engine(self.cluster.start_receiver(name, "--insecure"))
        return engine, engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})

    def check(self, engine: dws.Engine, live: Any) -> None:
        self.await_version(engine, self.version)
        self.assert_same_weights(engine, live, self.source)

    def join_two(self, name: str) -> tuple[float, list[tuple[dws.Engine, Any]]]:
        """Two engines behind fast links; seconds until both have the version."""
        began = time.monotonic()
        joined = [self.attach(f"{name}-{host}", host) for host in (FIRST, SECOND)]
        for engine, _ in joined:
            self.await_version(engine, self.version)
        seconds = time.monotonic() - began
        for engine, live in joined:
            self.check(engine, live)
        return seconds, joined

    def leave(self, name: str, joined: list[tuple[dws.Engine, Any]]) -> None:
        for engine, _ in joined:
            engine.close()
        for receiver in self.cluster.receivers:
            if receiver.name.startswith(name):
                receiver.stop()

    def begin_slow(self) -> tuple[dws.Engine, Any]:
        """Returns while its first version is on its way."""
        engine, live = self.attach("far", FAR)
        self.await_far_bytes(self.size // 100)
        return engine, live

    def await_far_bytes(self, count: int) -> None:
        """Its link has carried as many."""
        eventually(
            lambda: self.far_bytes() > count, lambda: f"{self.far_bytes()} bytes, not {count}"
        )

    def far_bytes(self) -> int:
        return self.hosts.traffic()[FAR][1]

    def test_a_slow_receiver_delays_neither_the_others_nor_the_trainer(self) -> None:
        alone, joined = self.join_two("alone")
        delta_alone = max(self.publish() for _ in range(VERSIONS))
        full_alone = max(self.publish(full=True) for _ in range(VERSIONS))
        for engine, live in joined:
            self.check(engine, live)
        self.leave("alone", joined)

        far, far_live = self.begin_slow()
        beside, joined = self.join_two("beside")
        self.assertIsNone(far.grant)
        self.assertLess(self.far_bytes(), self.size)
        self.assertLess(beside, 1.5 * alone + 1)
        for full, bar in ((False, delta_alone), (True, full_alone)):
            worst = 0.0
            for _ in range(VERSIONS):
                worst = max(worst, self.publish(full))
                for engine, live in joined:
                    self.check(engine, live)
            self.assertIsNone(far.grant)
            self.assertLess(worst, 1.5 * bar + 1)
        self.hosts.limit(FAR, FAST)
        self.check(far, far_live)

    def test_a_slow_receiver_whose_link_is_cut_gets_the_weights(self) -> None:
        far, far_live = self.begin_slow()
        joined = self.join_two("near")[1]
        self.await_far_bytes(self.size // 12)
        self.hosts.set_link(FAR, False)
        eventually(lambda: not self.far_connected(), lambda: "it notices")
        self.assertIsNone(far.grant)
        self.hosts.set_link(FAR, True)
        self.await_far_bytes(self.size // 6)
        self.assertIsNone(far.grant)
        self.hosts.limit(FAR, FAST)
        self.check(far, far_live)
        # What had arrived was not sent again.
        self.assertLess(self.far_bytes(), 1.4 * self.size)
        self.publish()
        for engine, live in (*joined, (far, far_live)):
            self.check(engine, live)

    def far_connected(self) -> bool:
        (receiver,) = (r for r in self.cluster.receivers if r.name == "far")
        client = ReflectionClient(f"unix:{receiver.socket}")
        try:
            status = client.call("dws.v1.AdminService", "Status")
            return bool(status.receiver.senders[0].connected)
        finally:
            client.close()


if __name__ == "__main__":
    unittest.main()
