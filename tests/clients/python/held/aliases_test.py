"""dws.held.aliases: what shares memory with a weight of the host moves with it, or the attach is refused."""

from __future__ import annotations

import collections
import functools
import gc
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from typing import Any, Callable, Iterator
from unittest import mock

import numpy as np
import torch

import dws
from dws.arrays import storage_of
from dws.held import aliases
from tests.clients.python.fake_daemons import FakeReceiver, resume


class Tagged(torch.Tensor):
    """A class of the user's."""


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


def with_default(x: Any) -> Callable[..., Any]:
    def call(held: Any = x) -> Any:
        return held

    return call


# Each makes something that holds a tensor, and gives a function that finds the tensor in it.
HOLDERS: dict[str, Callable[[Any], tuple[Any, Callable[[Any], Any]]]] = {
    "attribute": lambda view: (view, lambda held: held),
    "list in a dict": lambda view: ({"all": [1, view]}, lambda held: held["all"][1]),
    "tuple": lambda view: ((view,), lambda held: held[0]),
    "queue": lambda view: (collections.deque([view]), lambda held: held[0]),
    "object": lambda view: (types.SimpleNamespace(weights=view), lambda held: held.weights),
    "slots": lambda view: (Slotted(view), lambda held: held.held),
    "closure": lambda view: (lambda: view, lambda held: held()),
    "default argument": lambda view: (with_default(view), lambda held: held()),
    "partial": lambda view: (functools.partial(torch.clone, view), lambda held: held.args[0]),
}


def twin(views: Any) -> Any:
    """Memory like that of an attach."""
    return {name: tensor.detach().clone() for name, tensor in views.items()}


# Reads what has only the address of a weight's memory, after the weight has moved. Crashes if that memory is gone.
READS_OLD_MEMORY = """
import gc, sys
import numpy as np
import torch
import dws

def state(module):
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}["weight"]

def of_a_part(module):
    return module.weight[1:].numpy()

def of_an_array(module):
    module.weight.data = torch.from_numpy(np.full((1024, 1024), 5, np.float32))
    return module.weight.numpy()

def of_a_view_that_is_kept(module):
    module.view = module.weight.detach()
    return np.from_dlpack(module.view)

for make in (
    lambda module: module.weight.numpy(),
    lambda module: np.asarray(module.weight),
    lambda module: memoryview(module.weight.numpy()),
    lambda module: np.from_dlpack(module.weight),
    lambda module: np.from_dlpack(module.weight.detach()),
    state,
    of_a_part,
    of_an_array,
    of_a_view_that_is_kept,
):
    module = torch.nn.Linear(1024, 1024, bias=False).requires_grad_(False)
    module.weight.fill_(5)
    array = make(module)
    gc.collect()
    print("told:", make.__name__, make.__code__.co_firstlineno, file=sys.stderr, flush=True)
    for value in (6.0, 7.0):  # a module that is bound again leaves the views
        dws.bind(module, {"weight": torch.full((1024, 1024), value)})
        gc.collect()
        assert np.asarray(array)[0, 0] == 5 and np.asarray(array)[-1, -1] == 5, np.asarray(array)
        assert float(module.weight[0, 0]) == value
"""


class AliasesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.module: Any = torch.nn.Linear(4, 16, bias=False)
        self.module.weight.data = torch.arange(64.0).reshape(16, 4)

    def bind(self) -> Any:
        views = twin(dws.named_tensors(self.module))
        dws.bind(self.module, views)
        return views["weight"]

    def test_a_view_follows_its_weight_wherever_it_is_held(self) -> None:
        for name, make in HOLDERS.items():
            with self.subTest(name):
                self.setUp()
                self.module.held, find = make(self.module.weight.detach().view(64))
                view = find(self.module.held)
                memory = self.bind()
                self.assertIs(find(self.module.held), view)
                memory.fill_(3)
                self.assertEqual(view.tolist(), [3.0] * 64)

    def test_views_of_every_kind_follow(self) -> None:
        weight = self.module.weight
        views = {
            "reshaped": weight.view(4, 16),
            "detached": weight.detach(),
            "without grad": weight.data,
            "transposed": weight.detach().t(),
            "row": weight.detach()[3],
            "column of every second row": weight.detach()[::2, 1],
            "expanded": weight.detach()[:, :1].expand(16, 4),
            "bytes": weight.detach().view(torch.uint8),
            "halves": weight.detach()[2:].view(torch.float16),
        }
        with torch.no_grad():
            views["under no_grad"] = weight[1:3]
        self.module.views = views
        before = {name: view.detach().clone() for name, view in views.items()}
        memory = self.bind()
        for name, view in views.items():
            with self.subTest(name):
                self.assertTrue(torch.equal(view, before[name]))
                self.assertEqual(view.stride(), views[name].stride())
        memory.zero_()
        for name, view in views.items():
            with self.subTest(name):
                self.assertEqual(int(view.count_nonzero()), 0)

    def test_buffers_and_parameters_that_share_memory_go_on_sharing_it(self) -> None:
        self.module.register_buffer("conv_weights", self.module.weight.view(8, 8), persistent=False)
        self.module.register_buffer("scale", torch.ones(2))
        self.module.scale_again = self.module.scale
        self.module.child = torch.nn.Module()
        self.module.child.register_buffer("part", self.module.scale[:1], persistent=False)
        objects = [self.module.conv_weights, self.module.scale, self.module.weight]
        self.bind().fill_(2)
        self.module.scale.fill_(5)
        self.assertEqual(float(self.module.conv_weights.sum()), 128.0)
        self.assertEqual(float(self.module.scale_again.sum() + self.module.child.part.sum()), 15.0)
        self.assertEqual([id(t) for t in objects], [id(t) for t in (self.module.conv_weights, self.module.scale, self.module.weight)])

    def test_a_view_that_nothing_of_the_module_holds_follows_too(self) -> None:
        view = self.module.weight.detach()[1]
        self.bind().fill_(9)
        self.assertEqual(view.tolist(), [9.0] * 4)

    def test_what_lies_beside_a_weight_in_the_same_storage_stays(self) -> None:
        flat = torch.arange(96.0)
        self.module.weight.data = flat[16:80].view(16, 4)
        self.module.before, self.module.behind = flat[:16], flat[80:]
        with self.assertLogs("dws.held.aliases", "WARNING") as logged:
            memory = self.bind()
        self.assertIn("a tensor outside of the module, torch.float32 [96], shares memory with 'weight'", logged.output[0])
        memory.zero_()
        self.assertEqual(float(self.module.before.sum()), 120.0)
        self.assertEqual(self.module.behind.tolist(), [float(i) for i in range(80, 96)])

    def test_what_cannot_follow_is_refused_by_both_names_and_nothing_is_changed(self) -> None:
        def over_two(module: Any) -> None:
            flat = torch.arange(128.0)
            module.weight.data = flat[:64].view(16, 4)
            module.other = torch.nn.Parameter(flat[64:].view(16, 4))
            module.all_weights = flat

        def beyond(module: Any) -> None:
            module.slab = torch.arange(128.0)
            module.weight.data = module.slab[:64].view(16, 4)

        def array(module: Any) -> None:
            module.table = {"rows": module.weight.detach().numpy()}

        def behind_a_memoryview(module: Any) -> None:
            module.memory = memoryview(module.weight.detach().numpy())

        def shifted(module: Any) -> None:
            flat = torch.arange(66.0)
            module.weight.data = flat[1:65].view(16, 4)
            module.doubles = flat[:66].view(torch.float64)[1:5]

        def conjugated(module: Any) -> None:
            module.complex = torch.view_as_complex(module.weight.detach().view(32, 2)).conj()

        for change, message in (
            (over_two, "'all_weights', torch.float32 .128., shares memory with '(weight|other)' and '(weight|other)', .*more than one"),
            (beyond, "'slab', .*'weight', .*more than the weight"),
            (behind_a_memoryview, "'memory.*shares memory with 'weight'.*array of numpy"),
            (array, "'table.rows', float32 .16, 4., shares memory with 'weight'.*array of numpy"),
            (shifted, "'doubles', torch.float64 .4., shares memory with 'weight'"),
            (conjugated, "'complex', .*'weight'"),
        ):
            with self.subTest(change.__name__):
                self.setUp()
                change(self.module)
                gc.collect()
                before = self.module.weight.data_ptr()
                with self.assertRaisesRegex(dws.LayoutError, message):
                    self.bind()
                self.assertEqual(self.module.weight.data_ptr(), before)

    def test_a_module_that_is_bound_again_takes_its_views_along(self) -> None:
        self.module.view = self.module.weight.detach().t()
        self.bind()
        self.bind().fill_(4)
        self.assertEqual(float(self.module.view.sum()), 256.0)

    def test_old_memory_is_freed_and_what_nobody_can_find_is_told(self) -> None:
        self.module.view = self.module.weight.detach().view(64)
        with mock.patch.object(aliases._LOG, "warning") as warned:
            self.bind()
        warned.assert_not_called()
        hidden = self.module.weight.detach().view(64)
        # Not found, as if only a library had it.
        with mock.patch.object(aliases, "followers", lambda *_: []), mock.patch("dws.torch_module.followers", lambda *_: []):
            with self.assertLogs("dws.held.aliases", "WARNING") as logged:
                self.bind()
        self.assertIn("'weight'", logged.output[0])
        del hidden


    def test_arrays_that_have_only_the_address_go_on_reading_old_values_and_are_told(self) -> None:
        done = subprocess.run([sys.executable, "-c", READS_OLD_MEMORY], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        _, *kinds = done.stderr.split("told: ")
        self.assertEqual(len(kinds), 9)
        for kind in kinds:
            self.assertRegex(kind, "an array of numpy, still holds memory that 1 weights had before they moved, 'weight'")

    def test_old_memory_is_freed_with_the_last_array(self) -> None:
        array = self.module.requires_grad_(False).weight.numpy()
        old = aliases.OldMemory({"weight": self.module.weight}, [])
        with self.assertLogs("dws.held.aliases", "WARNING"):
            self.bind()
        del array
        gc.collect()
        with mock.patch.object(aliases._LOG, "warning") as warned:
            old.warn_if_held()
        warned.assert_not_called()

    def test_weights_in_use_by_autograd_leave_no_old_memory(self) -> None:
        self.module.view = self.module.weight.view(64)
        self.module(torch.ones(1, 4)).sum().backward()
        with mock.patch.object(aliases._LOG, "warning") as warned:
            self.bind()
        warned.assert_not_called()

    def test_what_is_frozen_follows_and_stays_frozen(self) -> None:
        self.addCleanup(gc.unfreeze)
        for flat in (False, True):
            with self.subTest(flat=flat):
                self.setUp()
                if flat:
                    self.module.bias = torch.nn.Parameter(torch.zeros(16))
                    memory = torch.arange(80.0)
                    self.module.weight.data, self.module.bias.data = memory[:64].view(16, 4), memory[64:]
                    del memory
                view = self.module.weight.detach()[1]
                gc.collect()
                gc.freeze()
                self.bind().fill_(9)
                self.assertEqual(view.tolist(), [9.0] * 4)
                self.assertGreater(gc.get_freeze_count(), 0)

    def test_other_threads_go_on_building_tuples(self) -> None:
        done = threading.Event()
        failed: list[BaseException] = []

        def slowly() -> Iterator[int]:
            for number in range(20):
                time.sleep(1e-4)  # another thread looks at the tuple now
                yield number

        def build() -> None:
            while not done.is_set():
                try:
                    tuple(slowly())
                except SystemError as error:
                    failed.append(error)

        thread = threading.Thread(target=build)
        thread.start()
        module = torch.nn.Linear(8, 8)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            aliases.followers(dict(module.named_parameters()), module)
        done.set()
        thread.join()
        self.assertEqual(failed, [])

    def test_every_tensor_of_the_collector_is_found(self) -> None:
        flat = torch.arange(96.0)
        held = [flat, flat[:3], torch.nn.Parameter(flat[4:]), torch.ones(2).as_subclass(Tagged)]
        known = {id(tensor) for tensor in aliases._known_to_python()}
        self.assertLessEqual({id(tensor) for tensor in held}, known)
        everything = (value for value in gc.get_objects() if issubclass(type(value), torch.Tensor))
        self.assertEqual({id(tensor) for tensor in everything}, known)

    def test_a_hidden_tensor_in_a_storage_of_several_weights_is_told(self) -> None:
        flat = torch.arange(128.0)
        self.module.weight.data, self.module.beside = flat[:64].view(16, 4), flat[64:].data
        del flat
        gc.collect()
        with mock.patch.object(aliases._LOG, "warning") as warned:
            self.bind()
        warned.assert_not_called()  # what stays beside the weight is known
        self.module.weight.data = torch.arange(128.0)[:64].view(16, 4)
        storage = storage_of(self.module.weight)
        with self.assertLogs("dws.held.aliases", "WARNING") as logged:
            self.bind()
        self.assertIn("'weight'", logged.output[0])
        del storage


class AttachTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(lambda: self.receiver.stop())

    def attach(self, target: Any, **options: Any) -> Any:
        engine = dws.Engine(self.receiver.socket)
        self.addCleanup(engine.close)
        return engine, engine.attach(target, **options)

    def written(self, engine: Any, value: float) -> None:
        """The receiver writes all weights, and releases the engine."""
        down, _ = self.receiver.leases.get(timeout=20)
        np.frombuffer(self.receiver.writable_region(), np.float32)[:] = value
        down.put(resume(1))
        engine.wait_ready(20)

    def test_a_view_reads_what_the_receiver_writes(self) -> None:
        module: Any = torch.nn.Linear(4, 2, bias=False)
        module.register_buffer("view", module.weight.view(8), persistent=False)
        engine, _ = self.attach(module)
        self.written(engine, 2.0)
        self.assertEqual(module.view.tolist(), [2.0] * 8)

    def test_views_of_an_attach_before_leave_no_old_memory(self) -> None:
        module = torch.nn.Linear(4, 2, bias=False).requires_grad_(False)
        engine, views = self.attach(module)
        engine.close()
        with mock.patch.object(aliases._LOG, "warning") as warned:
            engine, _ = self.attach(module)
        warned.assert_not_called()
        self.assertEqual(views["weight"].data_ptr(), module.weight.data_ptr())
        engine.close()
        array = views["weight"].numpy()
        with self.assertLogs("dws.held.aliases", "WARNING"):
            self.attach(module)
        self.assertEqual(array.shape, (2, 4))

    def test_an_attach_that_is_refused_for_a_view_has_asked_no_receiver(self) -> None:
        module: Any = torch.nn.Linear(4, 2, bias=False)
        module.slab = torch.zeros(16)
        module.weight.data = module.slab[:8].view(2, 4)
        with self.assertRaisesRegex(dws.LayoutError, "'slab'.*'weight'"):
            self.attach(module)
        self.assertIsNone(self.receiver.attached)

    def test_a_dicts_tensor_that_is_not_mapped_may_not_share_memory_with_one_that_is(self) -> None:
        for weight in (torch.zeros(4, 2), np.zeros((4, 2), np.float32)):
            with self.assertRaisesRegex(dws.LayoutError, "'row' shares memory with 'weight'"):
                self.attach({"weight": weight, "row": weight[1]}, mapping={"row": None})

    def test_a_modules_state_as_a_dict_is_told(self) -> None:
        module = torch.nn.Linear(4, 2, bias=False)
        with self.assertLogs("dws.held.aliases", "WARNING") as logged:
            self.attach(module.state_dict())
        self.assertIn("'weight' has the memory of a module's parameter", logged.output[0])

    def test_models_made_in_inference_mode_run_in_it_after_the_attach(self) -> None:
        for inside in (False, True):
            with self.subTest(inside=inside):
                with torch.inference_mode():
                    module: Any = torch.nn.Linear(8, 8, bias=False)
                    module.register_buffer("scale", torch.ones(8))
                    module.head = torch.nn.Linear(8, 8, bias=False)
                    module.head.weight = module.weight
                    module.weight.loader = len
                    module.view = module.weight.view(64)
                weight = module.weight
                with torch.inference_mode(inside):
                    engine, views = self.attach(module)
                self.assertFalse(views["weight"].is_inference())
                self.written(engine, 2.0)
                with engine.running(20), torch.inference_mode():
                    self.assertEqual(module(torch.ones(1, 8))[0, 0].item(), 16.0)
                    self.assertEqual(float(module.view.sum() + module.scale.sum()), 144.0)
                self.assertIs(module.weight, weight)
                self.assertIs(module.head.weight, weight)
                self.assertIs(weight.loader, len)
                self.assertTrue(weight.is_inference())
                engine.close()

    def test_a_usual_model_that_is_attached_in_inference_mode_stays_usual(self) -> None:
        module = torch.nn.Linear(8, 8, bias=False)
        with torch.inference_mode():
            engine, _ = self.attach(module)
        self.written(engine, 2.0)
        module(torch.ones(1, 8)).sum().backward()
        self.assertEqual(float(module.weight.grad.sum()), 64.0)


if __name__ == "__main__":
    unittest.main()
