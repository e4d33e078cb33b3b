"""dws.Engine and weights of the host that a module replaces or moves after the attach: the engine stops by name."""

from __future__ import annotations

import tempfile
import threading
import unittest
from typing import Any, Callable

import torch

import dws
from tests.clients.python.fake_daemons import FakeReceiver, pause, resume


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 8)
        self.layer = torch.nn.Sequential(torch.nn.Linear(8, 6))
        self.head = torch.nn.Linear(8, 4, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(8))
        self.layer[0].register_parameter("none", None)


def replace(module: Any, name: str) -> None:
    setattr(module, name, torch.nn.Parameter(getattr(module, name).detach().t().contiguous()))


def move(module: Any, name: str) -> None:
    tensor = getattr(module, name)
    tensor.data = tensor.data.clone()


# The actions of a model, and the reports of the engine.
LEAVES: dict[str, tuple[Callable[[Any], None], str]] = {
    "replaced parameter": (lambda model: replace(model.layer[0], "weight"), "'layer.0.weight' .torch.float32 .8, 6. on cpu"),
    "moved parameter": (lambda model: move(model.layer[0], "bias"), "'layer.0.bias' .torch.float32 .6. on cpu"),
    "moved buffer": (lambda model: move(model, "scale"), "'scale' .torch.float32 .8."),
    "tied parameter that is separated": (lambda model: replace(model.head, "weight"), "'head.weight'"),
    "another type": (lambda model: model.half(), "'embed.weight' .torch.float16 .4, 8..*5 in all"),
    "parameter that is gone": (lambda model: delattr(model.layer[0], "bias"), "'layer.0.bias' .gone"),
    "module that is replaced": (lambda model: setattr(model, "layer", torch.nn.Linear(8, 6)), "'layer.0.bias' .gone"),
    "module with a tied weight that is replaced": (lambda model: setattr(model, "head", torch.nn.Linear(8, 4)), "'head.weight'"),
}

# What leaves weights in the memory that commits write.
STAYS: dict[str, Callable[[Any], None]] = {
    "written in place": lambda model: model.scale.fill_(3),
    "same memory, other object": lambda model: setattr(model.head, "weight", torch.nn.Parameter(model.head.weight.detach())),
    "same memory, transposed": lambda model: setattr(model.layer[0].weight, "data", model.layer[0].weight.data.t()),
    "a module around the one that has them": lambda model: setattr(model, "layer", torch.nn.ModuleDict({"base": model.layer})),
    "moved to where it is": lambda model: model.cpu().float(),
}


class PlacesTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(lambda: self.receiver.stop())

    def attach(self) -> tuple[Any, Any]:
        model = Model()
        engine = dws.Engine(self.receiver.socket)
        self.addCleanup(engine.close)
        engine.attach(model)
        self.down, self.up = self.receiver.leases.get(timeout=20)
        self.up.get(timeout=20)
        self.down.put(resume(1))
        engine.wait_ready(20)
        return engine, model

    def test_a_weight_that_a_pass_replaces_or_moves_stops_the_engine_after_it(self) -> None:
        for name, (leave, message) in LEAVES.items():
            with self.subTest(name):
                engine, model = self.attach()
                with engine.running(20):
                    leave(model)
                self.assertRegex(engine.stopped, message)
                self.assertEqual(self.up.get(timeout=20).stopped.reason, engine.stopped)
                with self.assertRaisesRegex(dws.EnginePaused, message):
                    engine.wait_ready(20)
                engine.close()

    def test_what_leaves_its_memory_between_passes_is_found_before_the_next_commit(self) -> None:
        for name, (leave, message) in LEAVES.items():
            with self.subTest(name):
                engine, model = self.attach()
                leave(model)
                self.down.put(pause(2))
                self.assertRegex(self.up.get(timeout=20).stopped.reason, message)
                with self.assertRaisesRegex(dws.EnginePaused, message):
                    engine.wait_ready(20)
                self.down.put(None)
                engine.close()

    def test_weights_in_the_same_memory_are_no_reason_to_stop(self) -> None:
        for name, change in STAYS.items():
            with self.subTest(name):
                engine, model = self.attach()
                with engine.running(20):
                    change(model)
                self.down.put(pause(2))
                self.assertEqual(self.up.get(timeout=20).WhichOneof("message"), "paused")
                self.assertIsNone(engine.stopped)
                engine.close()

    def test_tensors_that_another_pass_puts_in_for_its_time_stop_nothing(self) -> None:
        engine, model = self.attach()
        swapped, go_on = threading.Event(), threading.Event()

        def functional_pass() -> None:
            with engine.running(20):
                scale, model._buffers["scale"] = model.scale, torch.ones(8)
                swapped.set()
                go_on.wait(20)
                model._buffers["scale"] = scale

        beside = threading.Thread(target=functional_pass)
        beside.start()
        self.assertTrue(swapped.wait(20))
        with engine.running(20):
            pass
        go_on.set()
        beside.join(20)
        self.assertIsNone(engine.stopped)

    def test_the_reason_is_kept_if_the_engine_attaches_again(self) -> None:
        engine, model = self.attach()
        engine.suspend(20)
        move(model, "scale")
        engine.refresh(20)
        with self.assertRaisesRegex(dws.EnginePaused, "'scale'"):
            engine.wait_ready(None)
        self.assertIn("'scale'", engine.stats().last_error)


if __name__ == "__main__":
    unittest.main()
