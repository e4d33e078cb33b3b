"""Engines that hold quantised weights follow a trainer whose weights are on a GPU, over the fake CUDA driver: the
sender quantises there, and every byte is compared with numpy."""

from __future__ import annotations

import os
import unittest
from typing import Any
from unittest import mock

import numpy as np

import dws
from dws.dtypes import DType
from tests.clients.python.gpu import Gpu, GpuTensor
from tests.integration.integration_case import IntegrationCase, change
from tests.integration.transfer.view_test import outputs

# The first one has enough elements for the GPU.
SHAPES = {"big.weight": (1100, 1024), "norm.weight": (640,), "small.weight": (130, 256)}
VIEWS = ("fp8-block128/deepseek", "int4-g32/amax7")


class ViewGpuTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.use_failpoints("SENDER", "RECEIVER")
        # The sender keeps a copy on the GPU if 8 GiB stay free.
        self.enterContext(mock.patch.dict(os.environ, DWS_FAKE_CUDA_MEMORY=str(32 << 30)))
        self.random = np.random.default_rng(53)
        self.sender = self.cluster.start_sender(0)
        gpu = Gpu(0)
        gpu.enter()
        self.weights: dict[str, GpuTensor] = {}
        for name, shape in SHAPES.items():
            self.weights[name] = GpuTensor(gpu, gpu.malloc(4 << 20) + 1024, shape, DType.BF16)
            values = self.random.standard_normal(shape, np.float32) * 0.02
            self.weights[name].put((values.view(np.uint32) >> 16).astype(np.uint16))
        self.dws_trainer = self.trainer()
        self.dws_trainer.register(self.weights)
        self.version = 0

    def publish(self, share: float) -> None:
        self.version += 1
        for tensor in self.weights.values():
            content = tensor.get()
            change(content, self.random, share)
            tensor.put(content)
        self.dws_trainer.publish(self.version)

    def expected(self, view: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, tensor in self.weights.items():
            found.update(outputs(view, name, tensor.get()))
        return found

    def follow(self, view: str) -> tuple[dws.Engine, Any]:
        receiver = self.cluster.start_receiver(f"r{len(self.cluster.receivers)}", f"--view={view}")
        engine = self.engine(receiver)
        return engine, engine.attach({n: np.zeros_like(a) for n, a in self.expected(view).items()})

    def check(self, engine: dws.Engine, live: Any, view: str) -> None:
        self.await_version(engine, self.version)
        with engine.running(60):
            for name, wanted in self.expected(view).items():
                if live[name].tobytes() != np.ascontiguousarray(wanted).tobytes():
                    self.fail(f"'{name}' of view '{view}' differs at version {self.version}")

    def test_the_gpu_of_the_trainer_quantises_for_all_views(self) -> None:
        self.publish(0.0)
        followed = [(*self.follow(view), view) for view in VIEWS]
        for share in (0.3, 0.001, 0.5):
            for engine, live, view in followed:
                self.check(engine, live, view)
            self.publish(share)
        for engine, live, view in followed:
            self.check(engine, live, view)
        self.assertEqual(self.sender.logged("views_on_gpu"), 1)  # its memory is for both
        self.assertEqual(self.sender.logged("view_not_on_gpu"), 0)
        self.assertEqual(self.sender.logged("view_gpu_copy_differs"), 0)


if __name__ == "__main__":
    unittest.main()
