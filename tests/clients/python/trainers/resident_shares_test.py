"""dws.trainers.resident_shares: which share is read where, and what is refused. Tensors of the host stand for those of a
device."""

from __future__ import annotations

import contextlib
import logging
import unittest
from typing import Any, Iterator, Mapping
from unittest import mock

import torch

import dws
from dws.layout import RankLayout, TensorSpec, with_cuts
from dws.trainers.device_buffers import DEVICE_SPARE_BYTES
from dws.trainers.resident_shares import ResidentShares, ShareMemory, Source
from dws.trainers.shares import Share
from tests.clients.python.torch_gpu import OwnMemory, TorchGpu, content

BF16, F32 = torch.bfloat16, torch.float32


class Registered:
    """The Trainer that shares were registered with: what its sender would read."""

    def __init__(self) -> None:
        self.parts: Mapping[str, Any] = {}
        self.views: dict[str, torch.Tensor] = {}

    def register(self, specs: Any, shards: Any, parts: Any, **_: Any) -> dict[str, Any]:
        self.parts = parts
        layout = RankLayout(specs, shards)
        for shard in layout.shards:
            if shard.tensor.name not in parts:
                self.views[shard.tensor.name] = torch.zeros(shard.shape, dtype=shard.tensor.dtype.torch)
        return {**self.views, **parts}

    def read(self, name: str) -> torch.Tensor:
        return self.views[name] if name in self.views else content(self.parts[name])


class ResidentSharesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.gpu = TorchGpu(OwnMemory())
        installed = self.gpu.installed()
        installed.__enter__()
        self.addCleanup(installed.__exit__, None, None, None)
        self.trainer = Registered()

    def register(
        self, tensors: Mapping[str, Any], types: Mapping[str, str], **options: Any
    ) -> ResidentShares:
        """Rows 2 to the end of tensors of two rows more."""
        shares = {}
        for name, tensor in tensors.items():
            rows, *inner = tensor.shape
            spec = with_cuts(TensorSpec(name, types[name], (rows + 2, *inner)), {name: [2]})
            shares[name] = Share(spec, ((2, rows + 2), *((0, extent) for extent in inner)))
        found = ResidentShares(shares, **options)
        sources = {name: Source.of(tensor) for name, tensor in tensors.items()}
        found.register(self.trainer, sources, 1)  # type: ignore[arg-type]
        return found

    def source(self, tensor: Any) -> Source:
        """Its `write` says so."""

        def write(view: Any) -> None:
            self.gpu.calls.append("write")
            view.copy_(tensor)

        return Source(tensor, tensor, write)

    def refresh(self, found: ResidentShares, tensors: Mapping[str, Any]) -> None:
        """And compares what the sender reads with a plain cast."""
        found.refresh({name: self.source(tensor) for name, tensor in tensors.items()})
        for name, tensor in tensors.items():
            read = self.trainer.read(name)
            wanted = torch.empty(tensor.shape, dtype=read.dtype)
            wanted.copy_(tensor)
            bits = {2: torch.int16, 4: torch.int32}[read.element_size()]
            self.assertTrue(torch.equal(read.view(bits), wanted.view(bits)), name)

    def tensors(self) -> dict[str, Any]:
        torch.manual_seed(3)
        return {
            "cast": self.gpu.tensor(torch.randn(5, 7)),
            "host": torch.randn(4, 3),
            "live": self.gpu.tensor(torch.randn(3, 5).to(BF16), offset_elements=1),
            "strided": self.gpu.tensor(torch.randn(6, 4)).t(),
            "widened": self.gpu.tensor(torch.randn(9).to(BF16)),
        }

    TYPES = {"cast": "BF16", "host": "BF16", "live": "BF16", "strided": "F32", "widened": "F32"}

    @contextlib.contextmanager
    def said(self, level: int) -> Iterator[list[str]]:
        with self.assertLogs("dws.trainers.resident_shares", logging.INFO) as logs:
            yield logs.output
        self.assertEqual([record.levelno for record in logs.records], [level])

    def test_each_share_is_read_in_its_place(self) -> None:
        tensors = self.tensors()
        with self.said(logging.INFO) as said:
            found = self.register(tensors, self.TYPES)
        self.assertEqual(found.memory, ShareMemory(30, 70 + 96 + 36, 24))
        self.assertIn("30 bytes are read in place, 202 from buffers on their devices, 24 from", said[0])
        self.assertEqual(self.trainer.parts["live"].address, tensors["live"].data_ptr())
        self.assertEqual(set(self.trainer.parts), {"cast", "live", "strided", "widened"})
        buffers = {name: self.trainer.parts[name].address for name in ("cast", "strided", "widened")}
        for _ in range(3):
            self.refresh(found, tensors)
            for tensor in tensors.values():
                tensor.mul_(-1.25)
        for name, address in buffers.items():
            self.assertEqual(self.trainer.parts[name].address, address)
        each = ["synchronize", *["write"] * 4]  # writes after the device has finished
        self.assertEqual(self.gpu.calls, [("allocate", 128 + 128 + 64), *each * 3])

    def test_what_a_cast_makes_of_odd_values_is_what_torch_makes(self) -> None:
        odd = [0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x80000000, 1, 0x3F808000]
        values = torch.tensor([bits - (bits >> 31 << 32) for bits in odd], dtype=torch.int32)
        tensors = {"cast": self.gpu.tensor(values.view(F32))}
        self.refresh(self.register(tensors, self.TYPES), tensors)

    def test_nothing_waits_for_a_device_if_nothing_is_copied(self) -> None:
        tensors = {"live": self.tensors()["live"]}
        found = self.register(tensors, self.TYPES)
        self.refresh(found, tensors)
        self.assertEqual((self.gpu.calls, found.memory), ([], ShareMemory(30)))

    def test_a_tensor_that_has_moved_is_read_at_its_new_place(self) -> None:
        tensors = self.tensors()
        found = self.register(tensors, self.TYPES)
        self.refresh(found, tensors)
        same = self.trainer.parts["live"]
        self.refresh(found, tensors)
        self.assertIs(self.trainer.parts["live"], same)
        for name in ("cast", "live", "strided"):
            tensors[name] = self.gpu.tensor(tensors[name] + 1)
        tensors["host"] = tensors["host"] + 1
        self.refresh(found, tensors)
        self.assertEqual(self.trainer.parts["live"].address, tensors["live"].data_ptr())

    def test_without_memory_for_the_buffer_its_shares_are_copied_to_the_host(self) -> None:
        tensors = self.tensors()
        needed = 128 + 128 + 64 + DEVICE_SPARE_BYTES
        self.gpu.free = needed - 1
        with self.said(logging.WARNING) as said:
            found = self.register(tensors, self.TYPES)
        self.assertEqual(found.memory.host_copies, 24 + 202)
        self.assertEqual((found.memory.in_place, found.memory.device_copies), (30, 0))
        self.assertIn(f"cuda:0 has {needed - 1} bytes free, and a buffer takes 320", said[0])
        self.assertIn(found.memory.why_host, said[0])
        self.assertEqual(set(self.trainer.parts), {"live"})
        self.refresh(found, tensors)
        self.assertEqual(self.gpu.calls, ["synchronize", *["write"] * 4])
        self.gpu.free = needed
        self.assertEqual(self.register(tensors, self.TYPES).memory.host_copies, 24)

    def test_a_device_that_cannot_allocate_what_it_has_free_is_not_relied_on(self) -> None:
        tensors = self.tensors()
        error = torch.cuda.OutOfMemoryError("fragmented")
        with mock.patch("dws.trainers.device_buffers.allocated", side_effect=error):
            with self.said(logging.WARNING):
                found = self.register(tensors, self.TYPES)
        self.assertRegex(found.memory.why_host, "cuda:0 cannot allocate a buffer of 320.*fragmented")
        self.refresh(found, tensors)

    def test_everything_is_copied_to_the_host_if_so_wanted(self) -> None:
        tensors = self.tensors()
        with self.said(logging.WARNING):
            found = self.register(tensors, self.TYPES, on_device=False)
        self.assertEqual(found.memory, ShareMemory(0, 0, 30 + 202 + 24, "on_device=False"))
        self.refresh(found, tensors)
        calls = ["synchronize", *["write"] * 5]
        self.assertEqual((self.trainer.parts, self.gpu.calls), ({}, calls))

    def test_a_share_of_the_host_that_is_on_a_device_now_is_waited_for(self) -> None:
        found = self.register({"host": torch.randn(4, 3)}, self.TYPES)
        self.refresh(found, {"host": self.gpu.tensor(torch.randn(4, 3))})
        self.assertEqual(self.gpu.calls, ["synchronize", "write"])

    def test_a_refusal_of_device_memory_says_how_to_do_without(self) -> None:
        def refused(error: dws.DwsError, tensors: Mapping[str, Any], why: str) -> None:
            with mock.patch.object(Registered, "register", side_effect=error):
                with self.assertRaisesRegex(type(error), why):
                    self.register(tensors, self.TYPES)

        tensors = self.tensors()
        for error in (dws.DwsError("built without GPU kernels"), dws.CudaError("no driver")):
            refused(error, tensors, f"^{error}; or have shares copied to the host, with on_device=False$")
            refused(error, {"host": tensors["host"]}, f"^{error}$")
        for error in (
            dws.DaemonUnavailableError("the CUDA driver finds no device"),
            dws.RegistrationLostError("no CUDA device has the UUID"),
        ):
            refused(error, tensors, f"^{error}; or have shares copied to the host, with on_device=False$")
        refused(dws.DaemonUnavailableError("no sender"), tensors, "^no sender$")

    def test_the_place_of_a_share_of_the_host_needs_no_reason(self) -> None:
        for options in ({}, {"on_device": False}):
            with self.said(logging.INFO):
                found = self.register({"host": torch.zeros(4, 3)}, self.TYPES, **options)
            self.assertEqual(found.memory, ShareMemory(0, 0, 24))

    def test_a_share_that_is_no_longer_on_its_device_as_published_is_refused(self) -> None:
        tensors = self.tensors()
        found = self.register(tensors, self.TYPES)
        live = tensors["live"]
        for other, why in (
            (torch.zeros(3, 5, dtype=BF16), "is torch.bfloat16.* on cpu now"),
            (self.gpu.tensor(torch.zeros(5, 3, dtype=BF16)).t(), r"with strides \[1, 3\] on cuda:0"),
            (self.gpu.tensor(torch.zeros(3, 5)), "is torch.float32"),
        ):
            with self.assertRaisesRegex(dws.StateError, f"'live' BF16.*{why}"):
                self.refresh(found, {**tensors, "live": other})
        self.refresh(found, {**tensors, "live": live})


if __name__ == "__main__":
    unittest.main()
