"""dws.declare.from_module by transformers' own conversion, of which there is a stand-in; and pieces against torch's indexing."""

from __future__ import annotations

import itertools
import math
import random
import unittest
from typing import Any, Sequence

import torch

import dws
from dws.declare.pieces import Piece, cover, index_of_view
from tests.clients.python import stand_in_transformers as transformers
from tests.clients.python.stand_in_transformers import EXPERTS, PreTrainedModel

EXPERT_COUNT, INNER, HIDDEN = 3, 5, 7


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.randn(EXPERT_COUNT, 2 * INNER, HIDDEN))
        self.down_proj = torch.nn.Parameter(torch.randn(EXPERT_COUNT, HIDDEN, INNER))


def with_experts(**conversion: Any) -> Any:
    model = PreTrainedModel(**{"operations": EXPERTS, **conversion})
    model.mlp = torch.nn.Module()
    model.mlp.experts = Experts()
    model.mlp.gate = torch.nn.Linear(HIDDEN, EXPERT_COUNT, bias=False)
    model.mlp.register_buffer("steps", torch.arange(2))
    return model


def of_one(operation: Any) -> Any:
    """A model of one weight, which the operation converts."""
    model = PreTrainedModel(operations={"weight": [operation]})
    model.weight = torch.nn.Parameter(torch.randn(4, 6))
    return model


class ConversionTest(unittest.TestCase):
    def setUp(self) -> None:
        block = transformers.loaded()
        block.__enter__()
        self.addCleanup(block.__exit__, None, None, None)

    def test_each_piece_of_a_stack_is_a_view_of_it_under_the_checkpoints_name(self) -> None:
        model = with_experts(renames={r"^mlp\.": "model.block_sparse_moe."})
        tensors = dws.declare.from_module(model)
        at = "model.block_sparse_moe"
        stacks, found = model.mlp.experts, {}
        for n in range(EXPERT_COUNT):
            found[f"{at}.experts.{n}.gate_proj.weight"] = stacks.gate_up_proj[n, :INNER]
            found[f"{at}.experts.{n}.up_proj.weight"] = stacks.gate_up_proj[n, INNER:]
            found[f"{at}.experts.{n}.down_proj.weight"] = stacks.down_proj[n]
        found[f"{at}.gate.weight"] = model.mlp.gate.weight
        found[f"{at}.steps"] = model.mlp.steps
        self.assertEqual(sorted(tensors), sorted(found))
        for name, expected in found.items():
            self.assertEqual(tensors[name].data_ptr(), expected.data_ptr(), name)
            self.assertTrue(torch.equal(tensors[name], expected), name)
        self.assertIs(tensors[f"{at}.gate.weight"], model.mlp.gate.weight)

    def test_a_tied_tensor_has_the_name_that_is_saved_and_what_is_not_saved_has_none(self) -> None:
        class Tied(PreTrainedModel):
            _tied_weights_keys = {"head.weight": "embed.weight"}
            _keys_to_ignore_on_save = ["positions"]

        model = Tied()
        model.head = torch.nn.Linear(3, 5, bias=False)  # named_parameters() has it first
        model.embed = torch.nn.Embedding(5, 3)
        model.head.weight = model.embed.weight
        model.register_buffer("positions", torch.arange(3))
        tensors = dws.declare.from_module(model)
        self.assertEqual(list(tensors), ["embed.weight"])
        self.assertIs(tensors["embed.weight"], model.embed.weight)
        moved = torch.nn.Parameter(model.embed.weight.detach().clone())
        tensors.bind({"embed.weight": moved.detach()})
        self.assertEqual(model.head.weight.data_ptr(), moved.data_ptr())

    def test_wrappers_and_classes_of_frameworks_are_looked_through(self) -> None:
        model = with_experts(renames={"^mlp.gate": "router"})
        expected = sorted(dws.declare.from_module(model))
        sharded = type("FSDPModel", (PreTrainedModel,), {"__module__": "torch.distributed.fsdp"})
        model.__class__ = sharded
        wrapper = torch.nn.Module()
        wrapper._orig_mod = torch.nn.Module()
        wrapper._orig_mod._fsdp_wrapped_module = model
        self.assertEqual(sorted(dws.declare.from_module(wrapper)), expected)

    def test_a_model_in_a_module_keeps_the_name_of_its_place(self) -> None:
        module = torch.nn.Module()
        module.policy, module.value = with_experts(), torch.nn.Linear(HIDDEN, 1)
        names = sorted(f"policy.{name}" for name in dws.declare.from_module(module.policy))
        found = sorted(dws.declare.from_module(module))
        self.assertEqual(found, names + ["value.bias", "value.weight"])

    def test_what_is_no_part_of_a_tensor_is_refused_by_the_name_of_the_operation(self) -> None:
        for operation, why in (
            (transformers.Concatenate(), "'weight': .* 'stand_in' makes it by Concatenate; expected"),
            (transformers.Transpose(), r"'weight': .* makes .* \[6, 4\] with strides \[1, 6\] of"),
            (transformers.Interleave(), "'weight': .* makes torch.float32 .* of 'weight'"),
            (transformers.MergeModulelist(), r"'weight' \[4, 6\]: .* saves 1 parts of it"),
            (
                transformers.Rotate(),
                "'weight': .* does not know Rotate, an operation .* model_type 'stand_in' "
                "\\(known: Chunk",
            ),
            (transformers.PermuteForRope(), "model_type 'stand_in' .* ValueError: it has no heads"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, why):
                dws.declare.from_module(of_one(operation))

    def test_an_operation_that_does_not_run_refuses_nothing(self) -> None:
        model = PreTrainedModel(operations={"other": [transformers.Rotate()]})
        model.weight = torch.nn.Parameter(torch.zeros(2))
        self.assertEqual(list(dws.declare.from_module(model)), ["weight"])

    def test_two_tensors_of_one_name_are_refused(self) -> None:
        model = PreTrainedModel(renames={"a|b": "c"})
        model.a, model.b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
        with self.assertRaisesRegex(dws.LayoutError, r"'a' \[2\]: .* saves 0 parts of it"):
            dws.declare.from_module(model)

    def test_the_family_that_a_caller_names_is_taken_in_its_place(self) -> None:
        tensors = dws.declare.from_module(with_experts(), "mixtral")
        self.assertIn("block_sparse_moe.experts.0.w1.weight", tensors)


class WithoutConversionTest(unittest.TestCase):
    def test_a_transformers_without_a_conversion_leaves_the_families(self) -> None:
        with self.assertRaisesRegex(dws.LayoutError, "model_type 'stand_in'"):
            dws.declare.from_module(with_experts())


class PiecesTest(unittest.TestCase):
    """Every box of small tensors."""

    def boxes(self, shape: Sequence[int]) -> list[tuple[Any, ...]]:
        choices = [
            [*range(extent), *(slice(a, b) for a in range(extent) for b in range(a + 1, extent + 1))]
            for extent in shape
        ]
        return list(itertools.product(*choices))

    def test_a_view_is_found_again_from_its_strides(self) -> None:
        for shape in ((4,), (3, 2), (1, 3, 2), (2, 1, 3)):
            whole = torch.arange(math.prod(shape)).reshape(shape)
            for index in self.boxes(shape):
                view = whole[index]
                found = index_of_view(shape, view.shape, view.stride(), view.storage_offset())
                assert found is not None
                self.assertTrue(torch.equal(Piece("x", found).view(whole), view), (shape, index))
        for view in (whole.transpose(0, 2), whole[:, :, ::2], whole.expand(2, 2, 1, 3)):
            self.assertIsNone(index_of_view(shape, view.shape, view.stride(), view.storage_offset()))

    def test_a_piece_knows_its_shape_its_elements_and_what_a_process_has_of_it(self) -> None:
        shape = (3, 2, 2)
        whole = torch.arange(math.prod(shape)).reshape(shape)
        for index in self.boxes(shape):
            piece, view = Piece("x", index), whole[index]
            self.assertEqual(piece.shape(shape), tuple(view.shape))
            elements, flat = piece.elements(shape), view.reshape(-1).tolist()
            in_one = flat == list(range(flat[0], flat[0] + len(flat)))
            self.assertEqual(elements, (flat[0], flat[-1] + 1) if in_one else None, index)
            for held in random.sample(self.boxes(shape), 20):
                ranges = [(i, i + 1) if isinstance(i, int) else (i.start, i.stop) for i in held]
                local = whole[tuple(slice(*each) for each in ranges)]
                mine = set(flat) & set(local.reshape(-1).tolist())
                part = piece.held(shape, ranges)
                found = [] if part is None else view[tuple(slice(*each) for each in part)]
                self.assertEqual(set(torch.as_tensor(found).reshape(-1).tolist()), mine, index)

    def test_pieces_cover_a_tensor_if_each_element_is_in_one(self) -> None:
        shape = (4, 3)
        halves = [Piece("a", (slice(0, 2),)), Piece("b", (slice(2, 4),))]
        self.assertTrue(cover(shape, halves))
        self.assertTrue(cover(shape, [Piece("c")]))
        self.assertFalse(cover(shape, halves[:1]))
        self.assertFalse(cover(shape, [halves[0], Piece("d", (slice(1, 3),))]))
        self.assertFalse(cover(shape, []))


if __name__ == "__main__":
    unittest.main()
