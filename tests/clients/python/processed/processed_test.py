"""dws.plugins.processed: layers that an engine has packed are kept as loaders take them, and processed again by the
engine's own code."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import types
import unittest
from typing import Any, Callable, Optional

import torch

import dws
from dws.held.watch import CopyWatch
from dws.plugins.checkpoint import CheckpointFiles
from dws.plugins.processed import Processing, ProcessedLayers
from dws.torch_module import bind, named_tensors
from tests.clients.python.engine_models import save_checkpoint

ROWS, COLUMNS = 4, 6


class PackingMethod:
    """Packs the weight, and holds what its kernel takes beside the layer."""

    def __init__(self) -> None:
        self.kernel: Any = None

    def process_weights_after_loading(self, layer: Any) -> None:
        packed = layer.weight.data.t().contiguous().reshape(layer.weight.shape)
        layer.weight = torch.nn.Parameter(packed, requires_grad=False)
        layer.scale = torch.nn.Parameter(layer.scale.data, requires_grad=False)
        self.kernel = types.SimpleNamespace(scale=layer.scale, sums=packed.sum(1))


class InPlaceMethod:
    """Works on the memory that was loaded, and on a table that it has made before."""

    def __init__(self) -> None:
        self.kernel: Any = None

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.weight.data.mul_(layer.scale.data[0])
        if self.kernel is None:
            self.kernel = types.SimpleNamespace(sums=torch.zeros(ROWS))
        self.kernel.sums.copy_(layer.weight.data.sum(1))


class PlainMethod:
    """Has another name than those that are known to be plain; leaves everything as it is."""

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.weight = torch.nn.Parameter(layer.weight.data, requires_grad=False)


class Packed(torch.nn.Module):
    def __init__(self, method: Any) -> None:
        super().__init__()
        self.quant_method = method
        self.weight = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_parameter("bias", None)


class Attention(torch.nn.Module):
    """Makes W_UV of the weight of its submodule."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.kv_b_proj = source
        self.W_UV: Any = None

    def process_weights_after_loading(self) -> None:
        self.W_UV = self.kv_b_proj.weight.t()


class Model(torch.nn.Module):
    def __init__(self, method: Callable[[], Any] = PackingMethod) -> None:
        super().__init__()
        self.first = Packed(method())
        self.second = Packed(method())
        self.norm = torch.nn.Parameter(torch.ones(3))
        self.attention = Attention(torch.nn.Linear(2, 2, bias=False))


class Engine:
    """Keeps the form that loaders take, as vLLM does, and can process layers again."""

    def __init__(self, model: Any, without: str = "") -> None:
        self._without = without
        self._loaded = {
            name: {key: tensor.detach().to("meta") for key, tensor in layer._parameters.items() if tensor is not None}
            for name, layer in model.named_modules()
        }
        for tensors in self._loaded.values():
            for key in tensors:
                tensors[key] = torch.nn.Parameter(tensors[key], requires_grad=False)

    def of(self, name: str, layer: Any) -> Optional[Processing]:
        if name == self._without:
            return None
        if isinstance(layer, Attention):
            return Processing(layer.process_weights_after_loading, {}, derives=True)
        return Processing(
            functools.partial(layer.quant_method.process_weights_after_loading, layer), self._loaded[name]
        )

    def loading(self) -> Any:
        return contextlib.nullcontext()

    def context(self) -> Any:
        return contextlib.nullcontext()

    def refresh(self) -> None:
        return None


def load(model: Any, seed: int) -> dict[str, Any]:
    """Loads random weights, and processes them. Returns what was loaded."""
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in model.named_parameters():
        tensor.data.copy_(torch.rand(tensor.shape, generator=random))
        weights[name] = tensor.detach().clone()
    for layer in (model.first, model.second):
        layer.quant_method.process_weights_after_loading(layer)
    model.attention.process_weights_after_loading()
    return weights


def state(model: Any) -> list[Any]:
    """All that the model computes with."""
    found = [*model.parameters(), model.attention.W_UV]
    for layer in (model.first, model.second):
        if getattr(layer.quant_method, "kernel", None) is not None:
            found += vars(layer.quant_method.kernel).values()
    return found


class ProcessedTest(unittest.TestCase):
    def start(self, method: Callable[[], Any] = PackingMethod) -> None:
        self.model = Model(method)
        self.engine = Engine(self.model)
        self.loaded = load(self.model, 1)

    def attach(self) -> ProcessedLayers:
        processed = ProcessedLayers(self.model, self.engine)
        with processed.as_loaded():
            self.names = list(named_tensors(self.model))
        processed.keep({name: name for name in self.names})
        # Does what attaching does on the host: parameters move into other memory.
        views = {name: tensor.detach().clone() for name, tensor in named_tensors(processed.target).items()}
        bind(processed.target, views)
        return processed

    def commit(self, processed: ProcessedLayers, weights: dict[str, Any]) -> None:
        for name, tensor in named_tensors(processed.target).items():
            tensor.data.copy_(weights[name])

    def assert_as_fresh(self, seed: int, method: Callable[[], Any] = PackingMethod) -> None:
        fresh = Model(method)
        load(fresh, seed)
        pairs = list(zip(state(self.model), state(fresh)))
        self.assertGreater(len(pairs), 5)
        for found, expected in pairs:
            self.assertTrue(torch.equal(found, expected), (found, expected))

    def test_a_commit_becomes_what_a_fresh_engine_makes_of_it(self) -> None:
        self.start()
        held = [id(tensor) for tensor in state(self.model)]
        processed = self.attach()
        self.assert_as_fresh(1)  # the trial has changed nothing
        self.assertEqual(sorted(named_tensors(processed.target)), sorted(self.loaded))
        self.assertIn("of 3 layers that are processed after loading 3 are", processed.how())
        for seed in (2, 3):
            self.commit(processed, load(Model(), seed))
            processed.rebuild(None)
            self.assert_as_fresh(seed)
        # Whatever has captured the engine's tensors goes on with them.
        self.assertEqual([id(tensor) for tensor in state(self.model)], held)

    def test_processing_in_place_leaves_what_is_kept_and_a_trial_what_the_engine_has(self) -> None:
        self.start(InPlaceMethod)
        processed = self.attach()
        self.assert_as_fresh(1, InPlaceMethod)
        for seed in (2, 3):
            self.commit(processed, load(Model(InPlaceMethod), seed))
            for changed in (None, frozenset({"first.scale"}), None):
                processed.rebuild(changed)
                self.assert_as_fresh(seed, InPlaceMethod)

    def test_what_is_passed_through_is_written_in_place(self) -> None:
        self.start()
        processed = self.attach()
        target = dict(processed.target.named_parameters())
        self.assertIs(target["first.scale"], self.model.first.scale)
        self.assertIsNot(target["first.weight"], self.model.first.weight)
        self.assertIs(target["norm"], self.model.norm)

    def test_layers_that_have_not_changed_are_not_processed(self) -> None:
        self.start()
        processed = self.attach()
        self.commit(processed, load(Model(), 2))
        processed.rebuild(frozenset({"second.scale", "norm"}))
        self.assertEqual(processed.status()["processed_layers"], 1)
        second, first = load(Model(), 2)["second.weight"], self.loaded["first.weight"]
        self.assertTrue(torch.equal(self.model.second.weight.reshape(COLUMNS, ROWS), second.t()))
        self.assertTrue(torch.equal(self.model.first.weight.reshape(COLUMNS, ROWS), first.t()))
        processed.rebuild(frozenset({"attention.kv_b_proj.weight", "first.weight"}))
        self.assertEqual(processed.status()["processed_layers"], 2)
        self.assert_as_fresh(2)

    def test_a_method_that_leaves_all_as_it_is_costs_nothing(self) -> None:
        self.start(PlainMethod)
        self.model.attention.W_UV = None
        processed = self.attach()
        self.assertEqual(processed.count, 0)
        self.assertIs(processed.target, self.model)

    def test_a_layer_that_processing_gives_a_copy_of_its_weight_is_processed_if_it_is_named(self) -> None:
        class UnquantizedLinearMethod(PlainMethod):
            def process_weights_after_loading(self, layer: Any) -> None:
                super().process_weights_after_loading(layer)
                layer.doubles = layer.weight.data.double()

        self.start(UnquantizedLinearMethod)
        self.model.attention.W_UV = None
        watch = CopyWatch(self.model, lambda: named_tensors(self.model))
        self.assertEqual(watch.holders(), ["first", "second"])
        self.assertEqual(ProcessedLayers(self.model, self.engine).count, 0)
        processed = ProcessedLayers(self.model, self.engine, also=watch.holders())
        processed.keep({})
        held = [self.model.first.doubles, self.model.second.doubles]
        self.assertEqual([id(tensor) for tensor in processed.updated()], [id(tensor) for tensor in held])
        self.commit(processed, load(Model(), 2))
        processed.rebuild(None)
        self.assertIs(self.model.first.doubles, held[0])
        self.assertTrue(torch.equal(held[0], self.model.first.weight.double()))
        updated = CopyWatch(self.model, lambda: named_tensors(self.model), updated=processed.updated())
        self.assertEqual(updated.before_attach(), {})

    def test_a_plain_model_is_its_own_target(self) -> None:
        model = torch.nn.Linear(2, 2)
        processed = ProcessedLayers(model, None)
        with processed.as_loaded():
            pass
        processed.keep({})
        self.assertIs(processed.target, model)
        self.assertEqual((processed.count, processed.how()), (0, ""))

    def test_layers_of_which_the_engine_has_no_processing_are_refused_by_name(self) -> None:
        self.start()
        message = "model Model: 'second' has weights in the form of PackingMethod .1 in all.*no call.*hooks="
        with self.assertRaisesRegex(dws.LayoutError, message):
            ProcessedLayers(self.model, Engine(self.model, without="second"))
        with self.assertRaisesRegex(dws.LayoutError, "'first'.*'attention' keeps W_UV.*3 in all"):
            ProcessedLayers(self.model, None)
        self.assertEqual(ProcessedLayers(self.model, None, has_hook=True).count, 0)

    def test_what_cannot_be_kept_up_to_date_is_refused_by_name(self) -> None:
        class Handles(PackingMethod):
            def process_weights_after_loading(self, layer: Any) -> None:
                super().process_weights_after_loading(layer)
                self.handle = object()

        class Other(PackingMethod):
            times = 0

            def process_weights_after_loading(self, layer: Any) -> None:
                super().process_weights_after_loading(layer)
                self.times += 1
                self.table = torch.zeros(1 + self.times)

        class More(PackingMethod):
            def process_weights_after_loading(self, layer: Any) -> None:
                first = self.kernel is None
                super().process_weights_after_loading(layer)
                setattr(self, "early" if first else "late", torch.zeros(1))

        class Addresses(PackingMethod):
            def process_weights_after_loading(self, layer: Any) -> None:
                super().process_weights_after_loading(layer)
                self.at = torch.tensor(layer.weight.data_ptr())

        class Fails(PackingMethod):
            def process_weights_after_loading(self, layer: Any) -> None:
                if self.kernel is not None:
                    raise RuntimeError("weights are gone")
                super().process_weights_after_loading(layer)

        for method, message in (
            (Handles, "'first' .Packed.: .*makes <object.*in 'quant_method.handle'"),
            (Other, "'first' .*makes torch.float32 .3. for torch.float32 .2. in 'quant_method.table'"),
            (More, "'first' .*makes torch.float32 .1., which it did not have, in 'quant_method.late'"),
            (Addresses, "'first' .*makes other numbers of torch.int64, which may be addresses, in 'quant_method.at'"),
            (Fails, "'first' .*RuntimeError: weights are gone"),
        ):
            self.start(method)
            before = [tensor.clone() for tensor in state(self.model)]
            with self.assertRaisesRegex(dws.LayoutError, message):
                self.attach()
            for found, expected in zip(state(self.model), before):
                self.assertTrue(torch.equal(found, expected))

    def test_a_checkpoint_is_compared_with_what_processing_makes_of_it(self) -> None:
        self.start()
        processed = ProcessedLayers(self.model, self.engine)
        with processed.as_loaded():
            mapping = {name: name for name in named_tensors(self.model)}
        processed.keep(mapping)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            save_checkpoint(path, self.loaded)
            processed.require_as_loaded(mapping, CheckpointFiles(folder))
            other = dict(self.loaded, **{"second.weight": self.loaded["second.weight"] + 1})
            save_checkpoint(path, other)
            with self.assertRaisesRegex(dws.LayoutError, "1 layers differ.*'.*': second"):
                processed.require_as_loaded(mapping, CheckpointFiles(folder))


if __name__ == "__main__":
    unittest.main()
