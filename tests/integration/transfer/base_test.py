"""Sender and receivers that have loaded the same checkpoint begin in a shared directory without
full tensors; a receiver with other weights is told what differs, and gets the tensors."""

from __future__ import annotations

import os
import unittest
from typing import Any, Mapping, Optional

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

# Several blocks a slice, odd tails.
SHAPES = {"a": (1500, 701), "b": (33,), "c": (900, 400)}


class BaseTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(29)
        self.root = os.path.join(self.cluster.folder, "shared")
        self.base = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.sender = self.cluster.start_sender(
            0, f"--shared-dir={self.root}", "--shared-dir-first=base"
        )
        self.version = 0

    def register(self, weights: Mapping[str, Any], stream: Optional[dws.Stream] = None) -> None:
        self.dws_trainer = self.trainer(stream=stream)
        self.source = self.dws_trainer.register({n: array.copy() for n, array in weights.items()})

    def publish(self, share: float = 0.01) -> None:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, share)
        self.dws_trainer.publish(self.version)

    def receiver(self, name: str) -> Daemon:
        return self.cluster.start_receiver(
            name, f"--shared-dir={self.root}", "--shared-poll-ms=20", senders=False
        )

    def join(self, receiver: Daemon, weights: Mapping[str, Any]) -> tuple[dws.Engine, Any]:
        engine = self.engine(receiver)
        return engine, engine.attach({n: array.copy() for n, array in weights.items()})

    def payload(self) -> dict[str, int]:
        """The bytes of the files there that hold weights, by the kind of file."""
        sizes = {"delta": 0, "full": 0}
        for place, _, names in os.walk(self.root):
            for name in sizes.keys() & set(names):
                sizes[name] += os.path.getsize(os.path.join(place, name))
        return sizes

    def took(self, receiver: Daemon, kind: str) -> float:
        return receiver.metric("dws_receiver_fetched_bytes_total", f'kind="{kind}"')

    def assert_at(self, engine: dws.Engine, live: Any, version: int) -> None:
        grant = self.await_version(engine, version)
        self.assert_same_weights(engine, live, self.source)
        self.assert_token(grant, [self.dws_trainer], [self.source])

    def test_receivers_that_hold_the_base_read_deltas_only(self) -> None:
        self.register(self.base)
        self.publish(0)
        first = self.receiver("first")
        engine, live = self.join(first, self.base)
        self.assert_at(engine, live, 1)
        self.assertEqual(self.payload(), {"delta": 0, "full": 0})
        self.assertEqual((self.took(first, "delta"), self.took(first, "full")), (0, 0))
        self.assertEqual(
            self.sender.metric("dws_sender_shared_versions_total", 'kind="base"'), 1
        )
        self.publish()
        self.assertEqual(self.dws_trainer.wait(2).committed, ("first",))
        self.assert_at(engine, live, 2)

        # Both daemons of the receiving side end, and an engine begins again with the base: of a
        # receiver that was beyond it, and of one that was never there.
        engine.close()
        first.kill()
        self.publish()
        first.start()
        second = self.receiver("second")
        for receiver in (first, second):
            engine, live = self.join(receiver, self.base)
            self.assert_at(engine, live, 3)
            # The engine runs a moment before its receiver counts the commit.
            eventually(lambda: self.took(receiver, "delta") > 0, receiver.log_tail)
            self.assertEqual(self.took(receiver, "full"), 0)
        self.assertEqual(self.payload()["full"], 0)

        # A sender that starts again has nothing to compare with: what differs comes in full.
        stream = self.dws_trainer.stream
        held = self.source
        self.dws_trainer.close()
        self.sender.kill()
        self.sender.start()
        self.register(held, stream)
        self.publish()
        self.assert_at(engine, live, 4)
        self.publish()
        self.assert_at(engine, live, 5)
        self.assertGreater(self.payload()["full"], 0)

    def test_an_engine_with_other_weights_is_told_and_gets_the_trainers(self) -> None:
        self.register(self.base)
        self.publish(0)
        receiver = self.receiver("receiver-0")
        other = {n: array.copy() for n, array in self.base.items()}
        other["c"][3, 5] += 1
        engine, live = self.join(receiver, other)
        told = "1 of 3 slices of the engine are not those of version 1, the first of tensor"
        eventually(lambda: told in receiver.log_tail(400), receiver.log_tail)
        self.assert_at(engine, live, 1)
        self.assertGreater(self.took(receiver, "full"), 0)
        self.assertLess(self.took(receiver, "full"), 1.1 * other["c"].nbytes)
        self.assertIn("shared_full_asked", self.sender.log_tail(400))
        for version in (2, 3):
            self.publish()
            self.assert_at(engine, live, version)
        # Asked for once.
        self.assertEqual(
            self.sender.metric("dws_sender_shared_versions_total", 'kind="anchor"'), 1
        )

    def test_full_tensors_that_nobody_can_write_now_come_from_the_next_sender(self) -> None:
        self.register(self.base)
        self.publish(0)
        stream = self.dws_trainer.stream
        eventually(
            lambda: self.sender.metric("dws_sender_shared_newest_version") == 1,
            self.sender.log_tail,
        )
        self.sender.kill()
        receiver = self.receiver("receiver-0")
        engine, live = self.join(receiver, {n: array * 2 for n, array in self.base.items()})
        told = "3 of 3 slices of the engine are not those of version 1, the first of tensor 'a'"
        eventually(lambda: told in receiver.readyz()[1], receiver.log_tail)
        self.assertIsNone(engine.grant)
        self.assertEqual(receiver.readyz()[0], 503)
        receiver.kill()
        receiver.start()
        self.sender.start()
        self.register(self.base, stream)
        self.publish()
        self.assert_at(engine, live, 2)


if __name__ == "__main__":
    unittest.main()
