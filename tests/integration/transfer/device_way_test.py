"""Full tensors from GPU to GPU of one host, over the fake CUDA driver: from the sender's copy of its snapshot to the
engine's weights, in both orders of start, and whatever moves, is damaged or dies meanwhile."""

from __future__ import annotations

import contextlib
import glob
import os
import threading
import unittest
from typing import Any, Mapping
from unittest import mock

import numpy as np
import torch

import dws
from dws.dtypes import DType
from tests.clients.python.gpu import GRANULARITY, Gpu, GpuTensor
from tests.integration.cluster import Daemon
from tests.integration.cuda_engine_process import CudaEngineProcess
from tests.integration.integration_case import IntegrationCase, change, eventually

# Several blocks; one block; less than a word.
SHAPES = {"a": (900, 700), "b": (33,), "c": (7, 5, 3)}
MODEL_BYTES = 2 * sum(int(np.prod(shape)) for shape in SHAPES.values())
WAYS = ("device", "same-host", "grpc")
ONLY = "--full-way=device"


class DeviceWayTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.use_failpoints("SENDER", "RECEIVER")
        # The sender keeps a copy on the GPU if 8 GiB stay free.
        self.enterContext(mock.patch.dict(os.environ, DWS_FAKE_CUDA_MEMORY=str(32 << 30)))
        self.gpus = [Gpu(0), Gpu(1)]
        self.random = np.random.default_rng(19)
        self.version = 0

    def tensors(self, gpu: int = 0) -> dict[str, GpuTensor]:
        self.gpus[gpu].enter()
        made = {}
        for name, shape in SHAPES.items():
            address = self.gpus[gpu].malloc(2 << 20) + 1024
            made[name] = GpuTensor(self.gpus[gpu], address, shape, DType.BF16)
            made[name].put(np.zeros(shape, np.uint16))
        return made

    def chunks(self) -> dict[str, GpuTensor]:
        """Tensors in VMM memory, which is passed by descriptors."""
        gpu = self.gpus[0]
        gpu.enter()
        base = gpu.reserve(4 * GRANULARITY)
        gpu.map(base, 4 * GRANULARITY)
        made = {}
        for i, (name, shape) in enumerate(SHAPES.items()):
            made[name] = GpuTensor(gpu, base + i * GRANULARITY + 512, shape, DType.BF16)
            made[name].put(np.zeros(shape, np.uint16))
        return made

    def begin(self, **sender_environment: str) -> None:
        """A sender, and a trainer whose first version is published."""
        self.start_sender(**sender_environment)
        self.register()
        self.publish(1.0)

    def start_sender(self, **environment: str) -> None:
        with mock.patch.dict(os.environ, environment):
            self.sender = self.cluster.start_sender(0)

    def register(self) -> None:
        self.weights = self.tensors()
        self.dws_trainer = self.trainer()
        self.dws_trainer.register(self.weights)

    def publish(self, share: float = 0.3, full: bool = False) -> None:
        self.version += 1
        for tensor in self.weights.values():
            content = tensor.get()
            if share == 1.0:
                content = self.random.integers(0, 1 << 16, content.shape, np.uint16)
            change(content, self.random, share)
            tensor.put(content)
        self.dws_trainer.publish(self.version, full=full)

    def receiver(self, name: str, *flags: str, **environment: str) -> Daemon:
        with mock.patch.dict(os.environ, environment):
            return self.cluster.start_receiver(name, *flags)

    def join(
        self, name: str, *flags: str, live: Mapping[str, Any] | None = None, **environment: str
    ) -> tuple[Daemon, dws.Engine, Mapping[str, Any]]:
        receiver = self.receiver(name, *flags, **environment)
        engine = self.engine(receiver)
        live = self.tensors() if live is None else live
        engine.attach(live)
        return receiver, engine, live

    def reach(self, engine: dws.Engine, live: Mapping[str, Any]) -> None:
        self.await_version(engine, self.version)
        self.assert_same_weights(engine, values(live), values(self.weights))

    def came_by(self, receiver: Daemon, way: str) -> float:
        return receiver.metric("dws_receiver_source_bytes_total", f'content="full",source="{way}"')

    def assert_came(self, receiver: Daemon, times: int = 1, way: str = "device") -> None:
        """All full tensors, so many models of them, came by this way."""
        for each in WAYS:
            wanted = times * MODEL_BYTES if each == way else 0
            self.assertEqual(self.came_by(receiver, each), wanted, f"{each}\n{receiver.log_tail()}")

    def status(self, receiver: Daemon) -> str:
        return receiver.page("/status")

    def test_the_first_version_comes_from_gpu_to_gpu_whoever_starts_first(self) -> None:
        self.start_sender()
        waiting = self.receiver("engine-first")
        self.register()
        engine, live = self.engine(waiting), self.tensors()
        engine.attach(live)  # there is no version yet
        self.publish(1.0)
        first = (waiting, engine, live)
        later = self.join("trainer-first", ONLY)
        other = self.join("other-gpu", ONLY, live=self.tensors(1))
        for receiver, engine, live in (first, later, other):
            self.reach(engine, live)
        for receiver, _, _ in (later, other):
            self.assert_came(receiver)
            self.assertIn('"full_way":"deviceGPU-', self.status(receiver).replace(" ", ""))
            self.assertIn('"full_way_reason":""', self.status(receiver).replace(" ", ""))
        for _ in range(3):
            self.publish(0.01)
            for _, engine, live in (first, later, other):
                self.reach(engine, live)
        self.assert_came(later[0])
        # Told once, and only where the trainer's GPU is the engine's.
        self.assertEqual([each[0].logged("colocated") for each in (later, other)], [1, 0])

    def test_a_running_engine_gets_a_full_version_from_gpu_to_gpu(self) -> None:
        self.begin()
        receiver, engine, live = self.join("receiver", ONLY)
        second = self.join("another", ONLY, live=self.tensors(1))
        self.reach(engine, live)
        self.reach(*second[1:])
        for times in (2, 3):
            self.publish(1.0, full=True)
            for at, running, weights in ((receiver, engine, live), second):
                self.reach(running, weights)
                self.assert_came(at, times)
            self.publish(0.02)
            self.reach(engine, live)
        self.assert_came(receiver, 3)

    def test_an_engine_that_drifted_is_repaired_from_gpu_to_gpu(self) -> None:
        self.begin()
        receiver, engine, live = self.join("receiver", ONLY, "--scrub-rate=64MiB", "--scrub-pass=1")
        self.reach(engine, live)
        with engine.running(60):
            content = live["a"].get()
            content[3, 3] ^= 1
            live["a"].put(content)
        eventually(lambda: self.came_by(receiver, "device") > MODEL_BYTES, receiver.log_tail)
        self.publish()
        self.reach(engine, live)
        self.assertEqual(self.came_by(receiver, "same-host"), 0)

    def test_legacy_memory_of_the_sender_is_read_where_namespaces_are_shared(self) -> None:
        self.begin(DWS_FAKE_CUDA_DESCRIPTORS="0")
        receiver, engine, live = self.join("receiver", ONLY)
        self.reach(engine, live)
        self.assert_came(receiver)

    def test_in_another_container_descriptors_work_and_legacy_handles_say_why_not(self) -> None:
        # No other process's legacy handle can be opened there.
        apart = {"DWS_FAKE_CUDA_FAIL": ",".join(f"cuIpcOpenMemHandle_v2:{n}:201" for n in range(1, 9))}
        self.begin()
        receiver, engine, live = self.join("apart", ONLY, live=self.chunks(), **apart)
        self.reach(engine, live)
        self.assert_came(receiver)
        self.dws_trainer.close()
        self.sender.stop()
        self.cluster.senders.clear()
        self.version = 0
        with mock.patch.dict(os.environ, DWS_FAKE_CUDA_DESCRIPTORS="0"):
            self.sender = self.cluster.start_sender(0, name="sender-legacy")
        self.register()
        self.publish(1.0)
        receiver, engine, live = self.join("refused", live=self.chunks(), **apart)
        self.reach(engine, live)
        self.assert_came(receiver, way="same-host")
        self.assertIn("device: ", self.status(receiver))
        self.assertIn("PID namespace", self.status(receiver))

    def test_an_engine_in_host_memory_hears_nothing_of_it(self) -> None:
        self.begin()
        receiver = self.receiver("receiver")
        engine = self.engine(receiver)
        live = engine.attach({n: torch.zeros(s, dtype=torch.bfloat16) for n, s in SHAPES.items()})
        self.await_version(engine, self.version)
        self.assert_same_weights(engine, live, values(self.weights))
        self.assert_came(receiver, way="same-host")
        self.assertNotIn("device: ", self.status(receiver))

    def test_a_sender_whose_gpu_is_short_says_that_it_has_no_copy(self) -> None:
        self.begin(DWS_FAKE_CUDA_MEMORY=str(8 << 30))
        receiver, engine, live = self.join("receiver")
        self.reach(engine, live)
        self.assert_came(receiver, way="same-host")
        self.assertIn("has no copy of its snapshot in GPU memory", self.status(receiver))
        strict = self.receiver("strict", ONLY)
        refused = self.engine(strict)
        refused.attach(self.tensors())
        said = "may come by device only, which brought 0 of"
        eventually(lambda: said in strict.log_tail(), strict.log_tail)
        self.assertIsNone(refused.grant)
        self.assertEqual(self.came_by(strict, "same-host"), 0)

    def test_versions_that_are_published_while_they_are_read_are_never_torn(self) -> None:
        self.begin()
        done = threading.Event()
        published = {self.version: values(self.weights)}

        def train() -> None:
            self.gpus[0].enter()
            while not done.is_set():
                self.publish(0.2)
                published[self.version] = values(self.weights)

        def check(engine: dws.Engine, live: Mapping[str, Any]) -> None:
            """On the device is exactly one published version."""
            with engine.running(60) as grant:
                there = values(live)
            eventually(lambda: grant.version in published, lambda: str(grant))
            for name, content in published[grant.version].items():
                np.testing.assert_array_equal(there[name], content, f"{name} at {grant}")

        trainer = threading.Thread(target=train)
        trainer.start()
        joined = []
        try:
            for turn in range(4):
                joined.append(self.join(f"auto-{turn}", live=self.tensors(turn % 2)))
                for _ in range(3):
                    check(*joined[-1][1:])
        finally:
            done.set()
            trainer.join()
        self.gpus[0].enter()
        self.publish()
        for _, engine, live in joined:
            self.reach(engine, live)

    def test_a_trainer_on_two_gpus_lends_both_copies(self) -> None:
        self.start_sender()
        first, second = self.tensors(0), self.tensors(1)
        self.weights = {"a": first["a"], "b": second["b"], "c": second["c"]}
        self.dws_trainer = self.trainer()
        self.dws_trainer.register(self.weights)
        self.publish(1.0)
        staging = "--staging-bytes=16MiB"
        receiver, engine, live = self.join("receiver", ONLY, staging)
        # An engine on both, otherwise split.
        there = [self.tensors(0), self.tensors(1)]
        apart = {"a": there[1]["a"], "b": there[0]["b"], "c": there[1]["c"]}
        split = self.join("split", ONLY, staging, live=apart)
        self.reach(engine, live)
        self.reach(*split[1:])
        both = r'"full_way":"deviceGPU-[^",]+,GPU-[^",]+"'
        self.assertRegex(self.status(receiver).replace(" ", ""), both)
        for times in (2, 3):
            self.publish(1.0, full=True)
            for at, running, weights in ((receiver, engine, live), split):
                self.reach(running, weights)
                self.assert_came(at, times)
            self.publish(0.02)
            self.reach(engine, live)
            self.reach(*split[1:])

    def damage(self) -> int:
        """Flips a byte of each copy in the sender's GPU memory; returns how many there are."""
        assert self.sender.process is not None
        found = 0
        for path in glob.glob(f"/proc/{self.sender.process.pid}/fd/*"):
            with contextlib.suppress(OSError):
                owner = f"{self.sender.process.pid}:"
                link = os.readlink(path)
                if "dws-fake-cuda:chunk:" in link and owner in link:
                    with open(path, "r+b") as memory:
                        memory.seek(70_001)
                        byte = memory.read(1)
                        memory.seek(70_001)
                        memory.write(bytes([byte[0] ^ 4]))
                    found += 1
        return found

    def test_a_flipped_byte_of_the_copy_is_found_and_healed_by_the_next_version(self) -> None:
        self.begin()
        self.assertEqual(self.damage(), 1)
        receiver, engine, live = self.join("receiver")
        self.reach(engine, live)
        self.assertGreater(self.came_by(receiver, "same-host"), 0)
        self.assertIn("GPU memory is damaged there", self.status(receiver))
        # Required, the version fails by name; the next one is right on the GPU too.
        strict, refused, weights = self.join("strict", ONLY)
        eventually(lambda: "may come by device only" in strict.log_tail(), strict.log_tail)
        self.assertIsNone(refused.grant)
        self.publish(0.01)
        self.reach(engine, live)
        self.reach(refused, weights)
        self.assertEqual(self.came_by(strict, "same-host"), 0)

    def test_a_trainer_that_moves_or_comes_back_lends_its_new_copy(self) -> None:
        self.begin()
        for turn in range(2):
            receiver, engine, live = self.join(f"before-{turn}", ONLY)
            self.reach(engine, live)
            self.assert_came(receiver)
            if turn == 0:  # its weights move
                for tensor in self.weights.values():
                    content = tensor.get()
                    tensor.address = self.gpus[0].malloc(2 << 20) + 2048
                    tensor.put(content)
            else:
                self.dws_trainer.close()
                self.dws_trainer = self.trainer()
                self.dws_trainer.register(self.weights)
            self.version = max(self.version, self.dws_trainer.last_version or 0)
            self.publish(0.1)
            after, again, fresh = self.join(f"after-{turn}", ONLY)
            self.reach(again, fresh)
            self.assert_came(after)
            self.reach(engine, live)

    def test_a_receiver_killed_while_it_copies_starts_over(self) -> None:
        self.begin()
        receiver, engine, live = self.join(
            "receiver", ONLY, DWS_FAILPOINT="receiver.full.inside_snapshot:kill"
        )
        self.await_death(receiver)
        self.assertIsNone(engine.grant)
        receiver.start()
        self.reach(engine, live)
        self.assert_came(receiver)

    def test_a_receiver_killed_while_a_full_version_is_staged_or_committed_tears_nothing(self) -> None:
        self.begin()
        for number, point in enumerate(
            ("receiver.full.inside_snapshot@2", "receiver.prepare.after_fetch_full@2", "receiver.commit.inside_scatter@1")
        ):
            name, _, at = point.partition("@")
            receiver, engine, live = self.join(
                f"receiver-{number}", ONLY, DWS_FAILPOINT=f"{name}:kill@{at}"
            )
            self.reach(engine, live)
            self.publish(1.0, full=True)
            self.await_death(receiver)
            receiver.start()
            self.reach(engine, live)
            self.assertEqual(self.came_by(receiver, "same-host"), 0)

    def await_death(self, daemon: Daemon) -> None:
        process = daemon.process
        assert process is not None
        eventually(lambda: process.poll() is not None, daemon.log_tail)
        self.assertEqual(process.wait(), -9)

    def test_a_sender_or_trainer_that_ends_while_it_is_read_leaves_the_engine_whole(self) -> None:
        self.begin()
        held = os.path.join(self.cluster.folder, "held")
        hold = {"DWS_FAILPOINT": "receiver.full.inside_snapshot:hold", "DWS_FAILPOINT_HOLD": held}
        receiver, engine, live = self.join("receiver", **hold)
        eventually(lambda: os.path.exists(held), receiver.log_tail)
        self.dws_trainer.close()
        self.sender.kill()
        os.remove(held)
        self.sender.start()
        self.register_again()
        self.publish(0.5)
        self.reach(engine, live)

    def test_a_receiver_that_hangs_with_a_loan_holds_up_no_trainer(self) -> None:
        self.begin()
        held = os.path.join(self.cluster.folder, "held")
        hold = {"DWS_FAILPOINT": "receiver.full.inside_snapshot:hold", "DWS_FAILPOINT_HOLD": held}
        receiver, engine, live = self.join("receiver", **hold)
        eventually(lambda: os.path.exists(held), receiver.log_tail)
        for _ in range(2):
            self.publish(0.3)
            self.dws_trainer.close()
            self.register_again()
            self.publish(0.3)
            self.assertIn("memory='gpu'", self.last_copy())
            self.assertIn("taken_over=true", self.last_copy())
            other, another, weights = self.join(f"other-{self.version}", ONLY)
            self.reach(another, weights)
            self.assert_came(other)
        self.assertIsNone(engine.grant)
        os.remove(held)
        self.reach(engine, live)

    def last_copy(self) -> str:
        """What the sender said of its copy on the GPU last."""
        with open(self.sender.log_path, encoding="utf-8") as log:
            return [line for line in log if " gpu_snapshot " in line][-1]

    def register_again(self) -> None:
        self.dws_trainer = self.trainer()
        self.dws_trainer.register(self.weights)
        self.version = max(self.version, self.dws_trainer.last_version or 0)

    def test_an_engine_killed_while_it_is_written_leaves_room_for_the_next(self) -> None:
        self.begin()
        held = os.path.join(self.cluster.folder, "held")
        hold = {"DWS_FAILPOINT": "receiver.full.inside_snapshot:hold", "DWS_FAILPOINT_HOLD": held}
        receiver = self.receiver("receiver", ONLY, **hold)
        process = CudaEngineProcess(receiver.socket, SHAPES)
        self.addCleanup(process.kill)
        eventually(lambda: os.path.exists(held), receiver.log_tail)
        process.kill()
        os.remove(held)
        engine, live = self.engine(receiver), self.tensors()
        eventually(lambda: attached(engine, live), lambda: "the killed one's place is free")
        self.reach(engine, live)
        self.assertEqual(self.came_by(receiver, "same-host"), 0)


def attached(engine: dws.Engine, live: Mapping[str, Any]) -> bool:
    try:
        engine.attach(live)
    except dws.DwsError:
        return False
    return True


def values(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor.get() for name, tensor in tensors.items()}


if __name__ == "__main__":
    unittest.main()
