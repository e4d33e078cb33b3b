"""dws.plugins.mapping gives the same weights, bit for bit, as the engines' own loading, and writes each
canonical element once."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import torch

import dws
from dws.attachment import Attachment
from dws.mapping import Part, Parts, Place, Placed, Slice, Viewed, parameter_views
from dws.plugins.canonical import ModelShape, Parallel, slice_grid
from dws.plugins.mapping import rank_mapping
from dws.torch_module import named_tensors
from tests.clients.python.engine_models import Checkpoint, Config, RankModel, checkpoint

LLAMA = Config()
QWEN_MOE = Config(num_experts=6, tie_word_embeddings=True, attention_bias=True, vocab_size=128)


def bits(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().contiguous().view(torch.int16).numpy()


def shapes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}


def attached(model: RankModel, config: Config, rank: Parallel) -> Attachment:
    """The model in shared memory, with the description that the receiver gets."""
    mapping = rank_mapping(shapes_of(model), ModelShape.from_config(config), rank)
    attachment = Attachment(model, mapping)
    attachment.describe()
    attachment.bind()
    return attachment


def write(attachment: Attachment, weights: Checkpoint, counts: dict[str, Any]) -> None:
    """Writes like a receiver: every view gets its range of its canonical tensor."""
    memory = np.frombuffer(attachment._region._map, np.int16)  # type: ignore[union-attr]
    for view in attachment.request.views:
        picked: Any = (slice(None),) * len(view.shape)
        if not view.whole:
            picked = (slice(None),) * view.dim + (slice(view.begin, view.end),)
        source = bits(weights[view.tensor])[picked]
        if source.shape != tuple(view.shape):
            raise AssertionError(f"{view.engine_name}: {view.shape} for {source.shape}")
        live = np.lib.stride_tricks.as_strided(
            memory[view.offset_bytes // 2 :], view.shape, [2 * stride for stride in view.strides]
        )
        live[...] = source
        counts[view.tensor][picked] += 1


class RankMappingTest(unittest.TestCase):
    def check(self, config: Config, tp: int, ep: int = 1) -> dict[str, Any]:
        """Maps all ranks and compares them; returns how often each canonical element was written."""
        weights = checkpoint(config, seed=tp)
        shape = ModelShape.from_config(config)
        canonical = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        grid = slice_grid(canonical, shape, [(tp, ep)])
        counts = {name: np.zeros(extents, np.int64) for name, extents in canonical.items()}
        for rank in range(tp):
            model, expected = (RankModel(config, rank, tp, ep) for _ in range(2))
            attachment = attached(model, config, Parallel(rank, tp, ep))
            write(attachment, weights, counts)
            expected.load_weights(weights)
            for name, tensor in expected.named_parameters():
                if not np.array_equal(bits(tensor), bits(model.tensor(name))):
                    self.fail(f"rank {rank} of {tp}: '{name}' is not as the engine loads it")
            self.check_grid(attachment, canonical, grid)
        return counts

    def check_grid(self, attachment: Attachment, canonical: Any, grid: dict[str, dws.Cut]) -> None:
        """Checks that every range is a union of slices of the grid, as the receiver requires."""
        for view in attachment.request.views:
            extent = canonical[view.tensor][view.dim] if canonical[view.tensor] else 1
            if view.whole or (view.begin, view.end) == (0, extent):
                continue
            cut = grid[view.tensor]
            self.assertEqual(cut.dim, view.dim, view.tensor)
            bounds = {0, *cut.boundaries, extent}
            self.assertLessEqual({view.begin, view.end}, bounds, view.tensor)

    def assert_replicas(self, counts: dict[str, Any], wanted: Any) -> None:
        for name, written in counts.items():
            copies = wanted(name)
            self.assertTrue((written == copies).all(), f"'{name}', expected {copies} copies")

    def test_a_llama_is_loaded_bit_for_bit_and_each_element_once(self) -> None:
        for tp in (1, 2, 4):
            counts = self.check(LLAMA, tp)
            replicas = max(1, tp // LLAMA.num_key_value_heads)
            self.assert_replicas(
                counts,
                lambda name: (
                    tp
                    if "norm" in name
                    else replicas if "k_proj" in name or "v_proj" in name else 1
                ),
            )

    def test_biases_of_qkv_and_tied_embeddings_follow_their_tensors(self) -> None:
        config = Config(attention_bias=True, tie_word_embeddings=True, num_key_value_heads=4)
        for tp in (1, 2, 4):
            counts = self.check(config, tp)
            self.assertNotIn("lm_head.weight", counts)
            self.assert_replicas(counts, lambda name: tp if "norm" in name else 1)

    def test_expert_stacks_are_split_inside_experts_or_between_them(self) -> None:
        for tp, ep in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 4), (4, 2)):
            counts = self.check(QWEN_MOE, tp, ep)
            whole = ("norm", "mlp.gate.", "shared_expert_gate")
            replicas = max(1, tp // QWEN_MOE.num_key_value_heads)
            self.assert_replicas(
                counts,
                lambda name: (
                    tp
                    if any(part in name for part in whole)
                    else replicas if "k_proj" in name or "v_proj" in name else 1
                ),
            )

    def test_a_vocabulary_part_that_is_only_padding_is_not_mapped(self) -> None:
        model = RankModel(LLAMA, 3, 4)
        mapping = rank_mapping(shapes_of(model), ModelShape.from_config(LLAMA), Parallel(3, 4))
        self.assertIsNone(mapping["model.embed_tokens.weight"])
        self.assertIsNone(mapping["lm_head.weight"])

    def test_a_separate_copy_of_a_tied_head_is_a_replica_of_the_embedding(self) -> None:
        config = Config(tie_word_embeddings=True)
        shapes = {name: (96, 24) for name in ("model.embed_tokens.weight", "lm_head.weight")}
        mapping = rank_mapping(shapes, ModelShape.from_config(config), Parallel(0, 2))
        self.assertEqual(mapping["lm_head.weight"], mapping["model.embed_tokens.weight"])

    def test_unknown_parameters_and_wrong_shapes_are_refused_by_name(self) -> None:
        shape = ModelShape.from_config(LLAMA)
        for name, extents, rank, message in (
            (
                "model.layers.0.mlp.down_proj.weight_scale_inv",
                (1,),
                Parallel(),
                "weight_scale_inv'.*kind",
            ),
            ("model.layers.0.self_attn.kv_b_proj.weight", (8, 8), Parallel(), "kv_b_proj.*given="),
            ("a.qkv_proj.weight", (40, 24), Parallel(), "qkv_proj.*expected 48 on dimension 0"),
            ("model.embed_tokens.weight", (131, 24), Parallel(), "expected 192 .*padded"),
            ("a.qkv_proj.weight", (16, 24), Parallel(0, 3), "not a multiple"),
            ("a.experts.w13_weight", (2, 8, 4), Parallel(), "share of 0 experts"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, message):
                rank_mapping({name: extents}, shape, rank)
        with self.assertRaisesRegex(dws.LayoutError, "the groups divide"):
            Parallel(0, 4, 3)
        with self.assertRaisesRegex(dws.LayoutError, "vocab_size=None"):
            ModelShape.from_config(type("C", (), {"num_attention_heads": 4, "hidden_size": 8}))
        given = {"x.scale": None, "y": "z"}
        found = rank_mapping({"x.scale": (1,), "y": (2,)}, shape, Parallel(), given)
        self.assertEqual(found, given)

    def test_one_grid_serves_engines_of_different_sizes(self) -> None:
        weights = checkpoint(LLAMA, 1)
        canonical = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        grid = slice_grid(canonical, ModelShape.from_config(LLAMA), [(1, 1), (2, 1), (4, 1)])
        self.assertEqual(grid["model.embed_tokens.weight"], dws.Cut((48, 96), 0))
        self.assertEqual(grid["model.layers.0.self_attn.k_proj.weight"], dws.Cut((4,), 0))
        self.assertEqual(grid["model.layers.1.self_attn.o_proj.weight"], dws.Cut((8, 16, 24), 1))
        self.assertNotIn("model.norm.weight", grid)
        for tp in (1, 2, 4):
            for rank in range(tp):
                model = RankModel(LLAMA, rank, tp)
                attachment = attached(model, LLAMA, Parallel(rank, tp))
                self.check_grid(attachment, canonical, grid)


class PartsTest(unittest.TestCase):
    def test_boxes_outside_the_parameter_are_refused_by_name(self) -> None:
        array = {"a": np.zeros((4, 2), np.float32)}
        for box, message in (
            ([(0, 5)], r"'a\[\(0, 5\)\]': \[0, 5\) of dimension 0, which has 4"),
            ([0, 2], r"\[2, 3\) of dimension 1"),
            ([0, 0, 0], "the box has 3 dimensions"),
        ):
            source = dws.Parts([dws.Part("x", box)])
            with self.assertRaisesRegex(dws.LayoutError, message):
                Attachment(array, {"a": source}).describe()


class ViewedTest(unittest.TestCase):
    """A parameter that is described to the receiver as a view of it."""

    @staticmethod
    def views(shape: tuple[int, ...], strides: tuple[int, ...], source: Viewed) -> list[Any]:
        placed = Placed("weight", dws.DType.U8, shape, strides, Place(1, 100))
        return [
            (list(view.shape), list(view.strides), view.region, view.offset_bytes, view.tensor)
            for view in parameter_views(placed, source)
        ]

    def test_a_dimension_that_is_split_has_the_strides_of_its_parts(self) -> None:
        split = Viewed("blocks", (2, 3, 4, 16), (0, 1, 2, 3))
        self.assertEqual(self.views((2, 3, 64), (192, 64, 1), split), [([2, 3, 4, 16], [192, 64, 16, 1], 1, 100, "blocks")])
        padded = Viewed(Parts([Part("blocks", [(0, 2), (0, 3), (0, 4), (0, 16)])]), (2, 4, 5, 16), (0, 1, 2, 3))
        self.assertEqual(self.views((2, 4, 80), (320, 80, 1), padded), [([2, 3, 4, 16], [320, 80, 16, 1], 1, 100, "blocks")])

    def test_dimensions_in_another_order_have_their_strides(self) -> None:
        turned = Viewed(Slice("up", 2, 4, 7), (2, 3, 8), (0, 2, 1))
        self.assertEqual(self.views((2, 3, 8), (24, 8, 1), turned), [([2, 8, 3], [24, 1, 8], 1, 100, "up")])

    def test_a_shape_that_does_not_split_the_parameter_is_refused(self) -> None:
        for shape in ((2, 96), (6, 32), (2, 3, 32, 1, 2), (2, 3)):
            with self.assertRaisesRegex(dws.LayoutError, r"'weight' \[2, 3, 32\] cannot be viewed as"):
                self.views((2, 3, 32), (96, 32, 1), Viewed("a", shape, tuple(range(len(shape)))))

    def test_numpy_and_torch_give_the_same_view(self) -> None:
        turned = Viewed("up", (2, 3, 4, 2), (0, 2, 1, 3))
        numbers = np.arange(48).reshape(2, 3, 8)
        self.assertTrue(np.array_equal(turned.of(numbers), turned.of(torch.from_numpy(numbers)).numpy()))
        turned.of(numbers)[1, 3, 2, 1] = -1
        self.assertEqual(numbers[1, 2, 7], -1)


if __name__ == "__main__":
    unittest.main()
