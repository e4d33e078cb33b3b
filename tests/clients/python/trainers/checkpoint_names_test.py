"""dws.trainers publishes models of transformers under the names of their checkpoint: stacked experts one by one, however
processes cut the stacks. transformers, DTensors and FSDP1 are stand-ins."""

from __future__ import annotations

import unittest
from typing import Any, Sequence
from unittest import mock

import torch

import dws
from dws.trainers.module_weights import ModuleWeights
from dws.trainers.published_types import PublishedTypes
from dws.trainers.publisher import Publisher
from dws.trainers.shares import shares_of
from dws.trainers.weight_transfer import WeightTransfer
from tests.clients.python import stand_in_transformers as transformers
from tests.clients.python.stand_in_transformers import EXPERTS, PreTrainedModel
from tests.clients.python.trainers.flat_test import Unit
from tests.clients.python.trainers.sender_case import Mesh, Replicate, SenderCase, Shard, ShardedTensor

EXPERT_COUNT, INNER, HIDDEN = 3, 4, 6


class Model(PreTrainedModel):
    _keep_in_fp32_modules_strict = ["router"]  # by the module's names

    def __init__(self) -> None:
        super().__init__(renames={"^router": "gate"}, operations=EXPERTS)
        torch.manual_seed(2)
        self.experts = torch.nn.Module()
        self.experts.gate_up_proj = torch.nn.Parameter(torch.randn(EXPERT_COUNT, 2 * INNER, HIDDEN))
        self.experts.down_proj = torch.nn.Parameter(torch.randn(EXPERT_COUNT, HIDDEN, INNER))
        self.router = torch.nn.Linear(HIDDEN, EXPERT_COUNT, bias=False)


def checkpoint(model: Model) -> dict[str, torch.Tensor]:
    found = {"gate.weight": model.router.weight}
    for n in range(EXPERT_COUNT):
        gate_up = model.experts.gate_up_proj[n]
        found[f"experts.{n}.gate_proj.weight"] = gate_up[:INNER]
        found[f"experts.{n}.up_proj.weight"] = gate_up[INNER:]
        found[f"experts.{n}.down_proj.weight"] = model.experts.down_proj[n]
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def cut(placements: Sequence[Any], mesh: Mesh) -> Model:
    """What a process has if stacks are placed so, and all else is replicated."""
    model = Model()
    for module in (model.experts, model.router):
        for name, tensor in module._parameters.items():
            if tensor is None:
                continue
            held = placements if tensor.dim() == 3 else [Replicate() for _ in placements]
            part = ShardedTensor(tensor.detach().clone(), 0, 1, held, mesh)
            module._parameters[name] = part  # type: ignore[assignment]
    return model


class NamesCase(SenderCase):
    def setUp(self) -> None:
        super().setUp()
        block = transformers.loaded()
        block.__enter__()
        self.addCleanup(block.__exit__, None, None, None)

    def assert_published(self, model: Model) -> None:
        for name, expected in checkpoint(model).items():
            self.assertTrue(torch.equal(self.published(name), expected.reshape(-1)), name)


class PublishTest(NamesCase):
    def test_a_model_and_the_sender_share_the_memory_of_stacked_experts(self) -> None:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        publisher = Publisher(self.sender.socket, "job")
        self.addCleanup(publisher.close)
        publisher.register(model)
        memory = publisher.memory
        assert memory is not None
        self.assertEqual(memory.host_copies, 0)
        names = sorted(shard.tensor.name for shard in self.sender.register.layout.shards)
        self.assertEqual(names, sorted(checkpoint(model)))
        before = checkpoint(model)
        (model.experts.gate_up_proj.sum() + model.experts.down_proj.sum()).backward()
        optimizer.step()
        self.assert_published(model)
        self.assertFalse(torch.equal(before["experts.1.up_proj.weight"], model.experts.gate_up_proj[1, INNER:]))
        publisher.publish(1)
        model.experts.down_proj.data = model.experts.down_proj.data.clone()
        with self.assertRaisesRegex(dws.StateError, "experts.0.down_proj.weight' .* has moved"):
            publisher.publish(2)

    def test_a_cast_keeps_what_the_model_keeps_by_the_names_of_its_modules(self) -> None:
        model = Model()
        publisher = Publisher(self.sender.socket, "job", dtype=torch.bfloat16)
        self.addCleanup(publisher.close)
        publisher.register(model)
        for change in (0, 1):
            with torch.no_grad():
                model.experts.gate_up_proj.add_(change)
            publisher.publish(1 + change)
            for name, expected in checkpoint(model).items():
                wanted = expected if name == "gate.weight" else expected.to(torch.bfloat16)
                self.assertTrue(torch.equal(self.published(name), wanted.reshape(-1)), name)

    def test_a_conversion_that_computes_registers_nothing(self) -> None:
        model = Model()
        model.config.operations = {"router": [transformers.Concatenate()]}
        with self.assertRaisesRegex(dws.LayoutError, "'gate.weight': .* makes it by Concatenate"):
            Publisher(self.sender.socket, "job").register(model)
        self.assertIsNone(self.sender.register)

    def test_a_streamed_model_is_put_under_the_checkpoints_names(self) -> None:
        model = Model()
        transfer = WeightTransfer(self.sender.socket, "job", model=model)
        self.addCleanup(transfer.destroy)
        with mock.patch.object(dws.Trainer, "wait"):
            with mock.patch("dws.trainers.weight_transfer.require_all"):
                transfer.send_weights(iter(model.named_parameters()))
                with self.assertRaisesRegex(dws.StateError, "'other' is not among the model's weights"):
                    transfer.send_weights(iter([("other", torch.zeros(1))]))
                with self.assertRaisesRegex(dws.StateError, "'router.weight' has shape .2, 6., expected .3, 6. as in the model"):
                    transfer.send_weights(iter([("router.weight", torch.zeros(2, 6))]))
        names = [shard.tensor.name for shard in self.sender.register.layout.shards]
        self.assertEqual(sorted(names), sorted(checkpoint(model)))
        for name, expected in checkpoint(model).items():
            found = torch.from_numpy(self.sender.slices[names.index(name)].copy()).view(torch.float32)
            self.assertTrue(torch.equal(found.reshape(-1), expected.reshape(-1)), name)


class CutTest(NamesCase):
    """Weights that processes have parts of."""

    def assert_together(self, models: Sequence[Any], dtype: Any = None) -> None:
        """All processes together publish the checkpoint, each element once, before and after a step."""
        weights = [ModuleWeights(model, types=PublishedTypes(dtype)) for model in models]
        declared = [each.declared for each in weights]
        for each in weights:
            each.meet(declared)
        shares = shares_of(declared)
        views = []
        for each, mine in zip(weights, shares):
            views.append({n: torch.zeros([b - a for a, b in s.ranges]) for n, s in mine.items()})
            trainer = mock.Mock(register=mock.Mock(return_value=views[-1]))
            each.register(trainer, mine, 1)
            each.refresh()
        found = {name: torch.zeros_like(tensor) for name, tensor in checkpoint(Model()).items()}
        for name, whole in found.items():
            for mine, own in zip(shares, views):
                if name in mine:
                    whole[tuple(slice(*each) for each in mine[name].ranges)] += own[name]
        for name, expected in checkpoint(Model()).items():
            self.assertTrue(torch.equal(found[name], expected), name)

    def test_stacks_that_are_cut_between_and_inside_of_experts(self) -> None:
        for shape, placements in (
            ([2], [Shard(0)]),  # two experts and one
            ([4], [Shard(0)]),  # the last process has none
            ([2], [Shard(1)]),  # gate and up of all experts
            ([4], [Shard(1)]),  # in the middle of gate
            ([3], [Shard(2)]),  # columns
            ([3, 2], [Shard(0), Shard(1)]),
            ([2, 2], [Replicate(), Shard(1)]),
            ([2, 2], [Shard(1), Shard(1)]),
        ):
            with self.subTest(f"{shape} {placements}"):
                places = torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape))
                self.assert_together([cut(placements, Mesh(shape, at.tolist())) for at in places])

    def test_stacks_that_are_cut_flat_inside_of_an_expert(self) -> None:
        rows = sum(each.numel() for each in Model().parameters()) // HIDDEN
        ranks = next(n for n in range(2, rows) if rows % n == 0 and rows // n % EXPERT_COUNT)
        for original in (False, True):
            self.assert_together([flat(rank, ranks, original) for rank in range(ranks)])

    def test_columns_that_are_cut_flat_are_refused(self) -> None:
        module = flat(0, 1, True)
        module._fsdp_wrapped_module.config.operations = {"gate_up_proj": [transformers.Chunk(2)]}
        with self.assertRaisesRegex(dws.LayoutError, "is not one range of the elements of '.*gate_up_proj'"):
            ModuleWeights(module)


def flat(rank: int, ranks: int, original: bool) -> Any:
    """A model in FSDP1, cut at whole rows of the stacks."""
    group = mock.patch.object(torch.distributed, "get_world_size", lambda group=None: ranks)
    group.start()
    unittest.addModuleCleanup(group.stop)
    unit = Unit(Model(), rank, ranks, original)
    unit._handle._fwd_bwd_param_dtype = torch.float32
    return unit


if __name__ == "__main__":
    unittest.main()
