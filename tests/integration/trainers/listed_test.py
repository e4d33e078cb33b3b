"""A trainer on a GPU, the fake driver's, that lists what it changes (publish(changes=...)): engines get its weights, whatever
the lists say."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import torch

import dws
from dws.change_lists import Changes
from dws.dtypes import DType
from dws.trainers import cast_and_list
from dws.trainers.publisher import Publisher
from tests.clients.python.gpu import Gpu, GpuTensor
from tests.clients.python.torch_gpu import TorchGpu
from tests.integration.integration_case import IntegrationCase, change, changes_of, eventually

BF16 = torch.bfloat16
SHAPES = {"a": ((700, 300), DType.BF16), "b": ((70_001,), DType.F32), "c": ((33, 9), DType.U8)}
BLOCKS = {"a": 4, "b": 2, "c": 1}


class ListedTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.use_failpoints("SENDER", "RECEIVER")
        self.gpu = Gpu()
        self.random = np.random.default_rng(11)
        torch.manual_seed(11)

    def begin(self) -> None:
        """A job whose first version is committed, with an engine on the host."""
        self.start()
        self.job = self.trainer()
        self.weights: dict[str, Any] = {}
        for name, (shape, dtype) in SHAPES.items():
            self.weights[name] = GpuTensor(self.gpu, self.gpu.malloc(8 << 20) + 1024, shape, dtype)
            self.weights[name].put(self.random.integers(0, 200, shape).astype(dtype.numpy))
        self.weights["host"] = np.zeros((9, 9), np.float32)
        self.weights.update(self.job.register(self.weights, lists=True))
        self.job.publish(1)
        self.engine_of_host = self.engine()
        self.live = self.engine_of_host.attach({n: np.zeros_like(w) for n, w in self.values().items()})
        self.check(1)

    def values(self) -> dict[str, Any]:
        return {n: w.get() if isinstance(w, GpuTensor) else w.copy() for n, w in self.weights.items()}

    def step(self, share: float = 0.01) -> dict[str, Changes]:
        before = self.values()
        for name, tensor in self.weights.items():
            values = tensor.get() if isinstance(tensor, GpuTensor) else tensor
            change(values, self.random, share)
            if isinstance(tensor, GpuTensor):
                tensor.put(values)
        return {name: changes_of(before[name], array) for name, array in self.values().items()}

    def check(self, version: int) -> None:
        self.await_version(self.engine_of_host, version)
        self.assert_same_weights(self.engine_of_host, self.live, self.values())

    def listed_blocks(self) -> float:
        return self.cluster.senders[0].metric("dws_sender_listed_blocks_total")

    def test_versions_with_and_without_lists_follow_each_other(self) -> None:
        self.begin()
        everything = sum(BLOCKS.values())
        for version in range(2, 8):
            listed, seen = self.step(), self.listed_blocks()
            wanted = [everything, 0, everything - BLOCKS["b"]][version % 3]
            if version % 3 == 2:
                listed.pop("b")
            stats = self.job.publish(version, changes=listed if version % 3 != 1 else None)
            if version % 3 == 0:
                changed = sum(len(each.position) for each in listed.values())
                self.assertEqual(stats.changed_elements, changed)
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
            self.assertEqual(self.listed_blocks() - seen, BLOCKS["b"] + BLOCKS["c"])
        self.assertEqual(self.cluster.senders[0].logged("listed_changes_differ"), 4)

    def test_lists_that_no_sender_could_use_are_refused_before_anything_is_asked(self) -> None:
        self.begin()
        listed = self.step()["a"]
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
        self.assertEqual(self.listed_blocks(), BLOCKS["a"])
        with self.trainer() as other:
            other.register({"w": np.zeros(5)})
            with self.assertRaisesRegex(dws.StateError, "lists=True"):
                other.publish(1, changes={})

    def test_lists_without_room_are_left_to_a_comparison(self) -> None:
        self.begin()
        listed = self.step(0.3)
        self.job.publish(2, changes=listed)
        self.check(2)
        self.assertEqual(self.listed_blocks(), BLOCKS["c"])

    def test_a_restarted_sender_takes_lists_again_after_its_first_version(self) -> None:
        self.begin()
        self.cluster.senders[0].kill()
        self.cluster.senders[0].start()
        self.job.reconnect()
        for version in (2, 3):
            self.job.publish(version, changes=self.step())
            self.check(version)
        self.assertEqual(self.listed_blocks(), sum(BLOCKS.values()))

    def test_a_mixed_precision_trainer_publishes_what_its_cast_lists(self) -> None:
        self.start()
        on_gpu = TorchGpu(self.gpu.malloc)
        module = torch.nn.Module()
        masters: dict[str, Any] = {}
        for name, shape in (("first", (300, 257)), ("second", (900, 61)), ("norm", (257,))):
            masters[name] = on_gpu.tensor(torch.randn(shape) * 0.05)
            module._parameters[name] = on_gpu.tensor(masters[name].to(BF16))  # type: ignore[assignment]
        weights = dict(module.named_parameters())
        publisher = Publisher(self.cluster.senders[0].socket, "test")
        self.addCleanup(publisher.close)
        with on_gpu.installed():
            publisher.register(module, lists=True)
        publisher.publish(1)
        engine = self.engine()
        live = engine.attach({n: torch.zeros(m.shape, dtype=BF16) for n, m in masters.items()})
        for version in (2, 3, 4):
            for master in masters.values():
                master += on_gpu.tensor(torch.randn(master.shape) * 1e-6)
            names = list(masters)
            listed = cast_and_list([masters[n] for n in names], [weights[n] for n in names])
            stats = publisher.publish(version, changes=dict(zip(names, listed)))
            assert stats is not None
            self.assertGreater(stats.changed_elements, 0)
            self.await_version(engine, version)
            for name, weight in weights.items():
                self.assertTrue(torch.equal(live[name].view(torch.int16), weight.view(torch.int16)))
        eventually(lambda: self.listed_blocks() == 3 * 4, lambda: str(self.listed_blocks()))


if __name__ == "__main__":
    unittest.main()
