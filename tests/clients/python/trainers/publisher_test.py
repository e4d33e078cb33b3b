"""dws.trainers.publisher: which part of a module each process publishes, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import os
import unittest
from typing import Any, Optional, Sequence
from unittest import mock

import torch

import dws
from dws.trainers import publisher as publisher_module
from dws.trainers.module_weights import ModuleWeights
from dws.trainers.published_types import PublishedTypes
from dws.trainers.publisher import Publisher
from dws.trainers.resident_shares import ShareMemory
from dws.trainers.shares import shares_of
from tests.clients.python.stand_in_cuda import StandInDriver
from tests.clients.python.torch_gpu import OwnMemory, TorchGpu
from tests.clients.python.trainers.sender_case import (
    Mesh,
    Replicate,
    SenderCase,
    Shard,
    ShardedTensor,
)


def linear(rows: int = 5, columns: int = 3) -> torch.nn.Linear:
    torch.manual_seed(rows)
    return torch.nn.Linear(columns, rows)


def sharded(full: torch.nn.Linear, rank: int, ranks: int, dim: int = 0) -> torch.nn.Module:
    """A module of which every process has its parts; the bias is replicated."""
    module = torch.nn.Linear(1, 1)
    weight = ShardedTensor(full.weight.detach(), rank, ranks, [Shard(dim)])
    module._parameters["weight"] = weight  # type: ignore[assignment]
    bias = ShardedTensor(full.bias.detach(), rank, ranks, [Replicate()])
    module._parameters["bias"] = bias  # type: ignore[assignment]
    return module


class PublisherTest(SenderCase):
    def publisher(self, **options: Any) -> Publisher:
        socket = options.pop("socket", self.sender.socket)
        made = Publisher(socket, "job", **options)
        self.addCleanup(made.close)
        return made

    def of_rank(self, rank: int, modules: Sequence[Any], **options: Any) -> Publisher:
        """Registered in the process of that number, of several with a module each."""
        by_rank = "{rank}" in options.get("socket", self.sender.socket)
        publisher = self.publisher(**options)
        declared = [
            (by_rank, ModuleWeights(m, options.get("cuts"), PublishedTypes(options.get("dtype"))).declared)
            for m in modules
        ]
        gathered = [[(None, each) for each in declared], [(None, None)] * len(modules)]
        with mock.patch.object(publisher_module, "_process", lambda: rank):
            with mock.patch.object(publisher_module, "_same_stream", lambda: dws.Stream.new(5)):
                with mock.patch.object(publisher_module, "_gathered", side_effect=gathered):
                    publisher.register(modules[rank])
        return publisher

    def socket_of_ranks(self) -> str:
        """The sender's, by a name for each rank."""
        for rank in range(3):
            with contextlib.suppress(FileExistsError):
                os.symlink(self.folder, os.path.join(self.folder, f"rank-{rank}"))
        folder, name = os.path.split(self.sender.socket)
        return os.path.join(folder, "rank-{rank}", name)

    def of_all(
        self, modules: Sequence[Any], **options: Any
    ) -> dict[str, list[tuple[int, torch.Tensor]]]:
        """What each process publishes, by name: (first slice, values), in their order."""
        found: dict[str, list[tuple[int, torch.Tensor]]] = {}
        for rank in range(len(modules)):
            publisher = self.of_rank(rank, modules, **options)
            publisher.publish(1)
            self.assertEqual(self.sender.register.trainer_rank, rank)
            for shard in self.sender.register.layout.shards:
                name = shard.tensor.name
                found.setdefault(name, []).append((shard.first_slice, self.published(name)))
            publisher.close()
        return found

    def test_an_optimizer_made_before_changes_what_the_sender_reads(self) -> None:
        module = linear()
        before = module.weight.detach().clone()
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
        publisher = self.publisher()
        publisher.register(module)
        torch.testing.assert_close(self.published("weight").reshape(5, 3), before)
        module(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        self.assertFalse(torch.equal(module.weight, before))
        stats = publisher.publish(1)
        assert stats is not None
        self.assertEqual((stats.version, self.sender.published), (1, [1]))
        self.assertTrue(torch.equal(self.published("weight").reshape(5, 3), module.weight.detach()))

    def test_tied_weights_and_wrappers_have_the_checkpoints_names(self) -> None:
        inner = torch.nn.Module()
        inner.embed = torch.nn.Embedding(4, 2)
        inner.head = torch.nn.Linear(2, 4, bias=False)
        inner.head.weight = inner.embed.weight
        compiled = torch.nn.Module()
        compiled._orig_mod = inner
        self.publisher().register(compiled)
        names = [shard.tensor.name for shard in self.sender.register.layout.shards]
        self.assertEqual(names, ["embed.weight"])
        self.assertIs(inner.head.weight, inner.embed.weight)

    def test_weights_are_cast_to_what_engines_hold(self) -> None:
        module = linear()
        own = module.weight.data_ptr()
        module.register_buffer("steps", torch.tensor([3]))
        publisher = self.publisher(dtype=torch.bfloat16)
        publisher.register(module)
        with torch.no_grad():
            module.weight.fill_(1.00390625)  # between two values of BF16: to the even one
        publisher.publish(1)
        self.assertEqual(module.weight.data_ptr(), own)
        self.assertEqual(self.published("weight").tolist(), [1.0] * 15)
        self.assertEqual(self.registered("steps")[0].tensor.dtype, dws.DType.I64.value)

    def test_each_rank_publishes_its_part_and_the_lighter_one_what_is_small(self) -> None:
        full = linear(5)
        modules = [sharded(full, rank, 2) for rank in range(2)]
        for rank, rows, names in (
            (0, slice(0, 3), ["weight"]),
            (1, slice(3, 5), ["bias", "weight"]),  # which has fewer bytes
        ):
            publisher = self.of_rank(rank, modules)
            shards = self.sender.register.layout.shards
            self.assertEqual([shard.tensor.name for shard in shards], names)
            request = self.sender.register
            self.assertEqual((request.trainer_rank, request.world_size), (rank, 2))
            shard = self.registered("weight")[0]
            self.assertEqual(list(shard.tensor.shape), [5, 3])
            self.assertEqual((list(shard.tensor.cuts), shard.first_slice), ([3], rank))
            publisher.publish(1)
            wanted = full.weight.detach()[rows].reshape(-1)
            self.assertTrue(torch.equal(self.published("weight"), wanted))
            publisher.close()

    def test_a_part_of_columns_keeps_its_order(self) -> None:
        full = linear(2, 5)
        modules = [sharded(full, rank, 2, dim=1) for rank in range(2)]
        self.of_rank(1, modules).publish(1)
        shard = self.registered("weight")[0]
        self.assertEqual((shard.tensor.cut_dim, list(shard.tensor.cuts)), (1, [3]))
        wanted = full.weight.detach()[:, 3:].reshape(-1)
        self.assertTrue(torch.equal(self.published("weight"), wanted))

    def test_a_tensor_sharded_on_two_dimensions_is_published_by_its_boxes(self) -> None:
        full = linear(5, 4)
        modules = []
        for at in ((0, 0), (0, 1), (1, 0), (1, 1)):
            module = torch.nn.Module()
            weight = ShardedTensor(full.weight.detach(), 0, 4, [Shard(0), Shard(1)], Mesh([2, 2], at))
            module._parameters["weight"] = weight  # type: ignore[assignment]
            modules.append(module)
        for rank, box in enumerate(itertools.product((slice(0, 3), slice(3, 5)), (slice(0, 2), slice(2, 4)))):
            self.of_rank(rank, modules, cuts={"weight": dws.Cut((1,), 1)}).publish(1)
            shard = self.registered("weight")[0]
            grid = [(cuts.dim, list(cuts.at)) for cuts in shard.tensor.grid]
            self.assertEqual(grid, [(0, [3]), (1, [1, 2])])
            cells = [(cells.first, cells.count) for cells in shard.cells]
            self.assertEqual(cells, [(rank // 2, 1), ((0, 2), (2, 1))[rank % 2]])
            wanted = full.weight.detach()[box].reshape(-1)
            self.assertTrue(torch.equal(self.published("weight"), wanted))

    def test_engines_may_need_more_cuts(self) -> None:
        modules = [sharded(linear(6), rank, 2) for rank in range(2)]
        self.of_rank(1, modules, cuts={"weight": [2, 4]})
        shard = self.registered("weight")[0]
        found = (list(shard.tensor.cuts), shard.first_slice, shard.slice_count)
        self.assertEqual(found, ([2, 3, 4], 2, 2))

    def test_replicas_divide_what_they_have(self) -> None:
        torch.manual_seed(4)
        full = torch.nn.Linear(70_000, 5)
        full.register_buffer("steps", torch.full((2,), 7.0))
        for cuts in ({}, {"weight": [2]}):
            found = self.of_all([full] * 3, cuts=cuts, socket=self.socket_of_ranks())
            weight = torch.cat([part for _, part in found["weight"]])
            self.assertTrue(torch.equal(weight, full.weight.detach().reshape(-1)))
            rows = [part.numel() // 70_000 for _, part in found["weight"]]
            self.assertEqual(rows, [1, 2, 2])  # process 0 has the buffer, too
            # Of the buffer each process may have another one; the bias goes to the fewest bytes.
            self.assertEqual([len(found["steps"]), len(found["bias"])], [1, 1])

    def test_replicas_of_shards_divide_them(self) -> None:
        torch.manual_seed(5)
        full = torch.nn.Linear(70_000, 7, bias=False)
        modules = []
        for at in ((0, 0), (0, 1), (1, 0), (1, 1)):
            module = torch.nn.Module()
            weight = ShardedTensor(
                full.weight.detach(), 0, 4, [Replicate(), Shard(0)], Mesh([2, 2], at)
            )
            module._parameters["weight"] = weight  # type: ignore[assignment]
            modules.append(module)
        found = sorted(self.of_all(modules)["weight"], key=lambda each: each[0])
        self.assertEqual([part.numel() // 70_000 for _, part in found], [2, 2, 2, 1])
        weight = torch.cat([part for _, part in found])
        self.assertTrue(torch.equal(weight, full.weight.detach().reshape(-1)))

    def test_other_processes_of_a_replicated_module_publish_nothing(self) -> None:
        publisher = self.of_rank(1, [linear()] * 2)
        self.assertIsNone(publisher.publish(1))
        self.assertIsNone(publisher.wait(1))
        self.assertIsNone(self.sender.register)

    def test_no_process_is_registered_unless_all_are(self) -> None:
        good = (None, (False, ModuleWeights(linear()).declared))
        for gathered, why in (  # of two processes: before and after registering
            ([[good, ("'weight' is meta", None)]], "process 1 cannot register: 'weight' is meta"),
            ([[good] * 2, [good, ("no sender", None)]], "process 1 cannot register: no sender"),
        ):
            module = linear()
            publisher = self.publisher()
            with mock.patch.object(publisher_module, "_gathered", side_effect=gathered):
                with self.assertRaisesRegex(dws.StateError, why):
                    publisher.register(module)
            self.assertIsNone(publisher.trainer)
            publisher.register(module)
            self.assertIsNotNone(publisher.trainer)

    def test_what_a_process_refuses_is_told_to_the_others(self) -> None:
        told: list[Any] = []

        def gathered(mine: Any) -> list[Any]:
            told.append(mine)
            return [mine]

        with mock.patch.object(publisher_module, "_gathered", gathered):
            with self.assertRaisesRegex(dws.LayoutError, "meta"):
                self.publisher().register(torch.nn.Linear(2, 2, device="meta"))
        self.assertRegex(told[0][0], "'weight' is on the meta device")

    def test_what_a_layout_cannot_express_is_refused_by_name(self) -> None:
        full = linear(5)
        uneven = sharded(full, 0, 2)
        uneven._parameters["weight"].local = full.weight.detach()[:1]  # type: ignore[union-attr]
        adapters = linear()
        adapters.peft_config = {}  # type: ignore[assignment]
        wrapper = torch.nn.Module()
        wrapper._fsdp_wrapped_module = linear()
        for module, why in (
            (uneven, r"'weight'.*this process has \[1, 3\] of it, expected \[3, 3\]"),
            (adapters, "peft_config"),
            (wrapper, "expected what FSDP1 of torch 2.12.*'_handle'"),
            (torch.nn.Linear(2, 2, device="meta"), "'weight' is on the meta device"),
            (full.weight, "expected a torch module"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, why):
                self.of_rank(0, [module])
        with self.assertRaisesRegex(dws.LayoutError, r"no process has: \['other'\]"):
            self.of_rank(0, [linear()], cuts={"other": [1]})
        few = [sharded(linear(1), rank, 4) for rank in range(4)]
        for modules, why in (
            ([sharded(full, 0, 2)], r"'weight'.*have 9 of its 15 elements"),
            ([sharded(full, 0, 2), full], r"'weight'.*the parts \[\(0, 3\), \(0, 3\)\] and \[\(0, 5\), \(0, 3\)\]"),
            (
                [linear(5), linear(6)],
                r"process 0 has 'bias' F32 \[5\], and process 1 'bias' F32 \[6\]",
            ),
            (few, "process 2 of 4 has no element of any weight"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, why):
                self.of_rank(0, modules, socket="{rank}")
        self.assertIsNone(self.sender.register)

    def test_a_weight_that_is_not_as_it_was_registered_is_not_published(self) -> None:
        moved, gathered = linear(), sharded(linear(), 0, 2)
        publishers: list[Optional[Publisher]] = [self.of_rank(0, [moved])]
        moved.weight.data = moved.weight.data.clone()
        publishers.append(self.of_rank(0, [gathered, sharded(linear(), 1, 2)]))
        gathered._parameters["weight"] = torch.nn.Parameter(torch.zeros(5, 3))
        for publisher, why in zip(publishers, ("'weight'.*has moved", "'weight'.*is not now")):
            assert publisher is not None
            with self.assertRaisesRegex(dws.StateError, why):
                publisher.publish(1)
        self.assertEqual(self.sender.published, [])

    def test_a_weight_that_is_replaced_on_its_device_is_not_published(self) -> None:
        # Tensors of a device are their own views: here those of the host stand for them.
        class OnDevice(torch.nn.Parameter):
            is_cuda = True  # type: ignore[assignment]

        module = linear()
        module.weight = OnDevice(module.weight.detach())
        weights = ModuleWeights(module)
        trainer = mock.Mock(rank=0, register=lambda tensors, **given: dict(tensors))
        weights.register(trainer, shares_of([weights.declared])[0], 1)
        module.weight.data = module.weight.data.clone()
        with mock.patch("dws.trainers.module_weights.local_of", side_effect=lambda _, tensor: tensor) as read:
            weights.refresh()
        self.assertNotIn("weight", [call.args[0] for call in read.call_args_list])  # the trainer looks where it is
        module.weight = OnDevice(module.weight.detach().clone())
        with self.assertRaisesRegex(dws.StateError, "'weight'.*has moved"):
            weights.refresh()

    def test_a_weight_with_other_strides_in_its_memory_is_not_published(self) -> None:
        module = torch.nn.Linear(3, 3)
        publisher = self.of_rank(0, [module])
        assert publisher is not None
        module.weight.data = module.weight.data.t()
        with self.assertRaisesRegex(dws.StateError, "'weight'.*has moved"):
            publisher.publish(1)

    def test_weights_of_a_replaced_submodule_are_not_published(self) -> None:
        inner, added = torch.nn.Sequential(linear()), torch.nn.Sequential(linear())
        publishers = [self.of_rank(0, [module]) for module in (inner, added)]
        inner[0] = linear()
        added.append(linear())
        for publisher, why in zip(publishers, ("'0.bias'.*has moved", "other weights.*'1.bias'")):
            with self.assertRaisesRegex(dws.StateError, why):
                publisher.publish(1)

    def test_weights_that_an_optimizer_updates_in_one_buffer_are_copied(self) -> None:
        module = linear(3)
        flat = torch.zeros(12)
        module.weight.data, module.bias.data = flat[:9].view(3, 3), flat[9:]
        publisher = self.publisher()
        publisher.register(module)
        flat.fill_(5)
        publisher.publish(1)
        self.assertEqual(self.published("weight").tolist(), [5.0] * 9)
        self.assertEqual(module.bias.tolist(), [5.0] * 3)

    def test_parameters_with_the_same_memory_keep_it(self) -> None:
        module = torch.nn.Module()
        module.a = torch.nn.Parameter(torch.zeros(4))
        module.b = torch.nn.Parameter(module.a.data.view(2, 2))
        publisher = self.publisher()
        publisher.register(module)
        with torch.no_grad():
            module.a.fill_(3)
        publisher.publish(1)
        self.assertEqual(self.published("b").tolist(), [3.0] * 4)

    def test_a_module_that_is_registered_again_still_shares_its_memory(self) -> None:
        module = linear()
        self.publisher().register(module)
        self.publisher().register(module)
        with torch.no_grad():
            module.weight.fill_(2)
        self.assertEqual(self.published("weight").tolist(), [2.0] * 15)

    def test_a_sender_that_has_restarted_gets_the_version(self) -> None:
        publisher = self.publisher(reconnect_timeout=20)
        publisher.register(linear())
        publisher.publish(1)
        self.sender.stop()
        reconnect = dws.Trainer.reconnect

        def come_back(trainer: dws.Trainer, timeout: float) -> None:
            self.start_sender()
            reconnect(trainer, timeout)

        with mock.patch.object(dws.Trainer, "reconnect", come_back):
            with self.assertLogs("dws.trainers.publisher", "WARNING"):
                publisher.publish(2)
        self.assertEqual(self.sender.published, [2])

    def test_it_says_where_the_sender_reads_its_weights(self) -> None:
        plain, cast = self.publisher(), self.publisher(dtype=torch.bfloat16)
        self.assertIsNone(plain.memory)
        plain.register(linear())
        self.assertEqual(plain.memory, ShareMemory(in_place=80))
        cast.register(linear())
        self.assertEqual(cast.memory, ShareMemory(in_place=0, host_copies=40))
        self.assertIsNone(self.of_rank(1, [linear()] * 2).memory)

    def test_a_module_on_a_device_is_cast_there(self) -> None:
        gpu = TorchGpu(OwnMemory())
        full = linear()
        for on_device in (True, False):
            modules = [sharded(full, rank, 2) for rank in range(2)]
            for module in modules:
                weight: Any = module._parameters["weight"]
                weight.local = gpu.tensor(weight.local)
            with gpu.installed(), StandInDriver().installed() as driver:
                driver.allocate(0, 1 << 63)
                publisher = self.of_rank(0, modules, dtype=torch.bfloat16, on_device=on_device)
                publisher.publish(1)
            assert publisher.memory is not None
            copies = (publisher.memory.device_copies, publisher.memory.host_copies)
            self.assertEqual(copies, (18, 0) if on_device else (0, 18))
            regions = self.sender.register.resident.regions
            self.assertEqual([region.HasField("cuda") for region in regions], [on_device])

    def test_misuse_is_refused_with_a_remedy(self) -> None:
        publisher = self.publisher()
        with self.assertRaisesRegex(dws.StateError, "register"):
            publisher.publish(1)
        publisher.register(linear())
        with self.assertRaisesRegex(dws.StateError, "make another one"):
            publisher.register(linear())


if __name__ == "__main__":
    unittest.main()
