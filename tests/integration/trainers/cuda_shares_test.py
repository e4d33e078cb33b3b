"""Sharded weights on CUDA devices, published by two processes with a sender each, with the fake driver: tensors of torch
whose memory is its device's. The processes are in this one; what they tell each other is handed over by hand."""

from __future__ import annotations

import itertools
import unittest
from typing import Any, Callable, Mapping, Optional, Sequence
from unittest import mock

import numpy as np
import torch

import dws
from dws.trainers import publisher as publisher_module
from dws.trainers.device_buffers import DEVICE_SPARE_BYTES
from dws.trainers.module_weights import ModuleWeights
from dws.trainers.published_types import PublishedTypes
from dws.trainers.publisher import Publisher
from tests.clients.python.gpu import Gpu
from tests.clients.python.torch_gpu import TorchGpu
from tests.clients.python.trainers.sender_case import Replicate, Shard, ShardedTensor
from tests.integration.integration_case import IntegrationCase

BF16, F32 = torch.bfloat16, torch.float32
RANKS = 2
# By name: shape, type of the trainer, placement.
WEIGHTS: dict[str, tuple[tuple[int, ...], torch.dtype, Any]] = {
    "bias": ((33,), F32, Replicate()),
    "columns": ((130, 17), BF16, Shard(1)),
    "embedding": ((701, 300), BF16, Shard(0)),
    "few_rows": ((1, 12), BF16, Shard(0)),  # of which one process has none
    "masters": ((900, 301), F32, Shard(0)),
    "norm": ((77_000, 2), BF16, Replicate()),  # large enough to be divided
}


class CudaSharesTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.use_failpoints("SENDER", "RECEIVER")
        self.gpu = Gpu()
        self.addresses: list[int] = []
        self.stream = dws.Stream.new()
        self.torch_gpu = TorchGpu(self.malloc)
        installed = self.torch_gpu.installed()
        installed.__enter__()
        self.addCleanup(installed.__exit__, None, None, None)
        torch.manual_seed(11)
        self.full = {
            name: torch.randn(shape).to(dtype) for name, (shape, dtype, _) in WEIGHTS.items()
        }

    def malloc(self, size_bytes: int) -> int:
        self.addresses.append(self.gpu.malloc(size_bytes))
        return self.addresses[-1]

    def begin(self, dtype: Optional[torch.dtype] = BF16, **options: Any) -> None:
        """Registers both processes, and attaches an engine of the host."""
        self.start(ranks=RANKS)
        self.modules = [torch.nn.Module() for _ in range(RANKS)]
        for rank, module in enumerate(self.modules):
            for name, (_, _, placement) in WEIGHTS.items():
                sharded: Any = ShardedTensor(self.full[name], rank, RANKS, [placement])
                sharded.local = self.torch_gpu.tensor(sharded.local, offset_elements=3)
                module._parameters[name] = sharded
        weights = list(self.addresses)
        self.publishers = [self.publisher(rank, dtype, **options) for rank in range(RANKS)]
        self.addresses = weights  # without buffers
        self.wanted = {
            name: dtype if tensor.is_floating_point() and dtype else tensor.dtype
            for name, tensor in self.full.items()
        }
        self.engine_of_host = self.engine()
        self.live = self.engine_of_host.attach(
            {name: torch.zeros(self.full[name].shape, dtype=each) for name, each in self.wanted.items()}
        )

    def publisher(self, rank: int, dtype: Optional[torch.dtype], **options: Any) -> Publisher:
        sockets = [sender.socket for sender in self.cluster.senders]
        pattern = sockets[0].replace("sender-0", "sender-{rank}")
        self.assertEqual([pattern.replace("{rank}", str(i)) for i in range(RANKS)], sockets)
        made = Publisher(pattern, "test", dtype=dtype, **options)
        self.addCleanup(made.close)
        types = PublishedTypes(dtype)
        declared = [(True, ModuleWeights(module, None, types).declared) for module in self.modules]
        gathered = [[(None, each) for each in declared], [(None, None)] * RANKS]
        with mock.patch.multiple(
            publisher_module,
            _process=lambda: rank,
            _same_stream=lambda: self.stream,
            _gathered=mock.Mock(side_effect=gathered),
        ):
            made.register(self.modules[rank])
        return made

    def change(self, share: float) -> None:
        """An optimizer's step on both processes: about so many of all elements become others."""
        for name, tensor in self.full.items():
            chosen = torch.rand(tensor.shape) < share
            tensor.copy_(torch.where(chosen, tensor.float() * 1.25 + 0.01, tensor.float()))
        self.each_local(lambda local, values: local.copy_(values))

    def each_local(self, what: Callable[[Any, torch.Tensor], Any]) -> None:
        """Calls `what` with each process's part of each tensor, and the values that it should have."""
        for rank, module in enumerate(self.modules):
            for name, (_, _, placement) in WEIGHTS.items():
                wanted = ShardedTensor(self.full[name], rank, RANKS, [placement]).local
                what(module._parameters[name].local, wanted)  # type: ignore[union-attr]

    def publish(self, version: int) -> None:
        for publisher in self.publishers:
            publisher.publish(version)

    def bits(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: raw(self.full[name].to(dtype)) for name, dtype in self.wanted.items()}

    def check(self, version: int, wanted: Optional[Mapping[str, Any]] = None) -> None:
        """Checks that the engine has the bits of a plain cast of the present weights."""
        wanted = wanted or self.bits()
        self.await_version(self.engine_of_host, version)
        with self.engine_of_host.running(60):
            for name, each in wanted.items():
                np.testing.assert_array_equal(raw(self.live[name]), each, name)

    def memory(self) -> tuple[int, int, int]:
        """What both processes have in place, as copies on the device, and as copies on the host."""
        found = [publisher.memory for publisher in self.publishers]
        return tuple(  # type: ignore[return-value]
            sum(getattr(each, what) for each in found)
            for what in ("in_place", "device_copies", "host_copies")
        )

    def elements(self, *names: str) -> int:
        return sum(self.full[name].numel() for name in names)

    def versions(self, first: int = 1) -> None:
        for version, share in zip(itertools.count(first), (1.0, 0.01, 0.0, 0.5, 1.0, 0.001)):
            self.change(share)
            self.publish(version)
            self.check(version)

    def test_a_cast_of_shards_is_followed_bit_for_bit(self) -> None:
        self.begin()
        in_place = 2 * self.elements("columns", "embedding", "few_rows", "norm")
        self.assertEqual(self.memory(), (in_place, 2 * self.elements("bias", "masters"), 0))
        self.versions()

    def test_shards_in_their_own_types_are_read_where_they_are(self) -> None:
        self.begin(dtype=None)
        self.assertEqual(self.torch_gpu.calls, [])
        in_place = 2 * self.elements("columns", "embedding", "few_rows", "norm")
        in_place += 4 * self.elements("bias", "masters")
        self.assertEqual(self.memory(), (in_place, 0, 0))
        self.versions()

    def test_without_memory_on_the_device_casts_go_by_the_host(self) -> None:
        self.torch_gpu.free = DEVICE_SPARE_BYTES
        with self.assertLogs("dws.trainers.resident_shares", "WARNING") as logs:
            self.begin()
        self.assertRegex(logs.output[0], "cuda:0 has .* bytes free")
        in_place = 2 * self.elements("columns", "embedding", "few_rows", "norm")
        self.assertEqual(self.memory(), (in_place, 0, 2 * self.elements("bias", "masters")))
        self.versions()

    def test_all_shards_may_go_by_the_host(self) -> None:
        self.begin(on_device=False)
        self.assertEqual(self.memory(), (0, 0, 2 * self.elements(*WEIGHTS)))
        self.versions()

    def test_shards_that_have_moved_are_read_at_their_new_place(self) -> None:
        self.begin()
        for version in (1, 2, 3, 4):
            self.move()
            self.change(0.3)
            self.publish(version)
            self.check(version)

    def move(self) -> None:
        """Gives each tensor other memory, and frees the old one, so that the driver may hand it out again."""
        old, self.addresses = self.addresses, []
        for module in self.modules:
            for name in WEIGHTS:
                sharded: Any = module._parameters[name]
                sharded.local = self.torch_gpu.tensor(sharded.local, offset_elements=3)
        for address in old:
            self.gpu.free(address)

    def test_weights_and_casts_may_be_overwritten_when_a_publish_returns(self) -> None:
        self.begin()
        self.change(1.0)
        self.publish(1)
        self.check(1)
        for version in (2, 4, 6):
            self.change(0.2)
            self.publish(version)
            published = self.bits()
            self.each_local(lambda local, _: local.fill_(7))
            for publisher in self.publishers:
                assert publisher._weights is not None
                publisher._weights.refresh()  # the cast of the next version
            self.check(version, published)
            self.change(0.2)
            self.publish(version + 1)
            self.check(version + 1)

    def test_a_killed_sender_gets_the_shards_again_after_its_restart(self) -> None:
        self.begin()
        self.change(1.0)
        self.publish(1)
        self.check(1)
        for sender in self.cluster.senders:
            sender.kill()
            sender.start()
        self.change(0.1)
        with self.assertLogs("dws.trainers.publisher", "WARNING"):
            self.publish(2)
        self.check(2)


def raw(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The bits of a tensor of the host."""
    bits = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.detach().contiguous().view(bits).numpy().copy()


if __name__ == "__main__":
    unittest.main()
