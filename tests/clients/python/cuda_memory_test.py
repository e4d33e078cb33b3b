"""How device memory is found and handed over, with a stand-in for the driver."""

import os
import unittest
from typing import Any, Sequence

import numpy as np
import torch

import dws
from dws._proto import engine_pb2
from dws.cuda_api import HandleType
from dws.cuda_memory import CudaMemory
from dws.device_tensor import DeviceTensor, device_tensor
from dws.dtypes import DType
from tests.clients.python.stand_in_cuda import MIB, InterfaceTensor, StandInDriver, StandInTensor

A = 0x7F00_0000_0000


def located(address: int, size_bytes: int, name: str = "w") -> DeviceTensor:
    return DeviceTensor(name, DType.U8, (size_bytes,), (1,), address)


class DeviceTensorTest(unittest.TestCase):
    def test_tensors_of_the_host_are_not_device_tensors(self) -> None:
        for tensor in (torch.zeros(3, requires_grad=True), np.zeros(3), None):
            self.assertIsNone(device_tensor("w", tensor))

    def test_strides_are_in_elements_and_ends_in_bytes(self) -> None:
        tensor = device_tensor("w", StandInTensor(A, (3, 4), DType.BF16, strides=(10, 1)))
        assert tensor is not None
        self.assertEqual((tensor.strides, tensor.end - A), ((10, 1), 2 * 24))
        other = InterfaceTensor(A, (3, 4), "<f4", strides=(4, 12))
        tensor = device_tensor("w", other)
        assert tensor is not None
        self.assertEqual((tensor.dtype, tensor.strides), (DType.F32, (1, 3)))
        tensor = device_tensor("w", InterfaceTensor(A, (1, 4), "<f4", strides=(-4, 4)))
        assert tensor is not None
        self.assertEqual(tensor.strides, (4, 1))  # with one row any stride fits

    def test_tensors_without_elements_have_no_address(self) -> None:
        tensor = device_tensor("w", InterfaceTensor(0, (0, 4), "<f4"))
        assert tensor is not None
        self.assertEqual(tensor.elements, 0)

    def test_tensors_that_cannot_be_written_in_place_are_refused_by_name(self) -> None:
        for tensor, message in (
            (StandInTensor(A, (3, 4), strides=(0, 1)), "share memory"),
            (StandInTensor(A, (3, 4), strides=(3, 1)), "share memory"),
            (InterfaceTensor(A, (4,), "<f4", strides=(-4,)), "run backwards"),
            (InterfaceTensor(A, (4,), "<f4", strides=(6,)), "strides of \\[6\\] bytes"),
            (InterfaceTensor(A + 2, (4,), "<f4"), "multiple of 4"),
            (StandInTensor(0, (4,)), "no memory of its own"),
            (InterfaceTensor(A, (4,), "<f4", read_only=True), "read-only"),
            (InterfaceTensor(A, (4,), "<f4", mask=1), "masked"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, "'some.weight'.*" + message):
                device_tensor("some.weight", tensor, writable=True)
        for typestr in (">f4", "<c8"):
            with self.assertRaisesRegex(dws.DTypeError, "'some.weight'"):
                device_tensor("some.weight", InterfaceTensor(A, (4,), typestr))


class ChooserTest(unittest.TestCase):
    def setUp(self) -> None:
        self.driver = StandInDriver()

    def memory(self, tensors: Sequence[DeviceTensor]) -> CudaMemory:
        return CudaMemory(tensors, self.driver)  # type: ignore[arg-type]

    def described(self, memory: CudaMemory) -> Any:
        request = engine_pb2.AttachRequest()
        memory.describe(request.regions)
        for region in request.regions:
            self.assertEqual(region.size_bytes, sum(c.size_bytes for c in region.cuda.chunks))
        return request.regions

    def contents(self, memory: CudaMemory) -> list[str]:
        found = []
        for make in memory.descriptors():
            descriptor = make()
            found.append(os.pread(descriptor, 64, 0).rstrip(b"\0").decode())
            os.close(descriptor)
        return found

    def test_many_tensors_of_one_allocation_are_shared_by_one_handle(self) -> None:
        self.driver.allocate(A, 20 * MIB)
        tensors = [located(A + 512 + i * 1000, 1000, f"t{i}") for i in range(5000)]
        memory = self.memory(tensors)
        (region,) = self.described(memory)
        self.assertEqual((region.size_bytes, region.cuda.device_uuid), (20 * MIB, "GPU-0"))
        self.assertEqual(region.cuda.chunks[0].ipc.rstrip(b"\0"), f"ipc {A}".encode())
        self.assertEqual([ask for ask in self.driver.asked if ask[0] == "ipc"], [("ipc", A)])
        self.assertEqual(memory.place(tensors[3], 2), (2, 512 + 3000))
        self.assertEqual(memory.descriptors(), [])

    def test_adjacent_allocations_are_separate_regions(self) -> None:
        self.driver.allocate(A, MIB)
        self.driver.allocate(A + MIB, MIB)
        self.driver.allocate(A + 9 * MIB, MIB, ordinal=1)
        tensors = [located(A + at * MIB + 7, 100) for at in (9, 1, 0)]
        memory = self.memory(tensors)
        regions = self.described(memory)
        self.assertEqual([r.cuda.device_uuid for r in regions], ["GPU-0", "GPU-0", "GPU-1"])
        self.assertEqual([memory.place(t, 1) for t in tensors], [(3, 7), (2, 7), (1, 7)])
        self.assertEqual(memory.ordinals, [0, 1])

    def test_all_chunks_of_a_tensor_are_handed_over_once(self) -> None:
        for i in range(8):
            if i != 5:  # a hole in the reserved range
                self.driver.allocate(A + i * 2 * MIB, 2 * MIB, kind="virtual")
        tensors = [
            located(A + 3 * MIB, 6 * MIB, "long"),  # chunks 1 to 4
            located(A + 4 * MIB, 10, "inside"),
            located(A + 9 * MIB, MIB, "to the hole"),
            located(A + 12 * MIB, 4 * MIB, "behind"),
        ]
        memory = self.memory(tensors)
        regions = self.described(memory)
        self.assertEqual([region.size_bytes // MIB for region in regions], [8, 4])
        chunks = [A + at * MIB for at in (2, 4, 6, 8, 12, 14)]
        self.assertEqual(self.contents(memory), [f"chunk {base}" for base in chunks])
        self.assertEqual(memory.place(tensors[0], 0), (0, MIB))
        self.assertEqual(memory.place(tensors[1], 0), (0, 2 * MIB))
        self.assertEqual(memory.place(tensors[3], 0), (1, 0))
        self.assertTrue(all(c.posix_descriptor for region in regions for c in region.cuda.chunks))

    def test_a_tensor_over_a_hole_is_refused(self) -> None:
        self.driver.allocate(A, 2 * MIB, kind="virtual")
        with self.assertRaisesRegex(dws.LayoutError, "'w': no memory of a CUDA device lies at"):
            self.memory([located(A + MIB, 2 * MIB)])
        self.driver.allocate(A + 8 * MIB, 2 * MIB)
        self.driver.allocate(A + 10 * MIB, 2 * MIB)
        with self.assertRaisesRegex(dws.LayoutError, "'w'.*reaches beyond its allocation"):
            self.memory([located(A + 9 * MIB, 2 * MIB)])

    def test_descriptors_are_preferred_to_fabric_handles_and_are_in_other_regions(self) -> None:
        fabric = HandleType.FABRIC
        self.driver.allocate(A, 2 * MIB, kind="virtual", allowed=fabric | HandleType.DESCRIPTOR)
        self.driver.allocate(A + 2 * MIB, 2 * MIB, kind="virtual", allowed=fabric)
        with self.assertRaisesRegex(dws.LayoutError, "'w'.*beyond its allocation"):
            self.memory([located(A, 3 * MIB)])
        memory = self.memory([located(A, MIB), located(A + 2 * MIB, MIB)])
        one, two = self.described(memory)
        self.assertTrue(one.cuda.chunks[0].posix_descriptor)
        self.assertEqual(two.cuda.chunks[0].fabric.rstrip(b"\0"), f"fabric {A + 2 * MIB}".encode())

    def test_an_explicit_pool_is_opened_by_its_descriptor(self) -> None:
        self.driver.allocate(A, MIB, kind="pool")
        memory = self.memory([located(A + 5, 5)])
        (region,) = self.described(memory)
        pool = region.cuda.chunks[0].pool
        self.assertEqual((pool.opens_pool, pool.pointer.rstrip(b"\0")), (True, b"pointer %d" % A))
        self.assertEqual(self.contents(memory), ["pool 77"])

    def test_a_pool_is_opened_once_for_its_allocations_in_a_row(self) -> None:
        pools = (77, 77, 88, None, 88, 77)
        for i, pool in enumerate(pools):
            options = {} if pool is None else {"kind": "pool", "pool": pool}
            self.driver.allocate(A + i * MIB, MIB, **options)
        memory = self.memory([located(A + i * MIB, 5) for i in range(len(pools))])
        chunks = [region.cuda.chunks[0] for region in self.described(memory)]
        opened = [chunk.pool.opens_pool for chunk in chunks]
        self.assertEqual(opened, [True, False, True, False, False, True])
        self.assertEqual(self.contents(memory), ["pool 77", "pool 88", "pool 77"])

    def test_memory_that_cannot_be_exported_is_refused_with_the_remedy(self) -> None:
        none = HandleType.NONE
        for options, message in (
            ({"kind": "pool", "allowed": none}, "cudaMallocAsync.*backend:native"),
            ({"kind": "virtual", "allowed": none}, "expandable_segments:False.*sleep mode"),
            ({"kind": "virtual", "on_device": False}, "allocate it with cudaMalloc"),
            ({"kind": "unheard of"}, "allocate it with cudaMalloc"),
            ({"managed": True}, "managed memory"),
        ):
            driver = self.driver = StandInDriver()
            driver.allocate(A, MIB, **options)
            with self.assertRaisesRegex(dws.LayoutError, "'lm_head.weight'.*" + message):
                self.memory([located(A, 4, "lm_head.weight")])

    def test_an_address_that_is_allocated_again_is_another_allocation(self) -> None:
        self.driver.allocate(A, MIB)
        self.driver.allocate(A + 4 * MIB, 2 * MIB, kind="virtual")
        memory = self.memory([located(A, 4), located(A + 4 * MIB, 4)])
        self.assertTrue(memory.unchanged())
        self.driver.free(A + 4 * MIB)
        self.assertFalse(memory.unchanged())
        self.driver.allocate(A + 4 * MIB, 2 * MIB, kind="virtual")
        self.assertFalse(memory.unchanged())


if __name__ == "__main__":
    unittest.main()
