"""dws.plugins.capture finds where load_weights puts each element, and changes nothing in the model.

Each element of each canonical tensor has a number of its own, so that a load that was really done
shows which element went where."""

from __future__ import annotations

import contextlib
import gc
import unittest
from typing import Any, Callable, Iterable
from unittest import mock

import torch

import dws
from dws.held import aliases
from dws.mapping import Box, Part, Parts, Slice, Viewed
from dws.plugins.canonical import Canonical, ModelShape, Parallel
from dws.plugins.capture import Captured, capture
from dws.plugins.mapping import rank_mapping
from dws.plugins.pieces import difference, pieces_of_source, source_of_pieces
from dws.torch_module import named_tensors
from tests.clients.python.engine_models import Checkpoint, Config, PaddedModel, checkpoint

Weights = Iterable[tuple[str, torch.Tensor]]
UNWRITTEN = -1.0


class One(torch.nn.Module):
    """One parameter `weight`, and a load_weights that is given."""

    def __init__(
        self, shape: tuple[int, ...], load: Callable[[torch.nn.Parameter, Any], Any]
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full(shape, UNWRITTEN), requires_grad=False)
        self.load = load

    def load_weights(self, weights: Weights) -> None:
        self.load(self.weight, dict(weights))


def numbered(shapes: dict[str, tuple[int, ...]]) -> Checkpoint:
    """Tensors whose elements are numbers from 1 on, none of them twice."""
    found, first = {}, 1
    for name, shape in shapes.items():
        count = int(torch.Size(shape).numel())
        found[name] = torch.arange(first, first + count, dtype=torch.float32).reshape(shape)
        first += count
    return found


def declared(weights: Checkpoint) -> dict[str, Canonical]:
    return {
        name: Canonical(tuple(tensor.shape), dws.DType.of(tensor.dtype))
        for name, tensor in weights.items()
    }


def by_pieces(captured: Captured, name: str, shape: Any, weights: Checkpoint) -> torch.Tensor:
    """The parameter as the captured pieces fill it; zero where there are none."""
    made = torch.zeros(shape)
    written = torch.zeros(shape, dtype=torch.int64)
    for piece in captured.pieces[name]:
        own = tuple(slice(*bounds) for bounds in piece.own)
        box = weights[piece.tensor][tuple(slice(*bounds) for bounds in piece.box)]
        dims = [axis for axis in piece.axes if axis is not None]
        rest = [axis for axis in range(box.dim()) if axis not in dims]
        made[own] = box.permute(*rest, *dims).reshape(made[own].shape)
        written[own] += 1
    assert int(written.max()) <= 1, f"{name}: written twice"
    return made


SHAPES = {"a": (4, 6), "b": (4, 6), "c": (2, 6), "v": (6,)}


class CaptureTest(unittest.TestCase):
    def check_model(self, model: torch.nn.Module, weights: Checkpoint) -> Captured:
        """Captures, loads really, and compares each element of each parameter."""
        before = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
        captured = capture(model, declared(weights))
        for name, tensor in named_tensors(model).items():
            self.assertTrue(torch.equal(tensor, before[name]), f"'{name}' was changed")
        self.assertEqual(captured.refused, {})
        model.load_weights(weights.items())  # type: ignore[operator]
        for name, tensor in named_tensors(model).items():
            if name not in captured.untouched:
                made = by_pieces(captured, name, tensor.shape, weights)
                self.assertTrue(torch.equal(tensor, made), f"'{name}' is not as it was loaded")
        return captured

    def check(
        self, shape: tuple[int, ...], load: Callable[[torch.nn.Parameter, Any], Any]
    ) -> Captured:
        return self.check_model(One(shape, load), numbered(SHAPES))

    def refused(
        self, load: Callable[[torch.nn.Parameter, Any], Any], message: str, shape: Any = (4, 6)
    ) -> None:
        model = One(shape, load)
        captured = capture(model, declared(numbered(SHAPES)))
        self.assertEqual(list(captured.refused), ["weight"])
        self.assertRegex(captured.refused["weight"], message)
        self.assertTrue(bool((model.weight == UNWRITTEN).all()))

    def test_engines_shapes_are_captured_on_every_rank_as_the_tables_have_them(self) -> None:
        dense = Config(attention_bias=True)
        experts = Config(num_experts=6, tie_word_embeddings=True, vocab_size=128)
        for config in (dense, experts):
            shapes = {
                name: tuple(tensor.shape) for name, tensor in checkpoint(config, seed=1).items()
            }
            for tp, ep in ((1, 1), (2, 1), (4, 1), (4, 2), (4, 4)):
                if ep > 1 and not config.num_experts:
                    continue
                for rank in range(tp):
                    model = PaddedModel(config, rank, tp, ep, torch.float32)
                    captured = self.check_model(model, numbered(shapes))
                    self.check_tables(model, captured, Parallel(rank, tp, ep), shapes)

    def check_tables(
        self, model: PaddedModel, captured: Captured, rank: Parallel, canonical: Any
    ) -> None:
        own = {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}
        table = rank_mapping(own, ModelShape.from_config(model.config), rank)
        for name, pieces in captured.pieces.items():
            said = pieces_of_source(own[name], table[name], canonical)
            self.assertIsNone(difference(said, pieces), name)
            again = source_of_pieces(own[name], pieces, canonical)
            self.assertEqual(pieces_of_source(own[name], again, canonical), pieces)
        for name in captured.untouched:
            self.assertIsNone(table[name], name)

    def test_views_of_both_sides_are_followed(self) -> None:
        self.check((4, 6), lambda p, w: p.data.copy_(w["a"]))
        self.check((6, 4), lambda p, w: p.data.copy_(w["a"].t()))
        self.check((6, 4), lambda p, w: p.data.t().copy_(w["a"]))
        self.check((2, 6), lambda p, w: p.copy_(w["a"].chunk(2)[1]))
        self.check((4, 3), lambda p, w: p.copy_(w["a"][:, 3:]))
        self.check((4, 3), lambda p, w: p.copy_(w["a"][:, ::2]))
        self.check((6,), lambda p, w: p.copy_(w["a"].select(0, 2)))
        self.check((2, 2, 6), lambda p, w: p.copy_(w["a"].view(2, 2, 6).transpose(0, 1)))
        self.check((24,), lambda p, w: p.view(4, 6).copy_(w["a"]))
        self.check((4, 6), lambda p, w: p.view(-1).copy_(w["a"].reshape(-1)))
        self.check((4, 6), lambda p, w: p.copy_(w["v"]))  # one row for all

        def by_index(p: torch.nn.Parameter, w: Checkpoint) -> None:
            for row in range(4):
                p[row] = w["a"][3 - row]

        self.check((4, 6), by_index)

    def test_a_parameter_with_strides_of_its_own_is_captured_by_its_elements(self) -> None:
        model = One((4, 6), lambda p, w: p.data.copy_(w["a"]))
        model.weight.data = torch.full((6, 4), UNWRITTEN).t()
        captured = self.check_model(model, numbered(SHAPES))
        self.assertEqual([piece.tensor for piece in captured.pieces["weight"]], ["a"])

    def test_buffers_that_load_weights_makes_are_followed(self) -> None:
        self.check((8, 6), lambda p, w: p.copy_(torch.cat([w["a"], w["b"]])))
        self.check((4, 9), lambda p, w: p.copy_(torch.cat([w["a"], w["b"]], 1)[:, 2:11]))
        self.check((2, 4, 6), lambda p, w: p.copy_(torch.stack([w["a"], w["b"]])))
        self.check((6, 2, 4), lambda p, w: p.copy_(torch.stack([w["a"], w["b"]]).permute(2, 0, 1)))
        self.check((6, 4), lambda p, w: p.copy_(w["a"].t().contiguous()))
        self.check((12, 2), lambda p, w: p.copy_(w["a"].t().reshape(12, 2)))
        self.check((4, 6), lambda p, w: p.copy_(w["a"].clone().to(p.dtype).to("cpu")))
        self.check((4, 6), lambda p, w: p.copy_(w["a"].index_select(0, torch.tensor([2, 3, 0, 1]))))
        self.check((2, 6), lambda p, w: p.copy_(w["a"][torch.tensor([3, -3])]))
        self.check((2, 6), lambda p, w: p.copy_(w["a"][torch.arange(4) % 2 == 1]))
        self.check((4, 8), lambda p, w: p.copy_(torch.nn.functional.pad(w["a"], (0, 2))))

        def by_buffer(p: torch.nn.Parameter, w: Checkpoint) -> None:
            buffer = torch.empty_like(p)
            buffer[:4].copy_(w["a"])
            buffer[4:] = w["c"]
            p.data.copy_(buffer)

        self.check((6, 6), by_buffer)

        def by_padding(p: torch.nn.Parameter, w: Checkpoint) -> None:
            p[:4].copy_(torch.nn.functional.pad(w["a"], (1, 1, 0, 0)))
            p[4:].copy_(torch.nn.functional.pad(w["c"], (2, 0)))

        self.check((6, 8), by_padding)

        def by_zeros(p: torch.nn.Parameter, w: Checkpoint) -> None:
            buffer = p.new_zeros(6, 6)
            buffer.narrow(0, 1, 4).copy_(w["a"])
            p.data.copy_(buffer)

        self.check((6, 6), by_zeros)

    def test_what_is_written_before_can_be_copied_on(self) -> None:
        def twice(p: torch.nn.Parameter, w: Checkpoint) -> None:
            p[:4].copy_(w["a"])
            p[4:].copy_(p[1:3])

        self.check((6, 6), twice)

    def test_neighbours_are_joined_to_the_whole_tensor(self) -> None:
        def by_parts(p: torch.nn.Parameter, w: Checkpoint) -> None:
            for begin, size in ((0, 1), (1, 2), (3, 1)):
                p.narrow(0, begin, size).copy_(w["a"].narrow(0, begin, size))

        captured = self.check((4, 6), by_parts)
        pieces = captured.pieces["weight"]
        self.assertEqual(source_of_pieces((4, 6), pieces, SHAPES), "a")

    def test_computed_elements_are_refused_with_tensor_and_operation(self) -> None:
        self.refused(lambda p, w: p.copy_(w["a"] + 1), r"computes it by add from 'a'")
        self.refused(lambda p, w: p.copy_((w["a"] * 2)[:]), r"computes it by mul from 'a'")
        self.refused(lambda p, w: p.copy_(torch.cat([w["a"], -w["b"]])[:4]), r"neg from 'b'")
        self.refused(lambda p, w: p.copy_(w["a"].flip(0)), r"flip from 'a'")
        self.refused(lambda p, w: p.copy_(w["a"].half()), "converts torch.float32 to torch.float16")
        self.refused(lambda p, w: p.copy_(w["a"].view(torch.int32)), "takes torch.float32 for torch.int32")
        self.refused(lambda p, w: p.copy_(w["a"]).mul_(2), r"computes it by mul_")
        self.refused(lambda p, w: p.add_(w["a"]), r"computes it by add_ from 'a'")

        self.refused(lambda p, w: p.copy_(w["a"][[3, 2, 1, 0]]), "an index without values from 'a'")

        def quantised(p: torch.nn.Parameter, w: Checkpoint) -> None:
            scale = w["a"].abs().amax(1, keepdim=True)
            p.data.copy_((w["a"] / scale).round())

        self.refused(quantised, "computes it by round from 'a'|by div from 'a'")

    def test_a_checkpoint_of_another_type_is_captured_as_of_the_type_that_the_engine_keeps(self) -> None:
        for load in (
            lambda p, w: p.copy_(w["a"]),
            lambda p, w: p.data.copy_(w["a"].to(p.dtype)),
        ):
            model = One((4, 6), load)
            model.weight.data = model.weight.data.bfloat16()
            captured = capture(model, declared(numbered(SHAPES)))
            self.assertEqual(captured.refused, {})
            self.assertEqual(source_of_pieces((4, 6), captured.pieces["weight"], SHAPES), "a")

    def test_elements_that_are_not_written_exactly_once_are_refused(self) -> None:
        self.refused(
            lambda p, w: (p.copy_(w["a"]), p[1:3].copy_(w["c"])),
            "writes 12 of its elements twice, from a and c",
        )
        self.refused(
            lambda p, w: (p.copy_(w["a"]), p[3:].fill_(0)), "twice, from a constant and a"
        )
        self.refused(
            lambda p, w: p.copy_(torch.empty_like(p)), "of which load_weights wrote 0"
        )
        self.refused(lambda p, w: p.copy_(torch.rand(4, 6)), "in no tensor of the checkpoint")

    def test_the_same_copy_twice_is_one(self) -> None:
        self.check((4, 6), lambda p, w: (p.copy_(w["a"]), p.copy_(w["a"])))

    def test_a_parameter_that_is_not_loaded_is_untouched(self) -> None:
        captured = capture(One((4, 6), lambda p, w: None), declared(numbered(SHAPES)))
        self.assertEqual(captured.untouched, {"weight"})

    def failing(self, load: Callable[[One, Checkpoint], Any], message: str) -> None:
        """The capture fails with the message, and leaves the model as it was."""
        model = One((4, 6), lambda p, w: load(model, w))
        model.plain = torch.full((4, 6), UNWRITTEN)
        weight, plain, address = model.weight, model.plain, model.weight.data_ptr()
        with self.assertRaisesRegex(dws.LayoutError, message):
            capture(model, declared(numbered(SHAPES)))
        self.assertIs(model.weight, weight)
        self.assertIs(model.plain, plain)
        self.assertEqual(model.weight.data_ptr(), address)
        self.assertTrue(bool((weight == UNWRITTEN).all()) and bool((plain == UNWRITTEN).all()))

    def test_the_memory_that_weights_leave_afterwards_is_not_told_as_held(self) -> None:
        self.addCleanup(gc.enable)
        for load in (lambda weight, of: weight.data.copy_(of["a"]), lambda weight, of: of["none"]):
            model = One((4, 6), load)
            model.weight.numpy()  # as an attach does, which copies it
            gc.collect()
            gc.disable()
            with contextlib.suppress(dws.LayoutError):
                capture(model, declared(numbered(SHAPES)))
            with mock.patch.object(aliases._LOG, "warning") as warned:
                dws.bind(model, {"weight": torch.zeros(4, 6)})
            warned.assert_not_called()

    def test_an_error_of_load_weights_names_the_canonical_tensor_and_changes_nothing(self) -> None:
        def raising(model: One, w: Checkpoint) -> None:
            model.weight.data.copy_(w["a"])
            model.plain = None  # type: ignore[assignment]
            raise KeyError("no such weight")

        self.failing(raising, "failed at canonical tensor 'v': KeyError: 'no such weight'")
        self.failing(lambda m, w: w["a"].sum().item(), "failed at canonical tensor 'v'")

    def test_what_is_put_in_the_place_of_a_parameter_is_put_back_and_refused(self) -> None:
        def replaced(model: One, w: Checkpoint) -> None:
            model.weight = torch.nn.Parameter(torch.zeros(4, 6), requires_grad=False)

        def moved(model: One, w: Checkpoint) -> None:
            model.weight.data = torch.zeros(4, 6)

        def derived(model: One, w: Checkpoint) -> None:
            model.weight.data.copy_(w["a"])
            model.plain = w["a"] * 2

        self.failing(derived, r"sets \['plain'\] to other tensors")
        self.failing(replaced, r"sets \['weight'\] to other tensors")
        self.failing(moved, r"sets \['weight'\] to other tensors|incompatible tensor type")

    def test_writes_into_tensors_that_are_no_parameters_are_refused(self) -> None:
        self.failing(lambda m, w: m.plain.copy_(w["a"]), "neither a parameter nor a buffer")
        self.failing(lambda m, w: m.plain.zero_(), "neither a parameter nor a buffer")

    def test_tables_that_differ_are_shown(self) -> None:
        model = One((4, 6), lambda p, w: (p[:2].copy_(w["a"][2:]), p[2:].copy_(w["c"])))
        captured = self.check_model(model, numbered(SHAPES))
        table = dws.Fused([dws.Slice("a", 0, 0, 2), "c"], sizes=[2, 2])
        said = pieces_of_source((4, 6), table, SHAPES)
        self.assertEqual(
            difference(said, captured.pieces["weight"]),
            "[0:2, 0:6]: table says 'a'[0:2, 0:6], load_weights says 'a'[2:4, 0:6]",
        )
        half = pieces_of_source((4, 6), dws.Parts([dws.Part("c", [(2, 4)])]), SHAPES)
        self.assertEqual(
            difference(half, captured.pieces["weight"]),
            "[0:2, 0:6]: load_weights says 'a'[2:4, 0:6], table has nothing for all of it",
        )

    def test_a_transposed_tensor_is_the_source_of_a_view(self) -> None:
        def turned(shape: tuple[int, ...], load: Any, shapes: Any) -> Any:
            captured = self.check_model(One(shape, load), numbered(shapes))
            return source_of_pieces(shape, captured.pieces["weight"], shapes)

        whole = turned((6, 4), lambda p, w: p.copy_(w["a"].t()), SHAPES)
        self.assertEqual(whole, Viewed("a", (6, 4), (1, 0)))
        # As gpt-oss has its experts: a rank's columns of each, in front of padding.
        experts = {"up": (3, 4, 10)}
        rank = turned((3, 6, 4), lambda p, w: p.copy_(w["up"][:, :, 2:8].permute(0, 2, 1).contiguous()), experts)
        self.assertEqual(rank, Viewed(Slice("up", 2, 2, 8), (3, 6, 4), (0, 2, 1)))
        padded = turned((3, 7, 4), lambda p, w: (p.zero_(), p[:, :6].copy_(w["up"][:, :, :6].permute(0, 2, 1))), experts)
        self.assertEqual(
            padded, Viewed(Parts([Part(Slice("up", 2, 0, 6), [(0, 3), (0, 4), (0, 6)])]), (3, 7, 4), (0, 2, 1))
        )
        one = turned((1, 6, 4), lambda p, w: p.copy_(w["up"][1:2, :, 2:8].permute(0, 2, 1)), experts)
        self.assertEqual(one, Viewed(Box("up", {0: (1, 2), 2: (2, 8)}), (1, 6, 4), (0, 2, 1)))

    def test_a_tensor_with_one_dimension_in_two_is_the_source_of_a_view(self) -> None:
        shapes = {"blocks": (2, 3, 4, 16)}

        def source(shape: tuple[int, ...], load: Any) -> Any:
            captured = self.check_model(One(shape, load), numbered(shapes))
            return source_of_pieces(shape, captured.pieces["weight"], shapes)

        whole = source((2, 3, 64), lambda p, w: p.copy_(w["blocks"].view(2, 3, -1)))
        self.assertEqual(whole, Viewed("blocks", (2, 3, 4, 16), (0, 1, 2, 3)))
        # A rank's columns; and with padding behind rows and columns.
        part = source((2, 3, 32), lambda p, w: p.copy_(w["blocks"].view(2, 3, -1)[..., 32:]))
        self.assertEqual(part, Viewed(Slice("blocks", 2, 2, 4), (2, 3, 2, 16), (0, 1, 2, 3)))
        padded = source(
            (2, 4, 80), lambda p, w: (p.zero_(), p[:, :3, :64].copy_(w["blocks"].view(2, 3, -1)))
        )
        box = Part("blocks", [(0, 2), (0, 3), (0, 4), (0, 16)])
        self.assertEqual(padded, Viewed(Parts([box]), (2, 4, 5, 16), (0, 1, 2, 3)))

    def test_a_tensor_may_have_a_dimension_of_one_more_or_less(self) -> None:
        shapes = {"row": (1, 5), "flat": (5,)}

        def source(shape: tuple[int, ...], load: Any) -> Any:
            captured = self.check_model(One(shape, load), numbered(shapes))
            return source_of_pieces(shape, captured.pieces["weight"], shapes)

        # Ernie-4.5-MoE has the bias of its router so.
        self.assertEqual(source((5,), lambda p, w: p.copy_(w["row"].squeeze(0))), Viewed("row", (1, 5), (0, 1)))
        self.assertEqual(source((1, 5), lambda p, w: p.copy_(w["flat"].unsqueeze(0))), Parts([Part("flat", [0, (0, 5)])]))

    def test_elements_that_stay_as_they_are_are_counted(self) -> None:
        captured = capture(One((4, 6), lambda p, w: p[:2].copy_(w["c"])), declared(numbered(SHAPES)))
        self.assertEqual((captured.refused, captured.padded), ({}, {"weight": 12}))
        box = Part("c", [(0, 2), (0, 6)])
        self.assertEqual(source_of_pieces((4, 6), captured.pieces["weight"], SHAPES), Parts([box]))
        filled = self.check((4, 6), lambda p, w: (p.zero_(), p[:2].copy_(w["c"])))
        self.assertEqual(filled.padded, {})

    def test_a_tensor_that_one_rank_sets_to_zero_is_a_constant_there(self) -> None:
        model = One((4, 6), lambda p, w: (w["a"].zero_(), p.copy_(w["a"])))
        captured = capture(model, declared(numbered(SHAPES)))
        self.assertEqual(captured.refused, {})
        self.assertIsNone(source_of_pieces((4, 6), captured.pieces["weight"], SHAPES))
        self.failing(lambda m, w: (w["a"][:2].zero_(), m.weight.copy_(w["a"])), "writes into 'a'")

    def test_what_attaching_cannot_express_is_refused_by_name(self) -> None:
        shapes = {"a": (4, 6), "plain": (3, 4)}
        load = lambda p, w: (p[:3].copy_(w["a"].t()[:3]), p[3:].copy_(w["plain"]))
        turned = self.check_model(One((6, 4), load), numbered(shapes)).pieces["weight"]
        with self.assertRaisesRegex(dws.LayoutError, "'plain'.* is transposed in another way than other parts"):
            source_of_pieces((6, 4), turned, shapes)
        corner = self.check((2, 3), lambda p, w: p.copy_(w["a"][1:3, 2:5])).pieces["weight"]
        box = dws.Box("a", {0: (1, 3), 1: (2, 5)})
        self.assertEqual(source_of_pieces((2, 3), corner, SHAPES), box)
        self.assertEqual(pieces_of_source((2, 3), box, SHAPES), corner)


if __name__ == "__main__":
    unittest.main()
