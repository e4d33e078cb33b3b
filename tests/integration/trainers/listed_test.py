"""A trainer that lists what it changes (publish(changes=...)): engines get its weights, whatever the lists say."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import torch

import dws
from dws.change_lists import ChangeLists, Changes
from dws.trainers import cast_and_list
from dws.trainers.publisher import Publisher
from tests.integration.integration_case import IntegrationCase, change, changes_of, eventually

BF16 = torch.bfloat16


class ListedTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(11)
        torch.manual_seed(11)

    def begin(self) -> None:
        """A job whose first version is committed."""
        self.start()
        self.job = self.trainer()
        first = {
            "a": self.random.integers(0, 1 << 16, (700, 300), np.uint16),
            "b": self.random.standard_normal((70_001,)).astype(np.float32),
            "c": self.random.integers(0, 256, (33, 9), np.uint8),
        }
        self.weights = self.job.register(first, lists=True)
        self.job.publish(1)
        self.engine_of_host = self.engine()
        self.live = self.engine_of_host.attach({n: np.zeros_like(w) for n, w in first.items()})
        self.check(1)

    def step(self) -> dict[str, Changes]:
        before = {name: array.copy() for name, array in self.weights.items()}
        for array in self.weights.values():
            change(array, self.random, 0.01)
        return {name: changes_of(before[name], array) for name, array in self.weights.items()}

    def check(self, version: int) -> None:
        self.await_version(self.engine_of_host, version)
        self.assert_same_weights(self.engine_of_host, self.live, self.weights)

    def listed_blocks(self) -> float:
        return self.cluster.senders[0].metric("dws_sender_listed_blocks_total")

    def test_versions_with_and_without_lists_follow_each_other(self) -> None:
        self.begin()
        blocks = 4 + 2 + 1
        for version in range(2, 8):
            listed, seen = self.step(), self.listed_blocks()
            wanted = [blocks, 0, blocks - 2][version % 3]
            if version % 3 == 2:
                listed.pop("b")
            stats = self.job.publish(version, changes=listed if version % 3 != 1 else None)
            if version % 3 == 0:
                self.assertEqual(
                    stats.changed_elements, sum(len(each.position) for each in listed.values())
                )
            self.check(version)
            self.assertEqual(self.listed_blocks() - seen, wanted)
        self.assertEqual(self.cluster.senders[0].logged("listed_changes_differ"), 0)

    def test_wrong_lists_cost_a_comparison_and_are_told(self) -> None:
        self.begin()
        older = self.step()
        self.job.publish(2, changes=older)
        self.check(2)
        for version in range(3, 7):
            listed, seen = self.step(), self.listed_blocks()
            a = listed["a"]
            wrong = [
                Changes(a.position[1:], a.before[1:], a.after[1:]),
                Changes(a.position, a.before, a.after ^ 1),
                older["a"],
                Changes(a.position[::-1], a.before, a.after),
            ][version - 3]
            self.job.publish(version, changes={**listed, "a": wrong})
            self.check(version)
            self.assertEqual(self.listed_blocks() - seen, 3)
        self.assertEqual(self.cluster.senders[0].logged("listed_changes_differ"), 4)

    def test_lists_that_no_sender_could_use_are_refused_before_anything_is_asked(self) -> None:
        self.begin()
        (listed,) = (self.step()["a"],)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "'x', which this rank has not"):
            self.job.publish(2, changes={"x": listed})
        with self.assertRaisesRegex(dws.LayoutError, "same length"):
            self.job.publish(2, changes={"a": Changes(listed.position[1:], *listed[1:])})
        with self.assertRaisesRegex(dws.DTypeError, "elements of 4 bytes.*expected 2"):
            wide = [values.astype(np.uint32) for values in listed[1:]]
            self.job.publish(2, changes={"a": Changes(listed.position, *wide)})
        with self.assertRaisesRegex(dws.DTypeError, "expected integers"):
            self.job.publish(2, changes={"a": Changes(listed.position.astype(float), *listed[1:])})
        self.job.publish(2, changes={"a": listed})
        self.check(2)
        with self.trainer() as other:
            other.register({"w": np.zeros(5)})
            with self.assertRaisesRegex(dws.StateError, "lists=True"):
                other.publish(1, changes={})

    def test_lists_without_room_are_left_to_a_comparison(self) -> None:
        self.begin()
        before = {name: array.copy() for name, array in self.weights.items()}
        change(self.weights["a"], self.random, 0.9)
        change(self.weights["c"], self.random, 0.5)
        listed = {name: changes_of(before[name], array) for name, array in self.weights.items()}
        room: Any = ChangeLists(self.job.layout)
        self.addCleanup(room.close)
        self.assertEqual([shard for shard, _, _ in room.put(listed)], [1, 2])
        self.job.publish(2, changes=listed)
        self.check(2)
        self.assertEqual(self.listed_blocks(), 3)

    def test_a_restarted_sender_takes_lists_again_after_its_first_version(self) -> None:
        self.begin()
        self.cluster.senders[0].kill()
        self.cluster.senders[0].start()
        self.job.reconnect()
        for version in (2, 3):
            self.job.publish(version, changes=self.step())
            self.check(version)
        self.assertEqual(self.listed_blocks(), 7)

    def test_a_mixed_precision_trainer_publishes_what_its_cast_lists(self) -> None:
        self.start()
        module = torch.nn.Sequential(torch.nn.Linear(300, 257), torch.nn.LayerNorm(257)).to(BF16)
        publisher = Publisher(self.cluster.senders[0].socket, "test")
        self.addCleanup(publisher.close)
        # Between the values of BF16, so that small steps change some.
        masters = {
            name: each.detach().float() + torch.randn(each.shape) * 1e-4
            for name, each in module.named_parameters()
        }
        publisher.register(module, lists=True)
        weights = dict(module.named_parameters())
        cast_and_list(list(masters.values()), [weights[name].data for name in masters])
        publisher.publish(1)
        engine = self.engine()
        live = engine.attach({n: torch.zeros(m.shape, dtype=BF16) for n, m in masters.items()})
        for version in (2, 3, 4):
            for master in masters.values():
                master += torch.randn_like(master) * 1e-6
            names = list(masters)
            listed = cast_and_list([masters[n] for n in names], [weights[n].data for n in names])
            publisher.publish(version, changes=dict(zip(names, listed)))
            self.await_version(engine, version)
            for name, weight in weights.items():
                self.assertTrue(torch.equal(live[name].view(torch.int16), weight.data.view(torch.int16)))
        eventually(lambda: self.listed_blocks() == 3 * 5, lambda: str(self.listed_blocks()))


if __name__ == "__main__":
    unittest.main()
