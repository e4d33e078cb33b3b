"""Weights that FSDP1 and ZeRO-3 cut inside of rows, in stand-ins for these: who sends whom what against an oracle of
single elements, the exchange in processes of gloo, and what is refused.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
import random
import tempfile
import types
import unittest
from typing import Any, Callable, Iterator, Sequence
from unittest import mock

import torch
import torch.distributed

import dws
from dws.layout import Range, TensorSpec
from dws.trainers.flat_exchange import exchanges_on_devices, moves_of, rows_begun
from dws.trainers.module_weights import ModuleWeights
from dws.trainers.published_types import PublishedTypes
from dws.trainers.shares import Declarations, Declared, shares_of
from tests.clients.python.torch_gpu import OwnMemory, TorchGpu, content

SEED = int(os.environ.get("DWS_TEST_SEED", random.SystemRandom().randrange(1 << 32)))


class Unit(torch.nn.Module):
    """The part of FullyShardedDataParallel that dws.trainers reads."""

    def __init__(self, wrapped: torch.nn.Module, rank: int, ranks: int, original: bool) -> None:
        super().__init__()
        self._fsdp_wrapped_module = wrapped
        named = list(wrapped.named_parameters())
        whole = torch.cat([parameter.detach().reshape(-1) for _, parameter in named])
        size = -(-len(whole) // ranks)
        flat: Any = torch.nn.Parameter(torch.zeros(size, dtype=whole.dtype))
        flat.data[: max(len(whole) - size * rank, 0)] = whole[size * rank :][:size]
        flat._fqns, flat._shapes = zip(*((name, each.shape) for name, each in named))
        flat._contiguities, flat._param_extensions = [True] * len(named), [None] * len(named)
        flat._sharded_size, flat._shard_param_infos, start = flat.shape, [], 0
        for _, each in named:
            begin, end = (
                min(max(at - start, 0), each.numel()) for at in (size * rank, size * (rank + 1))
            )
            offset = max(start - size * rank, 0)
            place = types.SimpleNamespace(in_shard=begin < end, offset_in_shard=offset)
            place.intra_param_start_idx, place.intra_param_end_idx = begin, end - 1
            flat._shard_param_infos.append(place)
            start += each.numel()
            if original:
                each.data = flat.data[offset:][: end - begin]
        flat._params = [each for _, each in named] if original else None
        flat._shared_params = [] if original else None
        if not original:
            for name, _ in named:
                holder, _, key = name.rpartition(".")
                del wrapped.get_submodule(holder)._parameters[key]
            wrapped.register_parameter("_flat_param", flat)
        self._handle = types.SimpleNamespace(
            flat_param=flat, world_size=ranks, _fwd_bwd_param_dtype=torch.bfloat16
        )

    @property
    def local(self) -> Any:
        return self._handle.flat_param


def partitioned(module: torch.nn.Module, rank: int, ranks: int) -> torch.nn.Module:
    """As ZeRO-3 makes of it, of what dws.trainers reads."""
    for parameter in module.parameters():
        each: Any = parameter
        size = -(-each.numel() // ranks)
        part: Any = torch.full((size,), 77.0, dtype=each.dtype)  # what pads is not read
        own = each.detach().reshape(-1)[size * rank :][:size]
        part[: len(own)] = own
        part.final_location = None
        each.ds_id, each.ds_shape, each.ds_tensor, each.ds_process_group = 0, each.shape, part, None
        each.data = torch.empty(0, dtype=each.dtype)
    return module


def model(seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """Rows over two and over several ranks, a weight that only some ranks have, and a buffer."""
    torch.manual_seed(seed)
    made = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.Conv2d(2, 3, 3), torch.nn.Linear(30, 1)
    )
    made.register_buffer("steps", torch.full((3,), float(seed)))
    return made.to(dtype)


KINDS: dict[str, Callable[[Any, int, int], Any]] = {
    "fsdp1": lambda whole, rank, ranks: Unit(whole, rank, ranks, original=True),
    "fsdp1-flat": lambda whole, rank, ranks: Unit(whole, rank, ranks, original=False),
    "zero3": partitioned,
}


def on_gpu(module: torch.nn.Module, gpu: TorchGpu) -> torch.nn.Module:
    """Moves what ZeRO-3 has to a device."""
    for parameter in module.parameters():
        each: Any = parameter
        each.ds_tensor = gpu.tensor(each.ds_tensor)
        each.ds_tensor.final_location = None
    return module


def sends(declared: Declarations, rank: int) -> bool:
    return any(move.source == rank for move in moves_of(declared))


@contextlib.contextmanager
def exchange_told(calls: list[Any]) -> Iterator[None]:
    """A block in which exchanges are put down, too."""
    exchange = torch.distributed.all_to_all_single

    def told(*args: Any) -> None:
        calls.append("exchange")
        exchange(*args)

    with mock.patch.object(torch.distributed, "all_to_all_single", told):
        yield


def publish_in_gloo(rank: int, ranks: int, store: str) -> None:
    """Each kind, and checks what the sender would read. In a process of its own.

    Raises:
      AssertionError: something else than the whole module has there.
    """
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    gpu = TorchGpu(OwnMemory())
    for kind, dtype in itertools.product((*KINDS, "zero3 on a GPU"), (None, torch.float32)):
        of_zero = kind.startswith("zero3")
        own_type = torch.bfloat16 if of_zero else torch.float32
        whole, module = model(1, own_type), KINDS[kind.split()[0]](model(1, own_type), rank, ranks)
        if of_zero:  # a scalar, and another element type
            for each in (whole, module):
                each.scale = torch.nn.Parameter(torch.tensor(3.0, dtype=torch.float32))
                each.wide = torch.nn.Parameter(torch.arange(28.0).reshape(4, 7))
            partitioned(torch.nn.ParameterList([module.scale, module.wide]), rank, ranks)
        if kind.endswith("GPU"):
            on_gpu(module, gpu)
        weights = ModuleWeights(module, types=PublishedTypes(dtype))
        declared: list[Any] = [None] * ranks
        torch.distributed.all_gather_object(declared, weights.declared)
        weights.meet(declared)
        shares = shares_of(declared)[rank]
        views = {
            name: torch.zeros(
                [end - begin for begin, end in share.ranges], dtype=share.spec.dtype.torch
            )
            for name, share in shares.items()
        }
        trainer = mock.Mock()
        trainer.register = mock.Mock(return_value=views)
        with gpu.installed():
            weights.register(trainer, shares, 1)
        parts = trainer.register.call_args.kwargs["parts"]
        if kind.endswith("GPU"):
            assert set(parts) == {n for n, share in shares.items() if share.size_bytes} - {"steps"}
            if "0.bias" in parts and dtype is None:  # one dimension: no row is cut
                assert parts["0.bias"].address == module[0].bias.ds_tensor.data_ptr()
            on_host = shares["steps"].size_bytes if "steps" in shares else 0
            assert weights.memory.host_copies == on_host
        else:
            assert not parts
        for _ in range(2):
            gpu.calls.clear()
            with gpu.installed(), exchange_told(gpu.calls):
                weights.refresh()
            if kind.endswith("GPU") and sends(declared, rank):
                assert gpu.calls.index("synchronize") < gpu.calls.index("exchange"), gpu.calls
            views.update({name: content(part) for name, part in parts.items()})
            for name, tensor in (*whole.named_parameters(), *whole.named_buffers()):
                if name in shares:
                    wanted = tensor.detach()[tuple(slice(*each) for each in shares[name].ranges)]
                    assert torch.equal(views[name], wanted.to(views[name].dtype)), (kind, name)
            with torch.no_grad():  # an optimizer step
                for each in whole.parameters():
                    each.add_(1)
                for each in module.parameters():
                    getattr(each, "ds_tensor", each).add_(1)
    torch.distributed.barrier()


class ExchangeTest(unittest.TestCase):
    def test_all_that_rows_lack_comes_from_who_has_it(self) -> None:
        chance = random.Random(SEED)
        print(f"seed {SEED}")
        for _ in range(300):
            shape = [chance.randint(0, 6) for _ in range(chance.randint(0, 3))]
            size, replicas = math.prod(shape), chance.randint(1, 3)
            bounds = sorted(chance.randint(0, size) for _ in range(chance.randint(0, 5)))
            held = list(zip([0, *bounds], [*bounds, size])) * replicas
            chance.shuffle(held)
            self.check(TensorSpec("w", "F32", tuple(shape)), held)

    def check(self, spec: TensorSpec, held: Sequence[Range]) -> None:
        own = TensorSpec("own", "U8", (len(held),))  # so that none has nothing
        declared = []
        for i, each in enumerate(held):
            one = Declared(spec, rows_begun(spec.shape, each), flat=each)
            declared.append({"w": one, "own": Declared(own, ((i, i + 1),))})
            if not spec.shape and each[0] == each[1]:
                del declared[-1]["w"]
        present = [list(range(*each)) for each in held]
        for move in moves_of(declared):
            elements = list(range(*move.elements))
            self.assertTrue(elements)
            self.assertTrue(set(elements) <= set(range(*held[move.source])), (spec, held, move))
            present[move.target] += elements
        seen: list[int] = []
        numbers = torch.arange(spec.elements).reshape(spec.shape)
        for has, shares in zip(present, shares_of(declared)):
            self.assertEqual(len(has), len(set(has)), (spec, held))
            if "w" in shares:
                box = tuple(slice(*each) for each in shares["w"].ranges)
                wanted = numbers[box].reshape(-1).tolist()
                self.assertTrue(set(wanted) <= set(has), (spec, held))
                seen += wanted
        self.assertEqual(sorted(seen), list(range(spec.elements)))

    def test_replicas_send_to_their_neighbours(self) -> None:
        spec = TensorSpec("w", "F32", (2, 3))
        for held, pairs in (
            ([(0, 2), (2, 6), (0, 2), (2, 6)], [(1, 0), (3, 2)]),
            ([(0, 2), (0, 2), (2, 6), (2, 6)], [(2, 0), (2, 1)]),
        ):
            declared = [{"w": Declared(spec, rows_begun((2, 3), e), flat=e)} for e in held]
            moves = moves_of(declared)
            self.assertEqual([(move.source, move.target) for move in moves], pairs)
            self.assertEqual({move.elements for move in moves}, {(2, 3)})

    def test_ranges_that_do_not_follow_each_other_are_refused(self) -> None:
        spec = TensorSpec("w", "F32", (2, 3))
        for held in ([(0, 2), (3, 6)], [(0, 4), (3, 6)], [(0, 2), (2, 5)], [(1, 6)], [(0, 0)]):
            declared = [{"w": Declared(spec, rows_begun((2, 3), e), flat=e)} for e in held]
            with self.assertRaisesRegex(dws.LayoutError, r"'w'.*of 6, expected ranges that follow"):
                moves_of(declared)

    @unittest.skipUnless(torch.distributed.is_available(), "this torch has no gloo")
    def test_processes_of_gloo_publish_what_the_module_has(self) -> None:
        for ranks in (2, 5):
            with tempfile.TemporaryDirectory() as folder:
                os.environ["GLOO_SOCKET_IFNAME"] = "lo"
                spawn = multiprocessing.get_context("spawn")
                store = os.path.join(folder, "store")
                running = [
                    spawn.Process(target=publish_in_gloo, args=(rank, ranks, store))
                    for rank in range(ranks)
                ]
                for process in running:
                    process.start()
                for process in running:
                    process.join()
                self.assertEqual([process.exitcode for process in running], [0] * ranks)


    def test_rows_are_exchanged_on_devices_if_the_group_can(self) -> None:
        for backend, config, on_devices, wanted in (
            ("nccl", "cuda:nccl", True, True),
            ("undefined", "cpu:gloo,cuda:nccl", True, True),
            ("undefined", "cpu:gloo,cuda:nccl", False, False),  # weights of the host on a machine with devices
            ("gloo", "cpu:gloo,cuda:gloo", True, False),
        ):
            stand_in = mock.Mock()
            stand_in.get_backend.return_value = backend
            stand_in.get_backend_config.return_value = config
            self.assertEqual(
                exchanges_on_devices(stand_in, on_devices), wanted, (backend, config, on_devices)
            )
        old = mock.Mock(spec=["get_backend"], get_backend=lambda: "gloo")
        self.assertFalse(exchanges_on_devices(old, True))


class RefusedTest(unittest.TestCase):
    def refused(self, module: Any, why: str, processes: int = 2) -> None:
        with mock.patch("torch.distributed.get_world_size", lambda _=None: processes):
            with mock.patch("torch.distributed.get_rank", lambda _=None: 0):
                with self.assertRaisesRegex(dws.LayoutError, why):
                    ModuleWeights(module)

    def test_what_fsdp1_has_otherwise_is_refused(self) -> None:
        weight = "'_fsdp_wrapped_module.0.weight'"
        for original in (True, False):
            unit = Unit(model(1), 0, 2, original)
            self.refused(unit, f"{weight} is cut over 2 of 4 processes", processes=4)
            unit.local._contiguities[0] = False
            self.refused(unit, f"{weight} is not row-major")
            unit.local._param_extensions[0] = "of a DTensor"
            self.refused(unit, f"{weight} is a DTensor in FSDP1")
            gathered = Unit(model(1), 0, 2, original)
            gathered.local.data = torch.zeros(200)
            self.refused(gathered, f"{weight}.*publish after the optimizer step, outside of summon")
        unsharded: Any = Unit(model(1), 0, 2, original=True)
        unsharded.local._params[0].data = torch.zeros(7, 5)
        unsharded.local._shard_param_infos[0].intra_param_end_idx = 20
        self.refused(unsharded, rf"{weight}: FSDP1 has \(35,\) elements.*expected \(21,\) of")

    def test_replicas_of_hybrid_sharding_are_counted(self) -> None:
        unit: Any = Unit(model(1), 0, 2, original=True)
        unit._inter_node_pg = mock.Mock(size=lambda: 2)
        with mock.patch("torch.distributed.get_world_size", lambda _=None: 4):
            self.assertEqual(ModuleWeights(unit).declared["0.weight"].spec.dtype.name, "BF16")

    def test_what_zero_3_has_otherwise_is_refused(self) -> None:
        def of(**other: Any) -> torch.nn.Module:
            module: Any = partitioned(torch.nn.Linear(3, 5), 0, 2)
            part = module.weight.ds_tensor
            if "part" in other:
                module.weight.ds_tensor = part = other["part"]
            if part is not None:
                part.final_location = other.get("final_location")
            return module  # type: ignore[no-any-return]

        self.refused(of(final_location="nvme"), "'weight' is on NVMe in ZeRO-3")
        self.refused(of(part=None), "'weight' is nowhere in ZeRO-3")
        self.refused(of(part=torch.zeros(8, dtype=torch.int8)), "'weight'.*torch.int8.*quantised")
        self.refused(of(part=torch.zeros(15)), r"'weight' \[5, 3\].*\[15\].*expected \[8\]")
        self.refused(of(part=torch.zeros(8, device="meta")), "'weight' is on the meta device")

    def test_weights_that_have_another_place_now_are_not_published(self) -> None:
        with mock.patch("torch.distributed.get_world_size", lambda _=None: 2):
            with mock.patch("torch.distributed.get_rank", lambda _=None: 0):
                module: Any = partitioned(torch.nn.Linear(3, 5), 0, 2)
                weights = ModuleWeights(module)
                module.weight.data = module.weight.data.double()
                module.weight.ds_tensor = module.weight.ds_tensor.double()
                module.weight.ds_tensor.final_location = None
                with self.assertRaisesRegex(dws.StateError, "'weight'.*do not wrap, convert"):
                    weights.refresh()


if __name__ == "__main__":
    unittest.main()
