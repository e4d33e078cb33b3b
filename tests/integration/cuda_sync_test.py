"""Weights on CUDA devices, live at both ends, with a CUDA driver, the fake one if there is no
other. The trainer and the engines export memory, the daemons import it."""

import contextlib
import os
import unittest
from typing import Any, Mapping

import numpy as np
import torch

import dws
from dws.dtypes import DType
from tests.clients.python.gpu import GRANULARITY, Gpu, GpuTensor
from tests.integration.cuda_engine_process import CudaEngineProcess
from tests.integration.integration_case import IntegrationCase, change, changes_of, eventually

SHAPES = {"a": (900, 700), "b": (33,), "c": (7, 5, 3)}


class CudaSyncTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.use_failpoints("SENDER", "RECEIVER")
        self.gpu = Gpu()
        self.random = np.random.default_rng(11)

    def live(self, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, GpuTensor]:
        """Zeros, each in its own allocation and not at its start."""
        found = {}
        for name, shape in shapes.items():
            found[name] = GpuTensor(self.gpu, self.gpu.malloc(8 << 20) + 1024, shape, DType.BF16)
            found[name].put(np.zeros(shape, np.uint16))
        return found

    def step(self, tensors: Mapping[str, Any], share: float) -> None:
        """An optimiser's step: changes about `share` of all elements."""
        for tensor in tensors.values():
            values = tensor.get() if isinstance(tensor, GpuTensor) else tensor
            change(values, self.random, share)
            if isinstance(tensor, GpuTensor):
                tensor.put(values)

    def begin(self) -> tuple[dws.Trainer, dict[str, GpuTensor]]:
        """A cluster and a trainer whose first version is published."""
        self.start()
        weights = self.live()
        self.step(weights, 1.0)
        trainer = self.trainer()
        trainer.register(weights)
        trainer.publish(1)
        return trainer, weights

    def publish(
        self, trainer: dws.Trainer, weights: Mapping[str, Any], version: int, share: float = 0.02
    ) -> None:
        self.step(weights, share)
        trainer.publish(version)

    def check(
        self, engine: dws.Engine, version: int, live: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> dws.Grant:
        """Checks that the engine reaches `version` and holds the bits of `wanted`."""
        grant = self.await_version(engine, version)
        self.assert_same_weights(engine, values(live), values(wanted))
        return grant

    def test_live_weights_follow_live_weights_bit_for_bit(self) -> None:
        trainer, weights = self.begin()
        engine, live = self.engine(), self.live()
        self.assertEqual(engine.attach(live), live)
        self.check(engine, 1, live, weights)
        for version, share in ((2, 0.01), (3, 0.0), (4, 0.5), (6, 1.0), (7, 0.001)):
            self.publish(trainer, weights, version, share)
            self.assertEqual(trainer.wait(version).committed, ("receiver-0",))
            grant = self.check(engine, version, live, weights)
            self.assert_token(grant, [trainer], [values(weights)])

    def test_one_engine_may_have_memory_of_every_kind(self) -> None:
        self.start()
        gpu, base = self.gpu, self.gpu.reserve(4 * GRANULARITY)
        for at in range(4):
            gpu.map(base + at * GRANULARITY, GRANULARITY)
        pooled = gpu.malloc_async(1 << 20, gpu.pool())
        live: dict[str, Any] = {
            "chunks": GpuTensor(gpu, base + 512, (1300, 1200), DType.BF16),  # spans two chunks
            "chunk": GpuTensor(gpu, base + 3 * GRANULARITY + 64, (100,), DType.F32),
            "pooled": GpuTensor(gpu, pooled + 256, (300, 7), DType.F32),
            "padded": GpuTensor(gpu, gpu.malloc(1 << 20) + 2, (200, 100), DType.BF16, (128, 1)),
            "bytes": GpuTensor(gpu, gpu.malloc(4099) + 3, (4001,), DType.U8),
            "empty": GpuTensor(gpu, 0, (0, 5), DType.BF16),
            "host": np.zeros((50, 60), np.float32),
        }
        weights: dict[str, Any] = {}
        for name, tensor in live.items():
            weights[name] = self.random.integers(0, 250, tensor.shape).astype(
                tensor.dtype if name == "host" else tensor.dtype.numpy
            )
        trainer = self.trainer()
        specs = [
            dws.TensorSpec(name, DType.of(tensor.dtype), tensor.shape)
            for name, tensor in live.items()
        ]
        source = trainer.register(specs)
        for name, array in weights.items():
            source[name][...] = array
        trainer.publish(1)
        engine = self.engine()
        live.update(engine.attach(live))
        self.check(engine, 1, live, source)
        between = gpu.read(live["padded"].address + 200, 56)
        for version in (2, 3):
            self.publish(trainer, source, version, 0.05)
            self.check(engine, version, live, source)
        self.assertEqual(gpu.read(live["padded"].address + 200, 56), between)

    def test_parts_of_a_fused_weight_are_written_in_place(self) -> None:
        self.start()
        shapes = {"q": (8, 16), "k": (4, 16), "v": (4, 16)}
        weights = self.live(shapes)
        trainer = self.trainer()
        trainer.register(weights)
        engine, live = self.engine(), self.live({"qkv": (16, 16)})
        engine.attach(live, mapping={"qkv": dws.Fused(["q", "k", "v"], sizes=[8, 4, 4])})
        for version in (1, 2, 3):
            self.publish(trainer, weights, version, 0.3)
            fused = np.concatenate([weights[name].get() for name in "qkv"])
            self.check(engine, version, live, {"qkv": fused})

    def test_host_and_device_weights_of_one_trainer_go_to_a_host_engine(self) -> None:
        self.start()
        weights: dict[str, Any] = {**self.live({"a": (300, 70)}), "h": np.ones((5, 5), np.float32)}
        trainer = self.trainer()
        weights.update(trainer.register(weights))
        engine = self.engine()
        live = engine.attach(
            {"a": torch.zeros(300, 70, dtype=torch.bfloat16), "h": np.zeros((5, 5), np.float32)}
        )
        for version in (1, 2, 3):
            self.publish(trainer, weights, version, 0.1)
            self.check(engine, version, live, weights)

    def test_an_engine_that_is_killed_leaves_room_for_the_next(self) -> None:
        trainer, weights = self.begin()
        receiver = self.cluster.receivers[0]
        for version in (2, 3):
            process = CudaEngineProcess(receiver.socket, SHAPES)
            self.addCleanup(process.kill)
            self.publish(trainer, weights, version)
            trainer.wait(version)
            seen, values_seen = -1, {}
            while seen != version:
                seen, values_seen = process.look()
            for name, tensor in weights.items():
                np.testing.assert_array_equal(values_seen[name], tensor.get())
            process.kill()
        engine, live = self.engine(), self.live()
        eventually(lambda: self._attached(engine, live), lambda: "the killed one's place is free")
        self.check(engine, 3, live, weights)

    def _attached(self, engine: dws.Engine, live: Any) -> bool:
        try:
            engine.attach(live)
        except dws.DwsError:
            return False
        return True

    def test_a_killed_receiver_gets_the_weights_again_after_its_restart(self) -> None:
        trainer, weights = self.begin()
        engine, live = self.engine(), self.live()
        engine.attach(live)
        self.check(engine, 1, live, weights)
        self.cluster.receivers[0].kill()
        eventually(lambda: not engine.stats().connected, lambda: "the engine sees it")
        self.publish(trainer, weights, 2)
        self.cluster.receivers[0].start()
        self.check(engine, 2, live, weights)
        self.assertEqual(engine.stats().reattachments, 1)

    def test_a_killed_sender_gets_the_weights_again_after_its_restart(self) -> None:
        trainer, weights = self.begin()
        engine, live = self.engine(), self.live()
        engine.attach(live)
        self.check(engine, 1, live, weights)
        self.cluster.senders[0].kill()
        self.cluster.senders[0].start()
        trainer.reconnect()
        version = trainer.last_version + 1
        self.publish(trainer, weights, version)
        self.check(engine, version, live, weights)

    def spoil(self, weights: Mapping[str, GpuTensor]) -> dict[str, Any]:
        """Returns the weights, and has the trainer overwrite them."""
        held = values(weights)
        self.step(weights, 0.7)
        return held

    def test_weights_may_change_as_soon_as_a_publish_returns(self) -> None:
        trainer, weights = self.begin()
        engine, live = self.engine(), self.live()
        engine.attach(live)
        for version in range(2, 8):
            changed = self.publish_counting(trainer, weights, version)
            published = self.spoil(weights)
            self.assertGreater(changed, 0)
            trainer.wait(version)
            self.check(engine, version, live, published)

    def publish_counting(
        self, trainer: dws.Trainer, weights: Mapping[str, GpuTensor], version: int
    ) -> int:
        """Publishes; the sender's count of changed elements is that of the bits."""
        before = self.published if version > 2 else values(weights)
        self.step(weights, 0.01 if version % 2 == 0 else 0.4)
        self.published = values(weights)
        stats = trainer.publish(version)
        differing = sum(
            int((self.published[name] != before[name]).sum()) for name in self.published
        )
        self.assertEqual(stats.changed_elements, differing)
        return differing

    def test_listed_changes_are_proved_by_one_read_and_nothing_is_compared(self) -> None:
        self.start()
        weights = self.live()
        self.step(weights, 1.0)
        trainer = self.trainer()
        trainer.register(weights, lists=True)
        trainer.publish(1)
        engine, live = self.engine(), self.live()
        engine.attach(live)
        sender = self.cluster.senders[0]
        for version in (2, 3, 4):
            before = values(weights)
            self.step(weights, 0.01)
            listed = {name: changes_of(before[name], array) for name, array in values(weights).items()}
            stats = trainer.publish(version, changes=listed)
            self.assertEqual(stats.changed_elements, sum(len(each.position) for each in listed.values()))
            published = self.spoil(weights)  # they may change from here on
            self.check(engine, version, live, published)
            for name, array in published.items():
                weights[name].put(array)
        blocks = sum(-(-int(np.prod(shape)) // 65536) for shape in SHAPES.values())
        self.assertEqual(sender.metric("dws_sender_listed_blocks_total"), 3 * blocks)
        self.assertEqual(sender.metric("dws_sender_gpu_blocks_total", 'how="compared"'), 0)
        self.publish(trainer, weights, 5)  # compared, with a copy that is made for it
        self.check(engine, 5, live, weights)
        before = values(weights)
        self.step(weights, 0.02)
        listed = {name: changes_of(before[name], array) for name, array in values(weights).items()}
        trainer.publish(6, changes={"a": listed["a"]})  # the others are compared
        self.check(engine, 6, live, weights)
        self.assertEqual(sender.logged("listed_changes_differ"), 0)

    def test_a_trainer_that_ends_right_after_a_publish_loses_nothing(self) -> None:
        trainer, weights = self.begin()
        engine, live = self.engine(), self.live()
        engine.attach(live)
        self.check(engine, 1, live, weights)
        self.publish(trainer, weights, 2)
        published = self.spoil(weights)
        trainer.close()
        self.check(engine, 2, live, published)

    def test_a_sender_killed_between_reading_and_encoding_loses_that_version_by_name(self) -> None:
        os.environ["DWS_FAILPOINT"] = "sender.gpu.after_read:kill"
        try:
            trainer, weights = self.begin()
        finally:
            del os.environ["DWS_FAILPOINT"]
        engine, live = self.engine(), self.live()
        engine.attach(live)
        self.check(engine, 1, live, weights)
        with contextlib.suppress(dws.DwsError):  # it is answered before the sender dies, if that is sent
            self.publish(trainer, weights, 2)
        self.spoil(weights)
        sender = self.cluster.senders[0]
        assert sender.process is not None
        sender.process.wait(20)
        sender.start()
        trainer.reconnect()
        with self.assertRaises(dws.VersionLostError):
            trainer.wait(2)
        version = trainer.last_version + 1
        self.publish(trainer, weights, version)
        self.check(engine, version, live, weights)

    def test_a_trainers_new_weights_may_have_the_address_of_freed_ones(self) -> None:
        trainer, weights = self.begin()
        engine, live = self.engine(), self.live()
        engine.attach(live)
        self.check(engine, 1, live, weights)
        for version in (2, 3):
            for tensor in weights.values():
                content = tensor.get()
                self.gpu.free(tensor.address - 1024)
                # Usually the same address, but the handle of another allocation.
                tensor.address = self.gpu.malloc(8 << 20) + 1024
                tensor.put(content)
            self.publish(trainer, weights, version)
            self.check(engine, version, live, weights)

    @unittest.skipUnless("fakes/cuda" in os.environ.get("LD_LIBRARY_PATH", ""), "breaks the GPU")
    def test_a_receiver_that_lost_its_gpu_ends_and_the_next_one_continues(self) -> None:
        trainer, weights = self.begin()
        receiver = self.cluster.receivers[0]
        receiver.stop()
        os.environ["DWS_FAKE_CUDA_FAIL"] = "cuLaunchKernel:1:719"
        try:
            receiver.start()
        finally:
            del os.environ["DWS_FAKE_CUDA_FAIL"]
        engine, live = self.engine(), self.live()
        engine.attach(live)
        assert receiver.process is not None
        self.assertEqual(receiver.process.wait(20), 1)
        self.assertIn("CUDA_ERROR_LAUNCH_FAILED", receiver.log_tail())
        self.assertIn("broken", receiver.log_tail())
        with self.assertRaises(dws.EnginePaused), engine.running(0):
            pass
        receiver.start()
        self.check(engine, 1, live, weights)

    def test_weights_that_moved_without_notice_are_detected_by_the_next_pause(self) -> None:
        trainer, weights = self.begin()
        engine, live = self.engine(), self.live()
        engine.attach(live)
        self.check(engine, 1, live, weights)
        with engine.running(20):
            held = live["a"].get()
            self.gpu.free(live["a"].address - 1024)
            live["a"].address = self.gpu.malloc(8 << 20) + 4096
            live["a"].put(held)
        self.publish(trainer, weights, 2)
        self.check(engine, 2, live, weights)
        self.assertGreaterEqual(engine.stats().reattachments, 1)
        # The trainer's weights move too.
        weights["b"].address += 64
        self.publish(trainer, weights, 3, 0.5)
        self.check(engine, 3, live, weights)

    def test_an_engine_that_wakes_with_empty_weights_gets_them_again(self) -> None:
        trainer, weights = self.begin()
        base = self.gpu.reserve(2 * GRANULARITY)
        self.gpu.map(base, 2 * GRANULARITY)
        live = self.live()
        live["a"].address = base + 128
        engine = self.engine()
        engine.attach(live)
        self.check(engine, 1, live, weights)
        for version in (2, 3):
            engine.suspend()
            self.gpu.unmap(base, 2 * GRANULARITY)
            self.publish(trainer, weights, version)
            self.gpu.map(base, 2 * GRANULARITY)
            engine.refresh()
            self.check(engine, version, live, weights)

    def test_a_receiver_without_a_driver_reports_it(self) -> None:
        hidden = os.environ.pop("LD_LIBRARY_PATH", None)
        try:
            self.start()
        finally:
            if hidden is not None:
                os.environ["LD_LIBRARY_PATH"] = hidden
        trainer = self.trainer()
        trainer.register([dws.TensorSpec(name, "BF16", shape) for name, shape in SHAPES.items()])
        with self.assertRaisesRegex(dws.DwsError, "libcuda"):
            self.engine().attach(self.live())


def values(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {n: t.get() if isinstance(t, GpuTensor) else t for n, t in tensors.items()}


if __name__ == "__main__":
    unittest.main()
