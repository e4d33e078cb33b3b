"""dws.declare.from_megatron against a plain cutter of checkpoints, and the publishing of the
tensors that it declares."""

from __future__ import annotations

import math
import os
import random
import unittest
from typing import Any, Optional, Sequence
from unittest import mock

import torch

import dws
from dws.declare import MegatronTensors, Parallel, from_megatron
from dws.trainers.megatron_weights import MegatronWeights, copy_piece
from dws.trainers.published_types import PublishedTypes
from dws.trainers.publisher import Publisher
from dws.trainers.shares import Share, shares_of
from tests.clients.python.torch_gpu import OwnMemory, TorchGpu, content
from tests.clients.python.trainers import naive_megatron as naive
from tests.clients.python.trainers.naive_megatron import MODELS, Place
from tests.clients.python.trainers.sender_case import SenderCase

SEED = int(os.environ.get("DWS_TEST_SEED", random.SystemRandom().randrange(1 << 32)))

# Published, in 10^9.
PARAMETERS = {
    "llama-3-8b": 8.03,
    "llama-3-70b": 70.6,
    "qwen2-0.5b": 0.49,
    "qwen2-7b": 7.62,
    "qwen3-0.6b": 0.6,
    "qwen3-8b": 8.19,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235,
    "glm-4.5": 355,
    "glm-4.5-air": 106,
    "deepseek-v3": 671,
    "kimi-k2": 1026,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
}
# The cuts that their trainers might use.
PLACES = {
    "llama-3-8b": Place(tp=2, dp=2),
    "llama-3-70b": Place(tp=8, pp=4),
    "qwen2-0.5b": Place(tp=2, pp=2),
    "qwen2-7b": Place(tp=4, pp=2),
    "qwen3-0.6b": Place(dp=2),
    "qwen3-8b": Place(tp=8, dp=2),
    "qwen3-30b-a3b": Place(tp=4, dp=2, ep=8),
    "qwen3-235b-a22b": Place(tp=8, pp=2, dp=4, ep=16, etp=2),
    "glm-4.5": Place(tp=8, pp=4, dp=2, ep=16),
    "glm-4.5-air": Place(tp=4, pp=2, dp=4, ep=8, etp=2),
    "deepseek-v3": Place(tp=8, dp=4, ep=32),
    "kimi-k2": Place(tp=8, dp=4, ep=16, etp=2),
    "gpt-oss-20b": Place(tp=8, dp=2, ep=8),
    "gpt-oss-120b": Place(tp=16, dp=4, ep=64),
}


def parallel(place: Place) -> Parallel:
    names = ("tp", "pp", "ep", "etp", "tp_rank", "pp_rank", "ep_rank", "etp_rank")
    return Parallel(**{name: getattr(place, name) for name in names})


def whole(config: naive.Config, seed: Optional[int] = None) -> naive.Tensors:
    """Values that are all different; without a seed only shapes."""
    found, first = {}, seed
    for name, shape in naive.checkpoint_shapes(config):
        if first is None:
            found[name] = torch.empty(shape, dtype=torch.bfloat16, device="meta")
            continue
        count = math.prod(shape)
        found[name] = torch.arange(first, first + count).reshape(shape)
        first += count
    return found


def declared(config: naive.Config, tensors: naive.Tensors, place: Place, **how: Any) -> Any:
    """For each rank: (its parameters, MegatronTensors)."""
    found = []
    for rank in place.ranks():
        own = naive.parameters(config, tensors, rank, **how)
        found.append((own, from_megatron(own, config, parallel(rank))))
    return found


def shares(held: Sequence[MegatronTensors]) -> list[dict[str, Share]]:
    return shares_of([MegatronWeights(each).declared for each in held])


def copied(own: naive.Tensors, held: MegatronTensors, share: Share) -> torch.Tensor:
    """What a rank publishes of a tensor; -1 where nothing was copied."""
    view = torch.full([end - begin for begin, end in share.ranges], -1, dtype=torch.int64)
    for source in held.held[share.spec.name].sources:
        copy_piece(source.piece, own[source.name], view, share)
    return view


class ValuesTest(unittest.TestCase):
    def compare(self, config: naive.Config, place: Place, **how: Any) -> None:
        """Every element of the checkpoint is published by one rank, with its value."""
        tensors = whole(config, seed=SEED)
        ranks = declared(config, tensors, place, **how)
        with mock.patch("dws.trainers.shares.BLOCK_ELEMENTS", 4):
            all_shares = shares([held for _, held in ranks])
        found = {name: torch.full_like(each, -1) for name, each in tensors.items()}
        elements = 0
        for (own, held), mine in zip(ranks, all_shares):
            for name, share in mine.items():
                part = copied(own, held, share)
                elements += part.numel()
                found[name][tuple(slice(*each) for each in share.ranges)].copy_(part)
        self.assertEqual(elements, sum(each.numel() for each in tensors.values()))
        for name, each in tensors.items():
            self.assertTrue(torch.equal(each, found[name]), (name, place, how))

    def test_every_element_is_published_once_with_its_value(self) -> None:
        print(f"seed {SEED}")
        families = {config["model_type"]: config for config in MODELS.values()}
        for config in map(naive.smaller, families.values()):
            experts = config["model_type"] not in ("llama", "qwen2", "qwen3")
            places = [Place(), Place(tp=2, pp=2), Place(tp=2, dp=3)]
            places += [Place(tp=4), Place(tp=4, repeat_heads="kv_lora_rank" not in config)]
            if experts:
                places += [Place(tp=2, pp=2, dp=2, ep=4), Place(tp=2, dp=4, ep=2, etp=1)]
                places += [Place(tp=2, etp=2)]
            if experts:
                places += [Place(tp=2, dp=4, ep=4, etp=2)]
            for place in places:
                for grouped in (True, False):
                    self.compare(config, place, grouped=grouped)

    def test_tied_words_are_published_under_one_name(self) -> None:
        config = {**naive.smaller(MODELS["qwen3-0.6b"]), "tie_word_embeddings": True}
        for place in (Place(tp=2), Place(tp=2, pp=4, dp=2)):
            self.compare(config, place)

    def test_chunks_of_a_virtual_pipeline_have_their_own_layers(self) -> None:
        config = naive.smaller(MODELS["qwen2-7b"])
        tensors = whole(config, seed=1)
        stages = [naive.parameters(config, tensors, Place(pp=4, rank=rank)) for rank in range(4)]
        # Two ranks of two chunks: the first has the stages 0 and 2.
        found = [
            from_megatron([stages[rank], stages[rank + 2]], config, Parallel(pp=2, pp_rank=rank))
            for rank in range(2)
        ]
        for rank, held in enumerate(found):
            for name, each in held.held.items():
                for source in each.sources:
                    own = stages[rank + 2 * source.chunk]
                    spec = dws.TensorSpec(name, "I64", each.tensor.shape)
                    share = Share(spec, tuple((0, extent) for extent in each.tensor.shape))
                    view = torch.full(each.tensor.shape, -1, dtype=torch.int64)
                    copy_piece(source.piece, own[source.name], view, share)
                    self.assertTrue(torch.equal(view[view >= 0], tensors[name][view >= 0]), name)
        self.assertEqual({name for held in found for name in held.held}, set(tensors))
        uneven = from_megatron(stages[3], config, Parallel(pp=3, pp_rank=2), first_layers=[3])
        self.assertIn("model.layers.3.self_attn.q_proj.weight", uneven.held)


class ShapesTest(unittest.TestCase):
    def test_models_have_as_many_elements_as_published(self) -> None:
        for name, config in MODELS.items():
            shapes = naive.checkpoint_shapes(config)
            found = sum(math.prod(shape) for _, shape in shapes) / 1e9
            self.assertLess(abs(found / PARAMETERS[name] - 1), 0.01, (name, found))

    def test_ranks_of_published_models_have_every_element_once(self) -> None:
        for name, published in MODELS.items():
            with self.subTest(name):
                config = {**published, "num_hidden_layers": 8}
                tensors, place = whole(config), PLACES[name]
                ranks = [held for _, held in declared(config, tensors, place)]
                sizes = dict.fromkeys(tensors, 0)
                for held, mine in zip(ranks, shares(ranks)):
                    for tensor, share in mine.items():
                        elements = elements_of(held, share)
                        box = math.prod(end - begin for begin, end in share.ranges)
                        self.assertEqual(elements, box, (tensor, share))
                        sizes[tensor] += elements
                wanted = {each: tensors[each].numel() for each in tensors}
                self.assertEqual(sizes, wanted)


def elements_of(held: MegatronTensors, share: Share) -> int:
    elements = 0
    for source in held.held[share.spec.name].sources:
        piece: Any = source.piece
        for dim, (begin, end) in enumerate(share.ranges):
            piece = piece and piece.within(dim, begin, end)
        elements += math.prod(len(each) for each in piece.place) if piece else 0
    return elements


class RefusalsTest(unittest.TestCase):
    def refused(self, why: str, name: str, shape: Sequence[int], **how: Any) -> None:
        config = how.pop("config", naive.smaller(MODELS["qwen3-30b-a3b"]))
        at = Parallel(**how)
        with self.assertRaisesRegex(dws.LayoutError, why):
            from_megatron({name: torch.zeros(shape)}, config, at)

    def test_what_the_rules_do_not_have_is_refused_by_name(self) -> None:
        layer = "decoder.layers.0"
        self.refused(
            r"model_type 'mamba': expected one of", "x", [1], config={"model_type": "mamba"}
        )
        self.refused(
            r"no 'hidden_size'", "x", [1], config={"model_type": "llama", "num_attention_heads": 1}
        )
        self.refused(
            r"'mtp.layers.0.enorm.weight' \[12\]: dws.declare knows no such",
            "mtp.layers.0.enorm.weight",
            [12],
        )
        self.refused(
            r"weight1' .*legacy grouped experts", f"{layer}.mlp.experts.weight1", [12, 128]
        )
        self.refused(
            rf"'{layer}.mlp.linear_fc1.weight' \[16, 12\]: expected \[32, 12\] with Parallel\(tp=1",
            f"{layer}.mlp.linear_fc1.weight",
            [16, 12],
        )
        self.refused(
            r"tp=3 does not divide dimension 0 of \[16, 12\]",
            f"{layer}.mlp.linear_fc1.weight",
            [10, 12],
            tp=3,
        )
        self.refused(r"have 32 words, expected 37", "output_layer.weight", [16, 12], tp=2)
        self.refused(
            r"is of layer 4, and the model has 4", "decoder.layers.4.input_layernorm.weight", [12]
        )
        self.refused(
            r"8 experts on 4 ranks .* make 2 a rank",
            f"{layer}.mlp.experts.linear_fc2.weight2",
            [12, 8],
            ep=4,
        )
        self.refused(
            r"2 key-value heads cannot be repeated for 3",
            f"{layer}.self_attention.linear_qkv.weight",
            [9, 12],
            tp=3,
        )
        self.refused(r"4 layers cannot be cut evenly for pp=3", "x", [1], pp=3)
        with self.assertRaisesRegex(
            dws.LayoutError, "tp=2, tp_rank=2: expected a rank of the axis"
        ):
            Parallel(tp=2, tp_rank=2)

    def test_ranks_that_leave_out_experts_or_layers_are_refused(self) -> None:
        config = naive.smaller(MODELS["deepseek-v3"])
        place = Place(tp=2, pp=2, dp=2, ep=4, etp=1)
        ranks = [held for _, held in declared(config, whole(config, seed=0), place)]
        first = MegatronWeights(ranks[0])
        everywhere = [each.declared for each in map(MegatronWeights, ranks)]
        first.meet(everywhere)
        for lacking, why in (
            (everywhere[:4], "such as 'model.layers.2.input_layernorm.weight'"),
            (
                everywhere[:3] + everywhere[4:7],
                "such as 'model.layers.1.mlp.experts.6.down_proj",
            ),
        ):
            with self.assertRaisesRegex(dws.LayoutError, why):
                first.meet(lacking)

    def test_a_part_of_a_ranks_experts_is_refused(self) -> None:
        config = naive.smaller(MODELS["gpt-oss-20b"])
        own = naive.parameters(config, whole(config, seed=0), Place())
        del own["decoder.layers.2.mlp.experts.linear_fc1.weight3"]
        with self.assertRaisesRegex(
            dws.LayoutError, r"layers.2.*gate_up_proj'.*Pass all parameters"
        ):
            from_megatron(own, config, Parallel())


class TypesTest(unittest.TestCase):
    def test_a_cast_leaves_the_routers_bias_in_fp32(self) -> None:
        config = naive.smaller(MODELS["glm-4.5-air"])
        tensors = {name: each.to(torch.float32) for name, each in whole(config, seed=0).items()}
        _, held = declared(config, tensors, Place())[0]
        found = MegatronWeights(held, None, PublishedTypes(torch.bfloat16)).declared
        types = {name: each.spec.dtype.name for name, each in found.items()}
        biases = [name for name in types if name.endswith(".e_score_correction_bias")]
        self.assertTrue(biases)
        self.assertEqual({name for name, each in types.items() if each == "F32"}, set(biases))

    def test_a_tensor_of_pieces_with_several_types_is_refused(self) -> None:
        config = naive.smaller(MODELS["gpt-oss-20b"])
        own = naive.parameters(config, whole(config, seed=0), Place())
        name = "decoder.layers.2.mlp.experts.linear_fc1.weight3"
        own[name] = own[name].double()
        with self.assertRaisesRegex(dws.DTypeError, f"'model.layers.2.*several types.*'{name}'"):
            MegatronWeights(from_megatron(own, config, Parallel()))


class OnDeviceTest(unittest.TestCase):
    def compare(self, config: naive.Config, place: Place) -> dict[str, set[str]]:
        """What the senders of all ranks read on their devices is what is copied.

        Returns:
          The last words of the names of what is read in place, and of what is put together.
        """
        gpu, tensors = TorchGpu(OwnMemory()), whole(config, seed=SEED)
        kinds: dict[str, set[str]] = {"in place": set(), "together": set()}
        ranks = declared(config, tensors, place)
        for (own, held), mine in zip(ranks, shares([held for _, held in ranks])):
            own.update({name: gpu.tensor(each) for name, each in own.items()})
            weights, trainer = MegatronWeights(held), mock.Mock(register=mock.Mock(return_value={}))
            with gpu.installed():
                weights.register(trainer, mine, 1)
                for _ in range(2):
                    for each in own.values():
                        each.add_(7)
                    weights.refresh()
            parts = trainer.register.call_args.kwargs["parts"]
            self.assertEqual(set(parts), set(mine))
            for name, share in mine.items():
                self.assertTrue(torch.equal(content(parts[name]), copied(own, held, share)), name)
                where = any(
                    each.data_ptr() <= parts[name].address < each.data_ptr() + 8 * each.numel()
                    for each in own.values()
                )
                kinds["in place" if where else "together"].add(".".join(name.split(".")[-2:]))
            self.assertEqual(weights.memory.host_copies, 0)
        return kinds

    def test_ranks_read_their_parameters_where_they_are(self) -> None:
        print(f"seed {SEED}")
        for name, in_place, together in (
            ("qwen3-30b-a3b", {"gate_proj.weight", "down_proj.weight", "o_proj.weight"}, {"q_proj.weight"}),
            ("gpt-oss-20b", {"o_proj.weight"}, {"experts.gate_up_proj", "q_proj.weight"}),
            ("deepseek-v3", {"gate_proj.weight", "embed_tokens.weight"}, set()),
        ):
            config = naive.smaller(MODELS[name])
            found = [self.compare(config, each) for each in (Place(), Place(tp=2, pp=2, dp=2, ep=4))]
            for kinds in found:
                self.assertLessEqual(in_place, kinds["in place"])
            self.assertLessEqual(together, found[0]["together"])


class PublisherTest(SenderCase):
    def test_a_rank_publishes_its_part_of_the_checkpoint(self) -> None:
        config = naive.smaller(MODELS["qwen2-7b"])
        tensors = {name: each.to(torch.float32) for name, each in whole(config, seed=0).items()}
        own, held = declared(config, tensors, Place())[0]
        publisher = Publisher(self.sender.socket, "job")
        self.addCleanup(publisher.close)
        publisher.register(held)
        publisher.publish(1)
        for name, each in tensors.items():
            self.assertTrue(torch.equal(self.published(name), each.reshape(-1)), name)
        own["decoder.layers.1.self_attention.linear_qkv.weight"] += 1
        publisher.publish(2)
        for matrix in "qkv":
            for what in ("weight", "bias"):
                name = f"model.layers.1.self_attn.{matrix}_proj.{what}"
                changed = tensors[name].reshape(-1) + (what == "weight")
                self.assertTrue(torch.equal(self.published(name), changed), name)
        own["decoder.final_layernorm.weight"] = torch.zeros(13)
        with self.assertRaisesRegex(dws.StateError, r"layernorm.weight' had the shape \(12,\)"):
            publisher.publish(3)


if __name__ == "__main__":
    unittest.main()
