"""dws.Engine and copies of weights: a module that has one is refused, and stopped if it makes one."""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
import types
import unittest
import unittest.mock
from typing import Any

import numpy as np
import torch

import dws
from dws.held import watch
from tests.clients.python.fake_daemons import FakeReceiver, pause, resume


class Norm(torch.nn.Module):
    """Computes with a copy that it makes on its first pass."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.cache: dict[str, Any] = {}
        self.method = types.SimpleNamespace(weight=None)

    def forward(self, x: Any) -> Any:
        if self.method.weight is None:
            self.method.weight = self.weight.detach().double()
        return x * self.method.weight


class Model(torch.nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), Norm(weight)])
        self.register_buffer("ones", torch.ones(8), persistent=False)
        self.register_buffer("positions", torch.arange(64), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.layers[1](self.layers[0](x))


COPY = "'layers.1.method.weight' .Norm, torch.float64 .8..? is a copy of weight 'layers.1.weight'"


class WatchTest(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(3)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(lambda: self.receiver.stop())
        self.model = Model(torch.rand(8))

    def attach(self, **options: Any) -> Any:
        engine = dws.Engine(self.receiver.socket)
        self.addCleanup(engine.close)
        engine.attach(self.model, **options)
        self.down, self.up = self.receiver.leases.get(timeout=20)
        self.up.get(timeout=20)
        return engine

    def run_pass(self, engine: Any) -> Any:
        with engine.running(20):
            return self.model(torch.ones(1, 8))

    def test_a_model_that_has_a_copy_is_refused_by_layer_and_attribute(self) -> None:
        self.model(torch.ones(1, 8))
        engine = dws.Engine(self.receiver.socket)
        with self.assertRaisesRegex(dws.LayoutError, COPY + ".*kept="):
            engine.attach(self.model)
        self.assertIsNone(self.receiver.attached)

    def test_a_buffer_that_is_not_saved_may_be_a_copy_too(self) -> None:
        self.model.register_buffer("scales", self.model.layers[1].weight.detach().clone(), persistent=False)
        with self.assertRaisesRegex(dws.LayoutError, "'scales' .Model, .*copy of weight 'layers.1.weight'"):
            dws.Engine(self.receiver.socket).attach(self.model)

    def test_copies_in_a_class_in_numpy_and_on_a_parameter_are_found_too(self) -> None:
        weight = self.model.layers[1].weight
        for name, holder, copy in (
            ("layers.1.shared.0", Norm, {"shared": [weight.detach().clone()]}),
            ("array", self.model, {"array": weight.detach().double().numpy()}),
            ("layers.1.weight.cast", weight, {"cast": weight.detach().half()}),
        ):
            with self.subTest(name), unittest.mock.patch.multiple(holder, create=True, **copy):
                with self.assertRaisesRegex(dws.LayoutError, f"'{name}' .*copy of weight 'layers.1.weight'"):
                    dws.Engine(self.receiver.socket).attach(self.model)

    def test_the_first_pass_that_makes_a_copy_stops_the_engine(self) -> None:
        engine = self.attach()
        self.down.put(resume(1))
        engine.wait_ready(20)
        engine.wait_ready(20)  # these are no passes
        with engine.running(20), engine.running(20):
            self.model(torch.ones(1, 8))
        with self.assertRaisesRegex(dws.EnginePaused, COPY):
            self.run_pass(engine)
        self.assertRegex(self.up.get(timeout=20).stopped.reason, "a forward pass has made .*" + COPY)
        with self.assertRaisesRegex(dws.EnginePaused, COPY):
            engine.let_commit(2, timeout=3600)
        self.assertRegex(engine.stopped, COPY)

    def test_a_copy_that_a_pass_registers_is_found(self) -> None:
        for kind in ("parameter", "buffer"):
            with self.subTest(kind):
                self.model = Model(torch.rand(8))
                norm = self.model.layers[1]
                norm.method.weight = torch.rand(8)  # makes none
                engine = self.attach()
                self.down.put(resume(1))
                with engine.running(20):
                    copy = norm.weight.detach().double()
                    if kind == "parameter":
                        norm.copy = torch.nn.Parameter(copy, requires_grad=False)
                    else:
                        norm.register_buffer("copy", copy)
                self.assertRegex(str(engine.stopped), "'layers.1.copy' .Norm, .*copy of weight 'layers.1.weight'")
                engine.close()

    def test_a_parameter_that_a_pass_registers_under_an_earlier_name_too_is_no_copy(self) -> None:
        engine = self.attach()
        self.down.put(resume(1))
        weight = self.model.layers[1].weight
        with engine.running(20):
            self.model.layers[0].tied = weight
        self.assertIsNone(engine.stopped)
        with engine.running(20):
            self.model.layers[0].copy = weight.detach().double()
        self.assertRegex(str(engine.stopped), "'layers.0.copy' .Linear, .*copy of weight 'layers.0.tied'")

    def test_a_tensor_that_a_pass_fills_with_a_weight_unseen_by_torch_is_found(self) -> None:
        filled = self.model.layers[1].cache["filled"] = torch.zeros(16)
        engine = self.attach()
        self.down.put(resume(1))
        with engine.running(20):
            filled.data[:8].copy_(self.model.layers[1].weight)  # as a kernel does
        self.assertEqual(filled._version, 0)
        self.assertRegex(engine.stopped, "'layers.1.cache.filled' .Norm, .*copy of weight 'layers.1.weight'")

    def test_what_later_passes_write_unseen_by_torch_is_found(self) -> None:
        with torch.inference_mode():
            inference = torch.zeros(16)

        def into_inference(weight: Any) -> None:
            with torch.inference_mode():
                inference[:8].copy_(weight)

        usual, array, scale = torch.zeros(2, 8), np.zeros(8, np.float32), torch.zeros(16, 8).t()
        for name, held, write in (
            ("inference", inference, into_inference),
            ("usual", usual, lambda weight: usual.data[0].copy_(weight)),
            ("array", array, lambda weight: np.copyto(array, weight.detach().numpy())),
            ("strided", scale, lambda weight: scale.data[:, 3].copy_(weight)),
        ):
            with self.subTest(name):
                self.model = Model(torch.rand(8))
                self.model.layers[1].cache["filled"] = held
                engine = self.attach()
                self.down.put(resume(1))
                with engine.running(20):
                    pass
                self.assertIsNone(engine.stopped)
                with engine.running(20):
                    write(self.model.layers[1].weight)
                self.assertRegex(str(engine.stopped), "'layers.1.cache.filled' .*copy of weight 'layers.1.weight'")
                engine.close()

    def test_a_copy_of_a_later_pass_stops_it_too_and_a_pass_that_fails_is_none(self) -> None:
        engine = self.attach()
        self.down.put(resume(1))
        with self.assertRaises(ZeroDivisionError), engine.running(20):
            raise ZeroDivisionError
        for _ in range(3):
            with engine.running(20):
                pass
        self.run_pass(engine)
        self.assertIsNotNone(engine.stopped)

    def test_a_copy_that_a_commit_leaves_behind_is_named_before_the_commit(self) -> None:
        engine = self.attach()
        self.down.put(resume(1))
        self.run_pass(engine)
        self.down.put(pause(5))
        self.assertTrue(self.up.get(timeout=20).HasField("stopped"))

    def test_a_copy_of_ones_that_a_pass_makes_is_found_by_where_it_is(self) -> None:
        self.model = Model(torch.ones(8))
        engine = self.attach()
        self.down.put(resume(1))
        self.run_pass(engine)
        self.assertRegex(engine.stopped, COPY)

    def test_a_buffer_of_ones_that_a_pass_registers_is_a_copy_of_ones(self) -> None:
        self.model = torch.nn.LayerNorm(8)
        engine = self.attach()
        self.down.put(resume(1))
        with engine.running(20):
            self.model.register_buffer("cast", self.model.weight.detach().double(), persistent=False)
        self.assertRegex(engine.stopped, "'cast' .LayerNorm, .*copy of weight 'weight'")

    def test_a_copy_of_zeros_or_of_few_elements_that_a_pass_makes_is_found(self) -> None:
        for name, weight in (
            ("zeros", torch.zeros(8)),
            ("one element", torch.tensor([0.5])),
            ("a scalar", torch.tensor(1.0)),
            ("three elements", torch.tensor([0.5, 1.5, 2.5])),
            ("three values", torch.tensor([1.0, 2.0, 3.0]).repeat(16)),
            ("zeros and ones", torch.eye(4)),
        ):
            for made in (None, torch.empty_like(weight, dtype=torch.double).fill_(7.0)):
                with self.subTest(name, in_place=made is not None):
                    constant = weight.unique().numel() == 1
                    self.model = torch.nn.Sequential(Norm(weight.clone()), torch.nn.Linear(8, 8))
                    norm = self.model[0]
                    norm.cache["cast"] = made
                    engine = self.attach()
                    self.down.put(resume(1))
                    with engine.running(20):
                        if made is None:
                            norm.cache["cast"] = norm.weight.detach().bfloat16()[None]
                        else:
                            made.copy_(norm.weight)
                    found = "'0.cache.cast' .Norm, .*copy of weight '0.weight'"
                    if made is None or not constant:
                        self.assertRegex(str(engine.stopped), found)
                    engine.close()

    def test_equal_numbers_that_were_there_or_are_held_elsewhere_or_shaped_otherwise_are_no_copies(self) -> None:
        self.model = torch.nn.Sequential(Norm(torch.zeros(8)), Norm(torch.tensor([1.0])), torch.nn.Linear(8, 8))
        zeros, scale, linear = self.model
        zeros.cache.update(states=torch.zeros(8), shorter=torch.zeros(4), counts=torch.zeros(8, dtype=torch.int64))
        scale.method.weight = torch.tensor(1.0)
        linear.register_buffer("order", torch.arange(8))
        linear.order_on_host = torch.arange(8)
        engine = self.attach()
        self.down.put(resume(1))
        for number in range(4):
            with engine.running(20):
                zeros.cache["states"].zero_()
                zeros.cache["counts"] = torch.zeros(8, dtype=torch.int64)
                zeros.cache["shorter"] = torch.zeros(4)
                zeros.cache["keys"] = torch.zeros(2, 8)
                linear.output = torch.zeros(8)
                linear.scale = torch.tensor(1.0)
                scale.cache["step"] = torch.tensor(number + 2.0)
        self.assertIsNone(engine.stopped)

    def test_tables_of_ones_and_what_a_pass_leaves_behind_are_no_copies(self) -> None:
        self.model = Model(torch.ones(8))
        self.model.layers[1].register_buffer("scale", torch.ones(8), persistent=False)
        self.model.layers[1].method.weight = torch.rand(8)  # makes none
        engine = self.attach()
        self.down.put(resume(1))
        for _ in range(4):
            self.model.last = self.run_pass(engine)
            self.model.workspace = torch.zeros(8)
        self.assertIsNone(engine.stopped)

    def test_what_is_computed_from_a_weight_element_by_element_is_no_copy_and_found_too(self) -> None:
        self.model = Model(torch.rand(64))
        self.model.layers[0] = torch.nn.Linear(8, 64)
        norm = self.model.layers[1]
        found = "'layers.1.cache.plus' .Norm, torch.float32 .64.. is computed from weight 'layers.1.weight', element by element"
        norm.method.weight = torch.rand(64)  # makes no copy
        norm.cache["plus"] = 1 + norm.weight.detach()
        with self.assertRaisesRegex(dws.LayoutError, found):
            dws.Engine(self.receiver.socket).attach(self.model)
        del norm.cache["plus"]
        engine = self.attach()
        self.down.put(resume(1))
        with engine.running(20):
            norm.cache["plus"] = 1 + norm.weight.detach()
        self.assertRegex(engine.stopped, "a forward pass has made .*" + found)

    def test_a_copy_of_a_pass_that_is_not_looked_at_is_found_before_the_next_commit(self) -> None:
        engine = self.attach()
        self.down.put(resume(1))
        for _ in range(2):
            with engine.running(20):
                pass
        self.run_pass(engine)  # the third
        self.assertIsNone(engine.stopped)
        self.down.put(pause(5))
        self.assertRegex(self.up.get(timeout=20).stopped.reason, "a forward pass has made .*" + COPY)
        with self.assertRaisesRegex(dws.EnginePaused, COPY):
            self.run_pass(engine)

    def test_looks_before_commits_follow_passes_and_become_rare(self) -> None:
        looks: list[bool] = []

        class Counting(watch.CopyWatch):
            def _look(self, everything: bool) -> Any:
                looks.append(everything)
                return super()._look(everything)

        counting = Counting(self.model, lambda: dict(self.model.named_parameters()))
        counting.before_attach()
        self.assertIsNone(counting.before_commit())
        self.assertEqual(len(looks), 1)  # no pass has run
        due = []
        for commit in range(1, 10):
            for _ in range(64 if commit == 1 else 1):
                counting.after_pass()
            before = len(looks)
            self.assertIsNone(counting.before_commit())
            self.assertIsNone(counting.before_commit())
            due += [commit] * (len(looks) - before)
        self.assertEqual(due, [1, 2, 4, 8])

    def test_a_kept_name_that_nothing_has_is_refused_by_name(self) -> None:
        self.model(torch.ones(1, 8))
        for kept in (["layers.1.method.weigth"], ["layers.*.method.weight", "layers.*.norm_fp32"], [""]):
            with self.subTest(kept), self.assertRaisesRegex(
                dws.InvalidArgumentError, f"kept has '{re.escape(kept[-1])}', expected .* Model holds, .*correct the name"
            ):
                dws.Engine(self.receiver.socket).attach(self.model, kept=kept)
        self.assertIsNone(self.receiver.attached)

    def test_a_kept_name_may_be_of_what_a_pass_makes(self) -> None:
        for kept in ("layers.1.method.weight", "layers.*.cache.cast", "*.method.*"):
            with self.subTest(kept):
                self.model = Model(torch.rand(8))
                norm = self.model.layers[1]
                engine = self.attach(kept=[kept])
                self.down.put(resume(1))
                with engine.running(20):
                    copy = norm.weight.detach().double()
                    if "cache" in kept:
                        norm.cache["cast"] = copy
                    else:
                        norm.method.weight = copy
                self.assertIsNone(engine.stopped)
                engine.close()

    def test_a_view_of_a_weight_is_no_copy(self) -> None:
        self.model.layers[1].method.weight = self.model.layers[1].weight.detach()[None]
        engine = self.attach()
        self.down.put(resume(1))
        self.run_pass(engine)
        self.assertIsNone(engine.stopped)

    def test_a_named_copy_and_those_of_a_model_with_a_hook_may_stay(self) -> None:
        self.model(torch.ones(1, 8))
        engine = self.attach(kept=["layers.*.method.weight"])
        self.down.put(resume(1))
        self.run_pass(engine)
        self.assertIsNone(engine.stopped)
        engine.close()
        with self.assertLogs("dws.held.watch", "WARNING") as logged:
            engine = self.attach(post_commit=lambda version: None)
        self.assertRegex(logged.output[0], COPY + ".*or a hook that is given already does")
        self.down.put(resume(1))
        self.run_pass(engine)
        self.assertIsNone(engine.stopped)

    def test_weights_that_are_not_attached_may_have_copies(self) -> None:
        self.model(torch.ones(1, 8))
        self.attach(mapping={"layers.1.weight": None})

    def test_the_other_tensors_are_told_once(self) -> None:
        self.model.layers[1].cache["rotary"] = torch.rand(16, 4)
        with self.assertLogs("dws.held.watch", "INFO") as logged:
            engine = self.attach()
            self.down.put(resume(1))
            with engine.running(20):
                pass
        self.assertEqual(len(logged.output), 1)
        for name in ("ones float32 [8]", "positions int64 [64]", "layers.1.cache.rotary float32 [16, 4]"):
            self.assertIn(name, logged.output[0])

    def test_what_other_threads_change_while_it_is_looked_at_is_looked_at_later(self) -> None:
        looks: list[int] = []

        class Changing(watch.CopyWatch):
            def _look(self, everything: bool) -> Any:
                looks.append(1)
                if len(looks) == 2:
                    raise RuntimeError("dictionary changed size during iteration")
                return super()._look(everything)

        changing = Changing(self.model, lambda: dict(self.model.named_parameters()))
        changing.before_attach()
        self.model(torch.ones(1, 8))
        with self.assertLogs("dws.held.watch", "WARNING"):
            self.assertIsNone(changing.after_pass())
        self.assertRegex(str(changing.after_pass()), COPY)

    def test_a_look_that_fails_is_made_after_the_next_pass_and_failures_without_end_stop_the_engine(self) -> None:
        engine = self.attach()
        self.down.put(resume(1))
        for _ in range(3):
            with engine.running(20):
                pass
        with unittest.mock.patch.object(watch.CopyWatch, "_look", side_effect=RuntimeError("changed size")):
            with self.assertLogs("dws.held.watch", "WARNING"):
                self.run_pass(engine)
        with engine.running(20):  # the fifth
            pass
        self.assertRegex(str(engine.stopped), COPY)
        engine.close()
        self.model = Model(torch.rand(8))
        engine = self.attach()
        self.down.put(resume(1))
        with unittest.mock.patch.object(watch.CopyWatch, "_look", side_effect=RuntimeError("changed size")):
            with self.assertLogs("dws.held.watch", "WARNING") as logged:
                for _ in range(watch._FAILURES + 1):
                    self.assertIsNone(engine.stopped)
                    with engine.running(20):
                        pass
        self.assertEqual(len(logged.output), watch._FAILURES)
        self.assertRegex(str(engine.stopped), "cannot be looked for .*RuntimeError: changed size")

    def test_other_tasks_run_during_a_look(self) -> None:
        engine = self.attach()
        self.down.put(resume(1))
        engine.wait_ready(20)
        begun, goes_on = threading.Event(), threading.Event()

        def look(_: Any, everything: bool) -> Any:
            begun.set()
            self.assertTrue(goes_on.wait(20))
            return {"copy": (types.SimpleNamespace(module=None, tensor=torch.ones(1)), "a copy of weight 'weight'")}, []

        async def run() -> None:
            async with engine.running(20):
                pass

        async def main() -> None:
            task = asyncio.create_task(run())
            while not begun.is_set():
                await asyncio.sleep(0.001)
            goes_on.set()
            await task

        with unittest.mock.patch.object(watch.CopyWatch, "_look", look):
            asyncio.run(main())
        self.assertRegex(str(engine.stopped), "'copy' .*copy of weight 'weight'")

    def test_a_task_that_is_cancelled_during_a_look_is_inside_until_that_ends(self) -> None:
        engine = self.attach()
        self.down.put(resume(1))
        engine.wait_ready(20)
        order: list[str] = []
        cancelled = threading.Event()
        leave = engine._lease.leave

        async def main() -> None:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None

            def cancel(task: Any) -> None:
                task.cancel()
                cancelled.set()

            def look(_: Any, everything: bool) -> Any:
                loop.call_soon_threadsafe(cancel, task)
                self.assertTrue(cancelled.wait(20))
                order.append("looked")
                return {}, []

            with unittest.mock.patch.object(watch.CopyWatch, "_look", look):
                async with engine.running(20):
                    pass

        def left(block: Any) -> None:
            order.append("left")
            leave(block)

        with unittest.mock.patch.object(engine._lease, "leave", left), self.assertRaises(asyncio.CancelledError):
            asyncio.run(main())
        self.assertEqual(order, ["looked", "left"])

    def test_a_model_made_in_inference_mode_is_looked_at_too(self) -> None:
        with torch.inference_mode():
            self.model = Model(torch.rand(8))
        engine = self.attach()
        self.down.put(resume(1))
        with torch.inference_mode():
            self.run_pass(engine)
        self.assertRegex(engine.stopped, COPY)


if __name__ == "__main__":
    unittest.main()
