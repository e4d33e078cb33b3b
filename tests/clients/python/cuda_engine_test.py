"""Engines and trainers with weights on CUDA devices, with stand-ins for the driver and the daemons."""

import contextlib
import logging
import os
import tempfile
import time
import unittest
from typing import Any, Callable
from unittest import mock

import numpy as np
import torch

import dws
from dws._proto import engine_pb2
from dws.dtypes import DType
from dws.errors import CudaError
from tests.clients.python.fake_daemons import FakeReceiver, FakeSender, pause, resume
from tests.clients.python.stand_in_cuda import MIB, InterfaceTensor, StandInDriver, StandInTensor

A = 0x7F00_0000_0000


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.005)


class _WithDriver(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.driver = StandInDriver()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        stack.enter_context(self.driver.installed())

    def asked(self, what: str) -> int:
        return sum(ask[0] == what for ask in self.driver.asked)


class EngineTest(_WithDriver):
    def setUp(self) -> None:
        super().setUp()
        self.receiver = FakeReceiver(self.folder)
        self.addCleanup(self.receiver.stop)

    def attached(self, target: Any, **options: Any) -> tuple[dws.Engine, dict[str, Any]]:
        engine = dws.Engine(self.receiver.socket)
        self.addCleanup(engine.close)
        return engine, engine.attach(target, **options)

    def lease(self) -> tuple[Any, Any]:
        down, up = self.receiver.leases.get(timeout=20)
        self.assertEqual(up.get(timeout=20).open.generation, self.receiver.generation)
        return down, up

    def test_tensors_of_host_and_devices_are_attached_together(self) -> None:
        self.driver.allocate(A, 8 * MIB)
        self.driver.allocate(A + 8 * MIB, 2 * MIB, kind="virtual")
        self.driver.allocate(A + 10 * MIB, 2 * MIB, kind="virtual")
        target = {
            "host": np.arange(4, dtype=np.float32),
            "qkv": StandInTensor(A + 1024, (8, 6), strides=(8, 1)),
            "long": InterfaceTensor(A + 9 * MIB, (MIB,), "<f2"),
            "empty": StandInTensor(0, (0, 6)),
        }
        mapping = {"qkv": dws.Fused(["q", "k"], sizes=[6, 2])}
        _, views = self.attached(target, mapping=mapping)
        for name in ("qkv", "long", "empty"):
            self.assertIs(views[name], target[name])
        regions = self.receiver.attached.regions
        self.assertEqual([len(region.cuda.chunks) for region in regions], [0, 1, 2])
        by_tensor = {view.tensor: view for view in self.receiver.attached.views}
        k = by_tensor["k"]
        self.assertEqual((list(k.shape), list(k.strides)), ([2, 6], [8, 1]))
        self.assertEqual((k.region, k.offset_bytes), (1, 1024 + 6 * 8 * 2))
        long = by_tensor["long"]
        self.assertEqual((long.region, long.offset_bytes), (2, MIB))
        self.assertEqual(list(by_tensor["empty"].shape), [0, 6])
        first, *chunks = self.receiver.handles.received[0]
        self.assertEqual(
            np.fromfile(f"/proc/self/fd/{first}", np.float32, 4).tolist(), [0, 1, 2, 3]
        )
        seen = [os.pread(fd, 64, 0).rstrip(b"\0").decode() for fd in chunks]
        self.assertEqual(seen, [f"chunk {A + 8 * MIB}", f"chunk {A + 10 * MIB}"])

    def test_a_module_on_a_device_keeps_its_parameters(self) -> None:
        self.driver.allocate(A, MIB)
        module = torch.nn.Linear(4, 3)
        on_device = StandInTensor(A, (3, 4), DType.F32)
        module._parameters["weight"] = on_device  # type: ignore[assignment]
        with mock.patch.object(
            torch.nn.Module,
            "named_parameters",
            lambda self: [("weight", self._parameters["weight"]), ("bias", self.bias)],
        ):
            self.attached(module)
            self.assertIs(module._parameters["weight"], on_device)
            self.assertEqual(len(self.receiver.attached.regions), 2)
            down, up = self.lease()
            down.put(pause(1))
            self.assertTrue(up.get(timeout=20).paused.devices_drained)
            # Another object in its place is detected although its address is the same.
            module._parameters["weight"] = StandInTensor(A, (3, 4), DType.F32)
            down.put(pause(2))
            eventually(lambda: self.receiver.generation == 2, "attached again")

    def test_a_buffer_that_is_no_longer_tied_is_refused_by_name(self) -> None:
        self.driver.allocate(A, MIB)
        module = torch.nn.ModuleDict({"a": torch.nn.Module(), "b": torch.nn.Module()})
        first, second = (module[name]._buffers for name in "ab")
        first["t"] = second["t"] = StandInTensor(A, (4,))  # type: ignore[assignment]
        engine, _ = self.attached(module)
        self.assertEqual([view.tensor for view in self.receiver.attached.views], ["a.t"])
        down, _ = self.lease()
        down.put(resume(1))
        engine.wait_ready(20)
        engine.suspend()
        first["t"] = StandInTensor(A + 64, (4,))  # type: ignore[assignment]
        second["t"] = StandInTensor(A + 128, (4,))  # type: ignore[assignment]
        engine.refresh()
        eventually(lambda: "did not have" in engine.stats().last_error, "it says so")
        self.assertIn("['b.t']", engine.stats().last_error)
        second["t"] = first["t"]
        down, _ = self.lease()
        down.put(resume(2))
        self.assertEqual(engine.wait_ready(20).version, 2)

    def test_a_pause_is_answered_when_the_devices_are_idle(self) -> None:
        self.driver.allocate(A, MIB)
        self.driver.allocate(A + MIB, MIB, ordinal=1)
        target = {"a": StandInTensor(A, (4,)), "b": StandInTensor(A + MIB, (4,))}
        drain = lambda: self.driver.asked.append(("drain",))
        engine, _ = self.attached(target, drain=drain)
        down, up = self.lease()
        down.put(resume(1))
        engine.wait_ready(20)
        self.driver.asked.clear()
        down.put(pause(5))
        paused = up.get(timeout=20).paused
        self.assertEqual((paused.pause_id, paused.devices_drained), (5, True))
        self.assertEqual(self.driver.asked, [("drain",), ("synchronize", 0), ("synchronize", 1)])

    def test_a_hook_is_answered_after_the_devices_have_done_its_work(self) -> None:
        self.driver.allocate(A + MIB, MIB, ordinal=1)
        hook = lambda version: self.driver.asked.append(("hook", version))
        self.attached({"b": StandInTensor(A + MIB, (4,))}, post_commit=hook)
        down, up = self.lease()
        self.driver.asked.clear()
        done = engine_pb2.LeaseDown(post_commit=engine_pb2.PostCommit(pause_id=5, version=2))
        down.put(done)
        self.assertEqual(up.get(timeout=20).post_commit_done.error, "")
        self.assertEqual(self.driver.asked, [("hook", 2), ("synchronize", 1)])
        self.driver.lost.add(1)
        down.put(done)
        self.assertIn("ILLEGAL_ADDRESS", up.get(timeout=20).post_commit_done.error)

    def test_an_engine_without_devices_does_not_report_them_drained(self) -> None:
        self.attached({"a": np.zeros(4, np.float32)})
        down, up = self.lease()
        down.put(pause(1))
        self.assertFalse(up.get(timeout=20).paused.devices_drained)
        self.assertEqual(self.driver.asked, [])

    def test_a_lost_device_is_an_error_and_not_reported_drained(self) -> None:
        self.driver.allocate(A, MIB)
        engine, _ = self.attached({"a": StandInTensor(A, (4,))})
        down, up = self.lease()
        down.put(resume(1))
        engine.wait_ready(20)
        self.driver.lost.add(0)
        down.put(pause(5))
        eventually(lambda: "attaching again failed" in _reason(engine), "it says so")
        self.assertIn("CUDA_ERROR_ILLEGAL_ADDRESS (700)", engine.stats().last_error)
        self.assertTrue(up.empty())

    def test_a_pause_with_moved_weights_attaches_them_again(self) -> None:
        self.driver.allocate(A, MIB)
        tensor = StandInTensor(A + 64, (4,))
        engine, _ = self.attached({"a": tensor})
        for generation, move in enumerate((self._reallocate, self._move), start=2):
            down, up = self.lease()
            down.put(resume(generation))
            self.assertEqual(engine.wait_ready(20).version, generation)
            move(tensor)
            down.put(pause(generation))
            eventually(lambda: self.receiver.generation == generation, "a new generation")
            self.assertTrue(up.empty())
        view = self.receiver.attached.views[0]
        self.assertEqual((view.region, view.offset_bytes), (0, 4096))
        down, up = self.lease()
        down.put(resume(9))
        self.assertEqual(engine.wait_ready(20).version, 9)
        self.assertEqual(engine.stats().reattachments, 2)

    def _reallocate(self, tensor: StandInTensor) -> None:
        self.driver.free(A)
        self.driver.allocate(A, MIB)

    def _move(self, tensor: StandInTensor) -> None:
        self.driver.allocate(A + 8 * MIB, MIB)
        tensor.address = A + 8 * MIB + 4096

    def test_an_engine_sleeps_and_wakes(self) -> None:
        self.driver.allocate(A, MIB, kind="virtual")
        engine, _ = self.attached({"a": StandInTensor(A, (4,))})
        down, up = self.lease()
        down.put(resume(1))
        engine.wait_ready(20)
        with engine.running(20), self.assertRaisesRegex(dws.StateError, "outside"):
            engine.suspend()
        engine.suspend()
        with self.assertRaisesRegex(dws.EnginePaused, "suspended until refresh"):
            engine.wait_ready(0)
        self.assertEqual(self.receiver.handles.connections[0].recv(1), b"")  # hung up
        self.driver.free(A)
        eventually(lambda: not engine.stats().connected, "the lease has ended")
        self.driver.allocate(A, MIB, kind="virtual")
        self.assertEqual(self.receiver.generation, 1)
        engine.refresh()
        down, up = self.lease()
        down.put(resume(2))
        self.assertEqual(engine.wait_ready(20).version, 2)

    def test_sleeping_weights_are_waited_for(self) -> None:
        self.driver.allocate(A, MIB)
        engine, _ = self.attached({"a": StandInTensor(A, (4,))})
        down, _ = self.lease()
        down.put(resume(1))
        engine.wait_ready(20)
        self.driver.free(A)
        down.put(pause(1))
        eventually(lambda: "are the weights asleep" in _reason(engine), "it says why")
        self.driver.allocate(A, MIB)
        down, _ = self.lease()
        down.put(resume(2))
        self.assertEqual(engine.wait_ready(20).version, 2)

    def test_memory_that_cannot_be_shared_is_refused_by_name(self) -> None:
        self.driver.allocate(A, MIB, kind="unheard of")
        with self.assertRaisesRegex(dws.LayoutError, "'a'.*Remedy"):
            self.attached({"a": StandInTensor(A, (4,))})
        with self.assertRaisesRegex(dws.LayoutError, "'a'.*share memory"):
            self.attached({"a": StandInTensor(A, (2, 4), strides=(0, 1))})


def _reason(engine: dws.Engine) -> str:
    try:
        engine.wait_ready(0)
    except dws.EnginePaused as paused:
        return paused.reason
    return ""


class TrainerTest(_WithDriver):
    def setUp(self) -> None:
        super().setUp()
        self.sender = FakeSender(self.folder)
        self.addCleanup(self.sender.stop)

    def trainer(self, **options: Any) -> dws.Trainer:
        trainer = dws.Trainer(self.sender.socket, job_id="job", **options)
        self.addCleanup(trainer.close)
        return trainer

    def places(self) -> list[tuple[str, int, int]]:
        request = self.sender.register
        return [
            (shard.tensor.name, place.region, place.offset_bytes)
            for shard, place in zip(request.layout.shards, request.resident.shards)
        ]

    def test_live_tensors_and_copied_ones_are_one_registration(self) -> None:
        self.driver.allocate(A, MIB)
        live = StandInTensor(A + 256, (4, 4))
        trainer = self.trainer()
        views = trainer.register(
            {"b": live, "a": np.ones(3, np.uint8), "e": StandInTensor(0, (0,))}
        )
        self.assertIs(views["b"], live)
        self.assertEqual(self.places(), [("a", 0, 0), ("b", 1, 256), ("e", 0, 64)])
        self.assertEqual(self.sender.region()[:3], b"\1\1\1")
        self.assertEqual(len(self.sender.register.resident.regions), 2)

    def test_only_live_tensors_need_no_shared_memory(self) -> None:
        self.driver.allocate(A, MIB)
        self.trainer().register({"b": StandInTensor(A, (4, 4))})
        self.assertEqual(self.places(), [("b", 0, 0)])
        self.assertEqual(self.sender.handles.received, [[]])

    def test_a_part_of_a_tensor_is_read_where_its_mapping_has_it(self) -> None:
        self.driver.allocate(A, MIB)
        parts = {"b": StandInTensor(A + 256, (2, 4)), "e": StandInTensor(0, (0,))}
        trainer = self.trainer()
        specs = [
            dws.TensorSpec("a", "U8", (3,)),
            dws.TensorSpec("b", "BF16", (6, 4), [1, 3]),
            dws.TensorSpec("e", "BF16", (0,)),
        ]
        views = trainer.register(specs, shards={"b": (1, 1)}, parts=parts)
        self.assertIs(views["b"], parts["b"])
        self.assertEqual(self.places(), [("a", 0, 0), ("b", 1, 256), ("e", 0, 64)])
        trainer.publish(1)
        self.assertEqual(len(self.sender.handles.received), 1)
        parts["b"] = StandInTensor(A + 512, (2, 4))
        trainer.publish(2)
        self.assertEqual(self.places(), [("a", 0, 0), ("b", 1, 512), ("e", 0, 64)])
        for other, why in (
            (StandInTensor(A, (4, 2)), r"registered as \[2, 4\].*is now BF16 \[4, 2\]"),
            (StandInTensor(A, (2, 4), DType.F32), r"is now F32 \[2, 4\]"),
            (StandInTensor(A, (2, 4), strides=(5, 1)), "is not contiguous"),
            (np.zeros((2, 4), np.uint16), "is now not on a device"),
        ):
            parts["b"] = other
            with self.assertRaisesRegex(dws.LayoutError, f"'b'.*{why}"):
                trainer.publish(3)
        self.assertEqual(self.sender.published, [1, 2])

    def test_parts_that_are_not_on_a_device_or_unknown_are_refused(self) -> None:
        specs = [dws.TensorSpec("b", "BF16", (2, 4))]
        for parts, why in (
            ({"b": np.zeros((2, 4), np.uint16)}, "parts= has 'b', which is not on a CUDA device"),
            ({"c": StandInTensor(A, (2, 4))}, "'c' is not part of this registration"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, why):
                self.trainer().register(specs, parts=parts)

    def test_publish_waits_for_the_devices_work(self) -> None:
        self.driver.allocate(A, MIB, ordinal=3)
        trainer = self.trainer()
        trainer.register({"b": StandInTensor(A, (4, 4))})
        self.driver.asked.clear()
        trainer.publish(1)
        self.assertEqual(self.driver.asked, [("synchronize", 3)])
        self.driver.lost.add(3)
        with self.assertRaisesRegex(CudaError, "ILLEGAL_ADDRESS"):
            trainer.publish(2)
        self.assertEqual(self.sender.published, [1])

    def test_moved_tensors_are_registered_again_before_they_are_read(self) -> None:
        self.driver.allocate(A, MIB)
        tensor = StandInTensor(A, (4, 4))
        trainer = self.trainer()
        trainer.register({"b": tensor})
        trainer.publish(1)
        self.assertEqual(len(self.sender.handles.received), 1)
        tensor.address = A + 512
        trainer.publish(2)
        self.assertEqual(self.places(), [("b", 0, 512)])
        self.assertEqual(len(self.sender.handles.received), 2)

    def test_moved_tensors_are_published_only_after_they_are_registered_again(self) -> None:
        self.driver.allocate(A, MIB)
        tensor = StandInTensor(A, (4, 4))
        trainer = self.trainer()
        trainer.register({"b": tensor})
        failures: Any = (
            mock.patch.object(self.driver, "ipc_handle", side_effect=CudaError("no handle")),
            mock.patch.object(self.driver, "device_uuid", side_effect=CudaError("no device")),
            mock.patch.object(self.sender, "refuse", "no room"),
            mock.patch("dws.sender_link.HandleConnection", side_effect=dws.DwsError("no memory")),
        )
        for version, failure in enumerate(failures, start=1):
            tensor.address = A + 512 * version
            with failure, self.assertRaises(dws.DwsError):
                trainer.publish(version)
            self.assertEqual(self.sender.published, list(range(1, version)))
            trainer.publish(version)
            self.assertEqual(self.places(), [("b", 0, 512 * version)])
            self.assertEqual(len(self.sender.handles.received), 1 + version)

    def test_memory_is_registered_again_only_after_the_sender_released_the_old(self) -> None:
        self.driver.allocate(A, MIB)
        trainer = self.trainer()
        handles = self.sender.handles
        handles.lets_go = False
        trainer.register({"b": StandInTensor(A, (4, 4))})
        self.driver.free(A)
        self.driver.allocate(A, MIB)
        registered = self.sender.register
        for _ in range(2):
            with self.assertRaisesRegex(dws.DeadlineError, "has not released"):
                trainer.publish(1, timeout=0.1)
        self.assertIs(self.sender.register, registered)  # it got no other registration
        self.assertEqual(self.sender.published, [])
        handles.connections[0].close()
        handles.answers.clear()
        with self.assertRaisesRegex(dws.DeadlineError, "did not answer"):
            trainer.publish(1, timeout=0.1)
        with self.assertRaisesRegex(dws.DeadlineError, "has not released"):
            trainer.publish(1, timeout=0.1)
        handles.answers.set()
        handles.connections[1].close()
        trainer.publish(1)
        self.assertEqual(len(handles.received), 3)

    def test_a_rank_hands_over_its_rows_and_a_scattered_part_is_refused(self) -> None:
        self.driver.allocate(A, MIB)

        class Rows(StandInTensor):
            def __getitem__(self, key: Any) -> Any:
                return key

        options: Any = {"rank": 1, "world_size": 2, "stream": dws.Stream.new(5)}
        cuts = {"b": dws.Cut.even(8, 2)}
        views = self.trainer(**options).register({"b": Rows(A, (8, 3))}, {"b": (1, 1)}, cuts)
        self.assertEqual(views["b"], (slice(4, 8), slice(0, 3)))
        self.assertEqual(self.places(), [("b", 0, 4 * 3 * 2)])
        with self.assertRaisesRegex(dws.LayoutError, "'b'.*not contiguous on the device"):
            self.trainer(**options).register(
                {"b": Rows(A, (3, 8))}, {"b": (1, 1)}, {"b": dws.Cut.even(8, 2, dim=1)}
            )
        with self.assertRaisesRegex(dws.LayoutError, "'b'.*is not contiguous .strides"):
            self.trainer().register({"b": StandInTensor(A, (3, 8), strides=(1, 3))})

    def test_shared_memory_is_page_locked_until_close(self) -> None:
        for register in (
            lambda t: t.register({"a": np.zeros(5000, np.float32)}),
            lambda t: t.register_ring({"a": np.zeros(4, np.float32)}, 1 << 19, 2),
        ):
            self.driver.asked.clear()
            trainer = self.trainer()
            register(trainer)
            size = self.driver.asked[0][1]
            self.assertEqual(self.driver.asked, [("register", size)])
            self.assertGreaterEqual(size, 20_000)
            trainer.close()
            trainer.close()
            self.assertEqual(self.driver.asked[1:], [("unregister",)])

    def test_a_failure_to_page_lock_is_logged_once(self) -> None:
        trainer = self.trainer()
        with mock.patch.object(
            self.driver, "register_host", side_effect=CudaError("cuMemHostRegister_v2: no")
        ), self.assertLogs("dws", logging.WARNING) as logs:
            trainer.register({"a": np.zeros(4, np.float32)})
            trainer.publish(1)
            trainer.publish(2)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("not page-locked", logs.output[0])


if __name__ == "__main__":
    unittest.main()
