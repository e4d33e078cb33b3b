"""Full tensors read over a fabric (libfabric's tcp, on loopback), between real daemons."""

from __future__ import annotations

import ctypes
import json
import unittest

import numpy as np

from tests.integration.integration_case import IntegrationCase, change, eventually

SHAPES = {"a": (1500, 700), "b": (33,), "c": (400, 1000)}
BYTES = sum(4 * int(np.prod(shape)) for shape in SHAPES.values())
OVER_TCP = ("--insecure", "--fabric=tcp")


def installed() -> bool:
    try:
        ctypes.CDLL("libfabric.so.1")
    except OSError:
        return False
    return True


@unittest.skipUnless(installed(), "libfabric.so.1 is not installed")
class FabricTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(23)
        self.version = 0

    def register(self) -> None:
        self.dws_trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = self.dws_trainer.register(weights)

    def publish(self) -> None:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, 0.3)
        self.dws_trainer.publish(self.version)

    def join(self, *flags: str) -> None:
        """A new receiver, whose engine comes to the newest version."""
        name = f"receiver-{len(self.cluster.receivers)}"
        receiver = self.cluster.start_receiver(name, *flags)
        engine = self.engine(receiver)
        live = engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        self.await_version(engine, self.version)
        self.assert_same_weights(engine, live, self.source)

    def came(self, way: str, receiver: int = -1) -> int:
        daemon = self.cluster.receivers[receiver]
        return int(daemon.metric("dws_receiver_source_bytes_total", f'content="full",source="{way}"'))

    def peer(self, receiver: int = -1) -> dict[str, str]:
        """The sender, as the receiver's status shows it."""
        status = json.loads(self.cluster.receivers[receiver].page("/status"))
        return dict(status["receiver"]["senders"][0])

    def lent(self) -> str:
        return str(json.loads(self.cluster.senders[0].page("/status"))["sender"]["fabric"])

    def test_full_tensors_come_over_the_fabric_and_deltas_after_them(self) -> None:
        self.cluster.start_sender(0, *OVER_TCP)
        self.assertEqual(self.lent(), "tcp")
        self.register()
        self.publish()
        self.join(*OVER_TCP, "--full-way=fabric")
        self.assertEqual(self.came("fabric"), BYTES)
        self.assertEqual(self.came("grpc") + self.came("same-host"), 0)
        self.assertEqual(self.peer()["full_way"], "fabric tcp")
        self.assertEqual(self.lent(), "tcp 127.0.0.1 (lo), lent")
        self.publish()
        self.publish()
        # One that joins later reads the same loan.
        self.join(*OVER_TCP, "--full-way=fabric")
        self.assertEqual(self.came("fabric"), BYTES)

    def test_a_new_snapshot_is_lent_anew(self) -> None:
        self.cluster.start_sender(0, *OVER_TCP)
        self.register()
        self.publish()
        self.join(*OVER_TCP, "--full-way=fabric")
        self.dws_trainer.close()
        self.register()
        # The old one is not kept for readers that may still come.
        eventually(lambda: self.lent() == "tcp", self.lent)
        self.version += 10
        self.publish()
        self.join(*OVER_TCP, "--full-way=fabric")
        self.assertEqual(self.came("fabric"), BYTES)

    def test_a_sender_that_lends_nothing_is_named_and_passed_over(self) -> None:
        self.cluster.start_sender(0, "--insecure")
        self.assertEqual(self.lent(), "off")
        self.register()
        self.publish()
        self.join(*OVER_TCP, "--full-way=grpc")
        self.assertEqual((self.came("grpc"), self.came("fabric")), (BYTES, 0))
        required = self.cluster.start_receiver("required", *OVER_TCP, "--full-way=fabric")
        engine = self.engine(required)
        engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        for reason in ("may come by fabric only, which brought 0 of", ": the sender's --fabric is off"):
            eventually(lambda: reason in required.page("/status"), lambda: required.page("/status"))
        self.assertEqual((self.came("grpc"), self.came("fabric")), (0, 0))
        self.assertIsNone(engine.grant)


if __name__ == "__main__":
    unittest.main()
