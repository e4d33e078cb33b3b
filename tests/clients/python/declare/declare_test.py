"""dws.declare on modules that keep experts as transformers 5 does, against checkpoints stacked here."""

from __future__ import annotations

import tempfile
import types
import unittest
from typing import Any, Optional

import numpy as np
import torch

import dws
from dws.layout import RankLayout
from tests.clients.python.fake_daemons import FakeSender

EXPERTS, INNER, HIDDEN, VOCABULARY = 3, 5, 7, 11
SEPARATE = ("deepseek_v3", "glm4_moe", "qwen2_moe", "qwen3_moe", "qwen3_next")
# A checkpoint's names for an expert's gate, up and down.
MATRICES = {
    **{family: ("mlp", "gate_proj", "up_proj", "down_proj") for family in SEPARATE},
    "minimax_m2": ("block_sparse_moe", "w1", "w3", "w2"),
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
}

Checkpoint = dict[str, torch.Tensor]


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


class Experts(torch.nn.Module):
    """All experts of a layer, from one list of matrices for each projection."""

    def __init__(self, gate: list[Any], up: list[Any], down: list[Any]) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.cat([torch.stack(gate), torch.stack(up)], 1))
        self.down_proj = torch.nn.Parameter(torch.stack(down))


class Router(torch.nn.Module):
    def __init__(self, weight: torch.Tensor, correction: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)
        self.register_buffer("e_score_correction_bias", correction)


class Layer(torch.nn.Module):
    def __init__(self, gate: Router, experts: torch.nn.Module) -> None:
        super().__init__()
        self.mlp = torch.nn.Module()
        self.mlp.gate = gate
        self.mlp.experts = experts


class Model(torch.nn.Module):
    """Two layers, and an output that is tied to the embedding."""

    def __init__(self, model_type: Optional[str], layers: list[Layer]) -> None:
        super().__init__()
        if model_type is not None:
            self.config = types.SimpleNamespace(model_type=model_type)
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, HIDDEN, dtype=torch.bfloat16)
        self.layers = torch.nn.ModuleList(layers)
        self.lm_head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=torch.bfloat16)
        self.lm_head.weight = self.embed_tokens.weight


def loaded(family: str, model_type: Optional[str] = None) -> tuple[Model, Checkpoint]:
    """A random checkpoint and a module that has it."""
    torch.manual_seed(3)
    block, *matrices = MATRICES[family]
    checkpoint: Checkpoint = {}
    layers = []
    for layer in range(2):
        at = f"layers.{layer}.{block}"
        stacks: list[list[torch.Tensor]] = []
        for matrix in matrices:
            shape = (HIDDEN, INNER) if matrix == matrices[2] else (INNER, HIDDEN)
            stacks.append([noise(*shape) for _ in range(EXPERTS)])
            for number, weight in enumerate(stacks[-1]):
                checkpoint[f"{at}.experts.{number}.{matrix}.weight"] = weight
        router = Router(noise(EXPERTS, HIDDEN), torch.rand(EXPERTS))
        checkpoint[f"{at}.gate.weight"] = router.weight.detach().clone()
        checkpoint[f"{at}.gate.e_score_correction_bias"] = router.e_score_correction_bias.clone()
        layers.append(Layer(router, Experts(*stacks)))
    model = Model(model_type, layers)
    checkpoint["embed_tokens.weight"] = model.embed_tokens.weight.detach().clone()
    return model, checkpoint


class FromModuleTest(unittest.TestCase):
    def assert_is(self, tensors: dws.declare.ModuleTensors, checkpoint: Checkpoint) -> None:
        self.assertEqual(sorted(tensors), sorted(checkpoint))
        for name, tensor in tensors.items():
            self.assertTrue(torch.equal(tensor, checkpoint[name]), name)
            self.assertTrue(tensor.is_contiguous(), name)

    def test_each_family_gives_the_tensors_of_its_checkpoint(self) -> None:
        for family in MATRICES:
            with self.subTest(family):
                module, checkpoint = loaded(family, family)
                self.assert_is(dws.declare.from_module(module), checkpoint)

    def test_the_tensors_are_views_of_the_module(self) -> None:
        module, _ = loaded("qwen3_moe", "qwen3_moe")
        stack = module.layers[1].mlp.experts.gate_up_proj
        tensors = dws.declare.from_module(module)
        with torch.no_grad():
            stack[2, INNER + 1, 4] = 77
        self.assertEqual(tensors["layers.1.mlp.experts.2.up_proj.weight"][1, 4], 77)
        self.assertFalse(tensors["layers.1.mlp.experts.2.up_proj.weight"].requires_grad)

    def test_views_follow_a_parameter_that_moves(self) -> None:
        module, _ = loaded("qwen3_moe", "qwen3_moe")
        tensors = dws.declare.from_module(module)
        name = "layers.0.mlp.experts.1.down_proj.weight"
        self.assertIs(tensors[name], tensors[name])
        stack = module.layers[0].mlp.experts.down_proj
        stack.data = torch.full_like(stack, 5)
        self.assertTrue(torch.equal(tensors[name], torch.full_like(tensors[name], 5)))
        stack.data = stack.data[:2]
        with self.assertRaisesRegex(dws.LayoutError, r"was \[3, 7, 5\] and is now \[2, 7, 5\]"):
            tensors[name]

    def test_a_module_without_a_config_needs_the_family(self) -> None:
        module, checkpoint = loaded("mixtral")
        with self.assertRaisesRegex(
            dws.LayoutError,
            r"'layers.0.mlp.experts.gate_up_proj' \[3, 10, 7\] has experts in a layout that "
            r"dws.declare does not know for model_type None \(known: deepseek_v2, .*qwen3_next\)",
        ):
            dws.declare.from_module(module)
        self.assert_is(dws.declare.from_module(module, "mixtral"), checkpoint)

    def test_gpt_oss_stays_stacked(self) -> None:
        module, _ = loaded("qwen2_moe", "gpt_oss")
        experts = module.layers[0].mlp.experts
        experts.gate_up_proj_bias = torch.nn.Parameter(noise(EXPERTS, 2 * INNER))
        tensors = dws.declare.from_module(module)
        self.assertEqual(sorted(tensors), sorted(dws.named_tensors(module)))
        self.assertIs(tensors["layers.0.mlp.experts.gate_up_proj"], experts.gate_up_proj)

    def test_experts_that_are_separate_in_the_module_keep_their_names(self) -> None:
        module = torch.nn.ModuleDict({"experts": torch.nn.ModuleList([torch.nn.Linear(2, 3)])})
        names = ["experts.0.bias", "experts.0.weight"]
        self.assertEqual(sorted(dws.declare.from_module(module)), names)

    def test_experts_in_an_unknown_form_are_refused_by_name(self) -> None:
        module, _ = loaded("qwen3_moe", "qwen3_moe")
        experts = module.layers[1].mlp.experts
        stack = experts.gate_up_proj
        experts.gate_up_proj = torch.nn.Parameter(stack.detach().transpose(1, 2).contiguous())
        with self.assertRaisesRegex(
            dws.LayoutError,
            r"'layers.1.mlp.experts.gate_up_proj' \[3, 7, 10\] and 'layers.1.mlp.experts.down_proj' "
            r"\[3, 7, 5\]: expected \[E, 2I, H\] and \[E, H, I\]",
        ):
            dws.declare.from_module(module)
        experts.gate_up_proj = stack
        for holder, name, shape in (
            (experts, "gate_up_proj_scale", (EXPERTS, 1)),
            (module, "moe_input", (EXPERTS, 2, 2)),
        ):
            holder.register_parameter(name, torch.nn.Parameter(noise(*shape)))
            with self.assertRaisesRegex(dws.LayoutError, f"{name}' .* dws.declare does not know"):
                dws.declare.from_module(module)
            delattr(holder, name)

    def test_a_convolution_is_not_taken_for_experts(self) -> None:
        module = torch.nn.Conv1d(4, 4, 3)
        self.assertEqual(sorted(dws.declare.from_module(module)), ["bias", "weight"])

    def test_one_name_for_two_tensors_is_refused(self) -> None:
        module, _ = loaded("qwen3_moe", "qwen3_moe")
        module.layers[0].mlp.experts.add_module("0", torch.nn.Module())
        getattr(module.layers[0].mlp.experts, "0").down_proj = torch.nn.Linear(2, 2, bias=False)
        with self.assertRaisesRegex(dws.LayoutError, "are both 'layers.0.mlp.experts.0.down_proj"):
            dws.declare.from_module(module)

    def test_something_else_than_a_module_is_refused(self) -> None:
        with self.assertRaisesRegex(dws.LayoutError, "got a dict, expected a torch module"):
            dws.declare.from_module({})


class RegisterTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.sender = FakeSender(folder.name)
        self.addCleanup(self.sender.stop)

    def trainer(self, **options: Any) -> dws.Trainer:
        trainer = dws.Trainer(self.sender.socket, job_id="job", **options)
        self.addCleanup(trainer.close)
        return trainer

    def seen(self, name: str) -> Any:
        """The raw elements that the sender reads for a canonical tensor."""
        request = self.sender.register
        for shard, place in zip(request.layout.shards, request.resident.shards):
            if shard.tensor.name == name:
                count = int(np.prod(shard.tensor.shape))
                return np.frombuffer(self.sender.region(), np.uint16, count, place.offset_bytes)
        raise AssertionError(f"{name} is not registered")

    def test_a_module_trains_in_the_memory_that_the_sender_reads(self) -> None:
        module, checkpoint = loaded("qwen3_moe", "qwen3_moe")
        tensors = dws.declare.from_module(module)
        views = self.trainer().register(tensors)
        tensors.bind(views)
        for name, expected in checkpoint.items():
            self.assertTrue(torch.equal(tensors[name], expected), name)
            self.assertEqual(tensors[name].data_ptr(), views[name].data_ptr(), name)
        stack = module.layers[1].mlp.experts.gate_up_proj
        self.assertEqual(tuple(stack.shape), (EXPERTS, 2 * INNER, HIDDEN))
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        (stack[2, INNER:].float().sum() * 8).backward()
        optimizer.step()
        changed = "layers.1.mlp.experts.2.up_proj.weight"
        expected = (checkpoint[changed] - 8).view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(self.seen(changed), expected.reshape(-1))
        other = "layers.1.mlp.experts.2.gate_proj.weight"
        expected = checkpoint[other].view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(self.seen(other), expected.reshape(-1))
        self.assertIs(module.lm_head.weight, module.embed_tokens.weight)

    def test_tensors_of_one_storage_that_overlap_get_memory_of_their_own(self) -> None:
        whole = torch.arange(6.0)
        views = self.trainer().register({"a": whole, "b": whole[:4], "c": whole[4:]})
        views["b"][0] = 50
        self.assertEqual(views["a"].tolist(), [0, 1, 2, 3, 4, 5])
        self.assertEqual(views["b"].tolist(), [50, 1, 2, 3])
        self.assertEqual(views["c"].tolist(), [4, 5])

    def test_views_that_cannot_be_one_tensor_are_refused(self) -> None:
        module, _ = loaded("qwen3_moe", "qwen3_moe")
        tensors = dws.declare.from_module(module)
        views = self.trainer().register(tensors)
        name = "layers.0.mlp.experts.1.up_proj.weight"
        with self.assertRaisesRegex(dws.LayoutError, f"'{name}' does not lie where"):
            tensors.bind({**views, name: views[name].clone()})
        with self.assertRaisesRegex(dws.LayoutError, "0.gate_proj.weight' does not lie where"):
            tensors.bind({key: view.clone() for key, view in views.items()})
        with self.assertRaisesRegex(dws.LayoutError, "views has no torch tensor 'layers.0"):
            tensors.bind({})

    def test_cuts_of_an_expert_leave_the_rest_as_it_is(self) -> None:
        module, checkpoint = loaded("qwen3_moe", "qwen3_moe")
        name = "layers.0.mlp.experts.1.down_proj.weight"
        views = self.trainer(rank=1, world_size=2, stream=dws.Stream.new(5)).register(
            dws.declare.from_module(module), shards={name: (1, 1)}, cuts={name: [3]}
        )
        self.assertTrue(torch.equal(views[name], checkpoint[name][3:]))

    def test_a_ring_takes_the_views(self) -> None:
        module, checkpoint = loaded("mixtral", "mixtral")
        tensors = dws.declare.from_module(module)
        trainer = self.trainer()
        trainer.register_ring(tensors, 1 << 19, 2)
        with trainer.version(1) as writer:
            for name, tensor in tensors.items():
                writer.put(name, tensor)
        layout = RankLayout([shard.tensor for shard in trainer.layout.shards])
        name = "layers.1.block_sparse_moe.experts.2.w3.weight"
        given = self.sender.slices[layout.shard(name).rank_slice].view(np.uint16)
        expected = checkpoint[name].view(torch.int16).numpy().view(np.uint16).reshape(-1)
        np.testing.assert_array_equal(given, expected)


if __name__ == "__main__":
    unittest.main()
