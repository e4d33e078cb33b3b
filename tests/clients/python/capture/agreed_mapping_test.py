"""dws.plugins.agreed_mapping: tables and load_weights have to say the same, and either does where the other
cannot say anything."""

from __future__ import annotations

import os
import tempfile
import unittest
from typing import Any, Optional

import torch

import dws
from dws.plugins.agreed_mapping import Agreed, Weights, agreed_mapping
from dws.plugins.canonical import ModelShape, Parallel
from dws.plugins.mapping import rank_mapping
from dws.torch_module import named_tensors
from tests.clients.python.engine_models import (
    Checkpoint,
    Config,
    PaddedModel,
    checkpoint,
    save_checkpoint,
)

LLAMA = Config(num_hidden_layers=1)
MOE = Config(num_hidden_layers=1, num_experts=6, tie_word_embeddings=True)
QKV = "model.layers.0.self_attn.qkv_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
NORM = "model.norm.weight"


class FusedModel(PaddedModel):
    """A model of an architecture whose checkpoint has one tensor for query, key and value."""

    def load_weights(self, weights: Any) -> None:
        split = {}
        c = self.config
        query, key = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        for name, loaded in dict(weights).items():
            if "qkv_proj" not in name:
                split[name] = loaded
                continue
            parts = loaded.split([query, key, key])
            split.update((name.replace("qkv", letter), part) for letter, part in zip("qkv", parts))
        super().load_weights(split)


def fused(weights: Checkpoint) -> Checkpoint:
    found = dict(weights)
    parts = [found.pop(QKV.replace("qkv", letter)) for letter in "qkv"]
    return {**found, QKV: torch.cat(parts)}


class AgreedMappingTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def agreed(
        self, model: PaddedModel, weights: Checkpoint, config: Any = None, **given: Any
    ) -> Agreed:
        save_checkpoint(os.path.join(self.folder, "model.safetensors"), weights)
        return self.asked(model, Weights(self.folder), config, **given)

    def asked(
        self, model: PaddedModel, weights: Optional[Weights], config: Any = None, **given: Any
    ) -> Agreed:
        rank = Parallel(model.tp_rank, model.tp_size, model.ep_size)
        return agreed_mapping(model, config or model.config, rank, given, weights)

    def refused(self, model: PaddedModel, message: str, weights: Optional[Checkpoint] = None) -> None:
        before = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
        with self.assertRaisesRegex(dws.LayoutError, message):
            self.agreed(model, weights or checkpoint(model.config, seed=1))
        for name, tensor in named_tensors(model).items():
            self.assertTrue(torch.equal(tensor, before[name]), f"'{name}' was changed")

    def test_where_both_agree_the_mapping_is_that_of_the_table(self) -> None:
        for config, tp, ep in ((LLAMA, 1, 1), (LLAMA, 4, 1), (MOE, 2, 1), (MOE, 4, 2)):
            for rank in range(tp):
                model = PaddedModel(config, rank, tp, ep)
                found = self.agreed(model, checkpoint(config, seed=1))
                shapes = {name: tuple(t.shape) for name, t in named_tensors(model).items()}
                table = rank_mapping(
                    shapes, ModelShape.from_config(config), Parallel(rank, tp, ep)
                )
                self.assertEqual(found.mapping, table)
                self.assertRegex(found.how, f"agree on {len(shapes)} parameters \\(")

    def test_a_checkpoint_in_another_type_than_the_engine_agrees_too(self) -> None:
        found = self.agreed(PaddedModel(LLAMA, 1, 2), checkpoint(LLAMA, 1, torch.float32))
        self.assertNotIn("alone", found.how)

    def test_an_architecture_without_a_table_is_mapped_by_load_weights_alone(self) -> None:
        weights = fused(checkpoint(LLAMA, seed=1))
        model = FusedModel(LLAMA, 1, 2)
        found = self.agreed(model, weights)
        self.assertRegex(found.how, f"load_weights alone says it of 1: {QKV} ")
        self.assertEqual(
            found.mapping[QKV],
            dws.Parts(
                [
                    dws.Part(dws.Slice(QKV, 0, 16, 32), [(0, 16), (0, 24)]),
                    dws.Part(dws.Slice(QKV, 0, 36, 40), [(16, 20), (0, 24)]),
                    dws.Part(dws.Slice(QKV, 0, 44, 48), [(20, 24), (0, 24)]),
                ]
            ),
        )
        # Nor is a config needed that a table understands.
        found = self.agreed(model, weights, config=object())
        self.assertIn(f"load_weights alone says it of {len(found.mapping) - 1}:", found.how)

    def test_extents_that_a_checkpoint_has_beside_its_weights_are_nobodys(self) -> None:
        at = "model.layers.0.self_attn"

        class Shaped(PaddedModel):
            """Writes the extents of all that is fused into one parameter."""

            def load_weights(self, weights: Any) -> None:
                plain = []
                for name, loaded in weights:
                    if name.endswith("weight_shape"):
                        self.get_submodule(f"{at}.qkv_proj").weight_shape.data.copy_(loaded)
                    else:
                        plain.append((name, loaded))
                super().load_weights(plain)

        model = Shaped(LLAMA, 0, 1)
        extents = torch.tensor([1, 2])
        layer = model.get_submodule(f"{at}.qkv_proj")
        layer.weight_shape = torch.nn.Parameter(extents, requires_grad=False)
        names = [f"{at}.{letter}_proj.weight_shape" for letter in "qk"]
        found = self.agreed(model, {**checkpoint(LLAMA, seed=1), **dict.fromkeys(names, extents)})
        self.assertIsNone(found.mapping[f"{at}.qkv_proj.weight_shape"])
        self.assertEqual(found.excluded, tuple(names))

    def test_experts_that_are_not_in_a_row_are_mapped_by_load_weights_alone(self) -> None:
        class RoundRobin(PaddedModel):
            def expert_map(self) -> torch.Tensor:
                found = torch.full((self.config.num_experts,), -1, dtype=torch.int32)
                own = range(self.tp_rank, self.config.num_experts, self.tp_size)
                found[list(own)] = torch.arange(len(own), dtype=torch.int32)
                return found

        model = RoundRobin(MOE, 1, 2, 2)
        save_checkpoint(os.path.join(self.folder, "model.safetensors"), checkpoint(MOE, seed=1))
        rank = Parallel(1, 2, 2, experts_in_row=False)
        found = agreed_mapping(model, MOE, rank, {}, Weights(self.folder))
        stack = found.mapping["model.layers.0.mlp.experts.w2_weight"]
        assert isinstance(stack, dws.Parts)
        names = [f"model.layers.0.mlp.experts.{expert}.down_proj.weight" for expert in (1, 3, 5)]
        self.assertEqual([part.source for part in stack.parts], names)
        self.assertRegex(found.how, "load_weights alone says it of 2: ")
        self.refused(model, "'model.*w13_weight'.*table says '.*experts.3.*load_weights says '.*experts.1")

    def test_a_difference_is_refused_with_the_ranges_and_what_each_says(self) -> None:
        class Swapped(PaddedModel):
            def _merged(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
                super()._merged(parameter, loaded, "up" if shard == "gate" else "gate")

        self.refused(
            Swapped(LLAMA, 1, 2),
            r"gate_up_proj.weight' \[48, 24\]: the table and the engine differ, \[0:24, 0:24\]: table "
            r"says '[a-z0-9._]*gate_proj.weight'\[24:48, 0:24\], load_weights says "
            r"'[a-z0-9._]*up_proj.weight'\[24:48, 0:24\]",
        )

    def test_a_parameter_that_load_weights_computes_is_refused_although_the_table_has_it(self) -> None:
        class PlusOne(PaddedModel):
            def _whole(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
                parameter.copy_(loaded + 1)

        self.refused(PlusOne(LLAMA, 0, 1), "table says '.*norm.weight'.*load_weights computes it by add")

    def test_a_parameter_that_load_weights_leaves_out_is_refused_although_the_table_has_it(self) -> None:
        weights = checkpoint(LLAMA, seed=1)

        class Lazy(PaddedModel):
            def load_weights(self, weights: Any) -> None:
                super().load_weights({n: t for n, t in dict(weights).items() if n != NORM})

        self.refused(Lazy(LLAMA, 0, 1), f"'{NORM}'.*load_weights copies nothing into it", weights)

    def test_a_parameter_that_neither_knows_is_refused_unless_the_engine_owns_it(self) -> None:
        model = PaddedModel(LLAMA, 0, 1)
        model.register_parameter("table", torch.nn.Parameter(torch.ones(3), requires_grad=False))
        self.refused(model, r"'table' \[3\]: load_weights copies nothing into it; and the tables do not know it")
        found = self.agreed(model, checkpoint(LLAMA, seed=1), table=None)
        self.assertIsNone(found.mapping["table"])

    def test_what_attaching_cannot_express_is_refused_precisely(self) -> None:
        class Turned(PaddedModel):
            def _row(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
                parameter.copy_(loaded.t().reshape(parameter.shape))

        self.refused(Turned(LLAMA, 0, 1), "the table and the engine differ.*not followed")


    def test_a_part_that_is_cut_on_two_dimensions_is_a_box(self) -> None:
        class Corner(FusedModel):
            def _qkv(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
                super()._qkv(parameter[:, 2:], loaded[:, 2:], shard)
                if shard == "q":
                    parameter[:, :2].fill_(0)

        found = self.agreed(Corner(LLAMA, 1, 2), fused(checkpoint(LLAMA, seed=1)))
        source = found.mapping[QKV]
        assert isinstance(source, dws.Parts)
        wanted = dws.Part(dws.Box(QKV, {0: (16, 32), 1: (2, 24)}), [(0, 16), (2, 24)])
        self.assertEqual(source.parts[0], wanted)

    def test_without_a_capture_the_table_is_used_alone_and_why_is_said(self) -> None:
        class Failing(PaddedModel):
            def load_weights(self, weights: Any) -> None:
                raise RuntimeError("not again")

        found = self.agreed(Failing(LLAMA, 0, 1), checkpoint(LLAMA, seed=1))
        self.assertRegex(found.how, "table alone.*of Failing .*RuntimeError: not again")
        found = self.asked(PaddedModel(LLAMA, 0, 1), None)
        self.assertRegex(found.how, "table alone.*option checkpoint")
        found = self.asked(PaddedModel(LLAMA, 0, 1), Weights("some/model"))
        self.assertRegex(found.how, "table alone.*'some/model' is no folder")
        with self.assertRaisesRegex(dws.LayoutError, "num_attention_heads.*cannot be asked.*no folder"):
            self.asked(PaddedModel(LLAMA, 0, 1), Weights("some/model"), config=object())


if __name__ == "__main__":
    unittest.main()
