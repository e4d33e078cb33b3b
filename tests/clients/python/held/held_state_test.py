"""dws.held.held_state: finds everything that a layer holds, wherever it is, and puts it back."""

from __future__ import annotations

import functools
import queue
import types
import unittest
import weakref
from typing import Any

import numpy as np
import torch

import dws
from dws.held import held_state
from dws.held.held_state import HeldState, changed_values, tensor_at


GLOBAL = torch.ones(9)


class Handle:
    """An object of a library: nothing of it can be seen."""

    __slots__ = ("number",)


def closing_over(tensor: Any) -> Any:
    return lambda x: x @ tensor


class HeldStateTest(unittest.TestCase):
    def test_tensors_are_found_through_everything_that_holds_them(self) -> None:
        layer = torch.nn.Linear(2, 2, bias=False)
        tensors = [torch.ones(1) * place for place in range(6)]
        layer.method = types.SimpleNamespace(scale=tensors[0], config={"w1": [tensors[1]]})
        layer.apply_weight = closing_over(tensors[2])
        layer.partial = functools.partial(torch.add, tensors[3], other=tensors[4])
        layer.pair = (None, tensors[5])
        found = HeldState(layer).tensors
        self.assertEqual(
            {".".join(path): float(tensor) for path, tensor in found.items() if tensor.numel() == 1},
            {
                "method.scale": 0.0,
                "method.config.w1.0": 1.0,
                "apply_weight.0": 2.0,
                "partial.args.0": 3.0,
                "partial.keywords.other": 4.0,
                "pair.1": 5.0,
            },
        )
        self.assertIs(found[("_parameters", "weight")], layer.weight)

    def test_a_tensor_is_found_again_at_its_path(self) -> None:
        layer = torch.nn.Linear(2, 2)
        layer.method = types.SimpleNamespace(call=closing_over(torch.ones(1)))
        for path, tensor in HeldState(layer).tensors.items():
            self.assertIs(tensor_at(layer, path), tensor)
        layer.method.call = closing_over(torch.zeros(1))
        self.assertEqual(float(tensor_at(layer, ("method", "call", "0"))), 0.0)
        for path in (("method",), ("method", "none"), ("method", "call", "0", "more")):
            self.assertIsNone(tensor_at(layer, path))

    def test_submodules_and_other_layers_are_not_looked_into(self) -> None:
        layer = torch.nn.Sequential(torch.nn.Linear(2, 2))
        other = torch.nn.Linear(2, 2)
        layer.method = types.SimpleNamespace(other=other)
        self.assertEqual(HeldState(layer, {id(other)}).tensors, {})
        self.assertEqual(len(HeldState(layer).tensors), 2)

    def test_what_was_changed_is_put_back(self) -> None:
        layer = torch.nn.Linear(2, 2)
        layer.method = types.SimpleNamespace(scale=1.0, list=[1], table={"a": 1}, set={1})
        weight, method = layer.weight, layer.method
        weight.loader = len
        before = HeldState(layer)
        del layer.weight, weight.loader
        layer.weight_packed = torch.nn.Parameter(torch.zeros(4))
        layer.method, layer.is_packed = None, True
        method.scale, method.list[:], method.other = 2.0, [2, 3], 1
        method.table.clear()
        method.set.add(2)
        before.restore()
        self.assertIs(layer.weight, weight)
        self.assertIs(layer.method, method)
        self.assertEqual(vars(method), {"scale": 1.0, "list": [1], "table": {"a": 1}, "set": {1}})
        self.assertFalse(hasattr(layer, "weight_packed") or hasattr(layer, "is_packed"))
        self.assertIs(weight.loader, len)

    def test_values_that_are_made_again_differ_only_if_they_are_others(self) -> None:
        def state(handle: Any, number: int) -> Any:
            held = types.SimpleNamespace(
                handle=handle,
                number=number,
                dtype=torch.float32,
                shape=torch.Size([2]),
                device=torch.device("cpu"),
                call=closing_over(1),
            )
            return HeldState(held).values

        handle = Handle()
        before = state(handle, 1)
        self.assertEqual(list(changed_values(before, state(handle, 1))), [])
        self.assertEqual(list(changed_values(before, state(handle, 2))), [("number",)])
        self.assertEqual(list(changed_values(before, state(Handle(), 1))), [("handle",)])
        self.assertEqual(list(changed_values({}, {("a",): None})), [("a",)])

    def test_what_a_model_holds_is_found_once_by_the_names_of_its_modules(self) -> None:
        class Slots:
            __slots__ = ("first", "second")

        class Unwilling:
            def __getattribute__(self, name: str) -> Any:
                if name == "__dict__":
                    raise RuntimeError(name)
                return object.__getattribute__(self, name)

        model: Any = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU())
        slots = Slots()
        slots.first = torch.ones(3)
        model[1].kernel = {"slots": slots, 4: {torch.ones(4)}, "array": np.ones(5), "unwilling": Unwilling()}
        model[1].again, model[1].other_layer = slots, model[0]
        model[1].register_forward_hook(lambda *_: closing_over(model[1].hooked))
        model[1].hooked = torch.ones(6)
        model[0].weight.loader = functools.partial(len, torch.ones(7))
        found = {held.name: held for held in held_state.held_by_model(model)}
        self.assertEqual(
            sorted(found),
            ["0.weight", "0.weight.loader.args.0", "1.hooked", "1.kernel.4.0", "1.kernel.array", "1.kernel.slots.first"],
        )
        held = found["1.kernel.slots.first"]
        self.assertEqual((held.owner, held.module), ("1", model[1]))
        self.assertIs(tensor_at(held.module, held.path), held.tensor)

    def test_what_containers_without_attributes_and_hidden_modules_hold_is_found(self) -> None:
        class Private:
            __slots__ = ("__cache",)

            def __init__(self, tensor: Any) -> None:
                self.__cache = tensor

        class Table(dict):  # type: ignore[type-arg]
            pass

        def results(tensor: Any) -> Any:
            once = [tensor]
            cached = functools.lru_cache(None)(lambda: once.pop())
            cached()
            return cached

        def running(tensor: Any) -> Any:
            def steps() -> Any:
                local = tensor + 0
                while True:
                    yield local

            generator = steps()
            next(generator)
            return generator

        def queue_of(tensor: Any) -> Any:
            made: queue.SimpleQueue[Any] = queue.SimpleQueue()
            made.put(tensor)
            return made

        def table_of(tensor: Any) -> Any:
            table = Table()
            table.tensor = tensor
            return table

        def modules_of(tensor: Any) -> Any:
            inner = torch.nn.Identity()
            inner.register_buffer("cache", tensor)
            return [torch.nn.ModuleDict({"a": torch.nn.Sequential(inner)})]

        alive = [torch.zeros(2)]
        made: dict[str, Any] = {
            "a generator": running,
            "cached results": results,
            "a read-only dict": lambda tensor: types.MappingProxyType({"a": tensor}),
            "a key": lambda tensor: {(1, tensor): None},
            "a queue": queue_of,
            "a method": lambda tensor: tensor.add,
            "an operator": lambda tensor: tensor.__matmul__,
            "an iterator": iter,
            "a weak dict": lambda tensor: weakref.WeakValueDictionary(a=alive[-1]),
            "a private slot": Private,
            "a dict with attributes": table_of,
            "modules in a list": modules_of,
        }
        for name, holder in made.items():
            with self.subTest(name):
                tensor = torch.rand(5)
                alive.append(tensor)
                model: Any = torch.nn.Sequential(torch.nn.ReLU())
                model[0].holder = holder([tensor] if name == "an iterator" else tensor)
                found = [held for held in held_state.held_by_model(model) if held.tensor.equal(tensor)]
                self.assertTrue(found)
                self.assertEqual(found[0].owner, "0")
                self.assertTrue(tensor_at(found[0].module, found[0].path).equal(tensor))
        self.assertEqual(found[0].name, "0.holder.0.a.0.cache")

    def test_globals_that_functions_and_generators_refer_to_are_not_held(self) -> None:
        model: Any = torch.nn.ReLU()
        model.holder = [closing_over(torch.ones(2)), (GLOBAL for _ in range(3)), model.forward]
        next(model.holder[1])
        self.assertEqual([held.name for held in held_state.held_by_model(model)], ["holder.0.0"])

    def test_a_tensor_is_replaced_where_that_is_possible(self) -> None:
        layer: Any = torch.nn.Module()
        layer.kernel = types.SimpleNamespace(scale=torch.ones(1), table={7: torch.ones(1)}, list=[None, torch.ones(1)])
        layer.kernel.pair = (torch.ones(1),)
        other = torch.zeros(1)
        for path in (("kernel", "scale"), ("kernel", "table", "7"), ("kernel", "list", "1")):
            self.assertTrue(held_state.put_at(layer, path, other))
            self.assertIs(tensor_at(layer, path), other)
        for path in (("kernel", "pair", "0"), ("kernel", "none"), ("none", "scale")):
            self.assertFalse(held_state.put_at(layer, path, other))

    def test_what_holds_too_much_is_refused(self) -> None:
        many = [[place] for place in range(held_state._OBJECTS_MAX)]
        with self.assertRaisesRegex(dws.LayoutError, "more than 20000 objects"):
            HeldState(many)


if __name__ == "__main__":
    unittest.main()
