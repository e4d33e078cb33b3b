"""dws.cuda_driver and handing memory over, with a real driver if there is one, else with the fake one."""

import ctypes
import os
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import numpy as np

import dws
from dws._proto import engine_pb2
from dws.cuda_api import Attribute, HandleType
from dws.cuda_driver import CudaDriver
from dws.cuda_memory import CudaMemory
from dws.device_tensor import DeviceTensor
from dws.dtypes import DType
from dws.errors import CudaError
from dws.host_pin import HostPin
from dws.memory import SharedRegion
from tests.clients.python.fake_daemons import FakeReceiver, pause
from tests.clients.python.gpu import GRANULARITY, Gpu, GpuTensor


def located(address: int, size_bytes: int, name: str = "w") -> DeviceTensor:
    return DeviceTensor(name, DType.U8, (size_bytes,), (1,), address)


def described(memory: CudaMemory) -> Any:
    request = engine_pb2.AttachRequest()
    memory.describe(request.regions)
    return request.regions


def alone(program: str, **environment: str) -> str:
    """The output of `program` in a new process."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


class CudaDriverTest(unittest.TestCase):
    def setUp(self) -> None:
        self.gpu = Gpu()
        self.driver = CudaDriver.load()

    def test_a_device_is_named_by_its_uuid(self) -> None:
        uuids = [self.driver.device_uuid(ordinal) for ordinal in range(2)]
        for uuid in uuids:
            self.assertRegex(uuid, "^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
        self.assertNotEqual(*uuids)
        program = "from dws.cuda_driver import CudaDriver; print(CudaDriver.load().device_uuid(0))"
        self.assertEqual(alone(program, CUDA_VISIBLE_DEVICES="1,0").strip(), uuids[1])

    def test_a_mig_instance_is_refused(self) -> None:
        program = (
            "import dws; from dws.cuda_driver import CudaDriver\n"
            "try: CudaDriver.load().device_uuid(0)\n"
            "except dws.CudaError as error: print(error)\n"
        )
        said = alone(program, DWS_FAKE_CUDA_NAME="NVIDIA H200 MIG 1g.18gb")
        self.assertIn("MIG instance cannot be shared", said)

    def test_a_machine_without_a_driver_says_what_to_do(self) -> None:
        program = (
            "import dws; from dws.cuda_driver import CudaDriver\n"
            "try: CudaDriver.load()\n"
            "except dws.CudaError as error: print(error)\n"
            "print(CudaDriver.in_use())\n"
        )
        said = alone(program, LD_LIBRARY_PATH="/nowhere")
        if "None" != said.strip():  # "None": this machine has a driver
            self.assertRegex(said, "libcuda.so.1 cannot be loaded.*install the NVIDIA driver")

    def test_cuda_is_in_use_only_once_the_process_has_a_context(self) -> None:
        program = (
            "import ctypes; from dws.cuda_driver import CudaDriver\n"
            "print(CudaDriver.in_use())\n"
            "library = ctypes.CDLL('libcuda.so.1')\n"
            "print(CudaDriver.in_use())\n"
            "library.cuInit(0)\n"
            "print(CudaDriver.in_use())\n"
            "context = ctypes.c_void_p()\n"
            "library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)\n"
            "print(CudaDriver.in_use() is not None)\n"
        )
        self.assertEqual(alone(program).split(), ["None", "None", "None", "True"])

    def test_an_error_has_the_drivers_name_for_it(self) -> None:
        with self.assertRaisesRegex(CudaError, "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE .101.: "):
            self.driver.synchronize(99)
        self.assertIsNone(self.driver.attribute(Attribute.BUFFER_ID, 0x1000))

    def test_the_callers_context_is_restored(self) -> None:
        before = self.gpu._context.value
        with self.driver.context(1):
            self.assertNotEqual(self._current(), before)
        self.assertEqual(self._current(), before)
        self.gpu.call("cuCtxSetCurrent", None)
        with self.driver.any_context():
            self.assertIsNone(self.driver.attribute(Attribute.BUFFER_ID, 0x1000))
        self.assertIsNone(self._current())

    def _current(self) -> Any:
        current = ctypes.c_void_p()
        self.gpu.call("cuCtxGetCurrent", ctypes.byref(current))
        return current.value

    def test_shared_memory_is_page_locked_and_released(self) -> None:
        region = SharedRegion("test", 1 << 20)
        pin = HostPin(region)
        pin.try_pin()
        self.assertTrue(pin.pinned)
        with self.assertLogs("dws") as logs:
            HostPin(region).try_pin()  # a second time
        self.assertIn("ALREADY_REGISTERED", logs.output[0])
        pin.close()
        again = HostPin(region)
        again.try_pin()
        self.assertTrue(again.pinned)


class MemoryTest(unittest.TestCase):
    def setUp(self) -> None:
        self.gpu = Gpu()

    def test_a_malloc_is_shared_whole_by_one_handle(self) -> None:
        address = self.gpu.malloc(1 << 20)
        memory = CudaMemory([located(address + 512, 100), located(address + 4096, 100)])
        (region,) = described(memory)
        self.assertEqual((region.size_bytes, len(region.cuda.chunks[0].ipc)), (1 << 20, 64))
        self.assertRegex(region.cuda.device_uuid, "^GPU-")
        self.assertTrue(memory.unchanged())
        memory.synchronize()
        self.gpu.free(address)
        self.assertFalse(memory.unchanged())

    def test_chunks_of_a_range_are_descriptors_in_order(self) -> None:
        base = self.gpu.reserve(6 * GRANULARITY)
        for at, chunks in ((0, 1), (1, 2), (3, 1)):
            self.gpu.map(base + at * GRANULARITY, chunks * GRANULARITY)
        tensor = located(base + GRANULARITY // 2, 3 * GRANULARITY)
        memory = CudaMemory([tensor])
        (region,) = described(memory)
        sizes = [chunk.size_bytes // GRANULARITY for chunk in region.cuda.chunks]
        self.assertEqual(sizes, [1, 2, 1])
        self.assertEqual(memory.place(tensor, 0), (0, GRANULARITY // 2))
        for size, make in zip(sizes, memory.descriptors()):
            descriptor = make()
            self.assertFalse(os.get_inheritable(descriptor))
            self.assertEqual(os.fstat(descriptor).st_size, size * GRANULARITY)
            os.close(descriptor)
        # The weights sleep and are woken in other memory at the same address.
        self.gpu.unmap(base + GRANULARITY, 2 * GRANULARITY)
        self.assertFalse(memory.unchanged())
        with self.assertRaisesRegex(dws.LayoutError, "no memory of a CUDA device lies at"):
            CudaMemory([tensor])
        self.gpu.map(base + GRANULARITY, 2 * GRANULARITY)
        self.assertFalse(memory.unchanged())
        self.assertTrue(CudaMemory([tensor]).unchanged())

    def test_memory_of_an_explicit_pool_is_shared_and_of_the_default_pool_refused(self) -> None:
        memory = CudaMemory([located(self.gpu.malloc_async(5000, self.gpu.pool()), 10)])
        (region,) = described(memory)
        self.assertEqual(len(region.cuda.chunks[0].pool.pointer), 64)
        (make,) = memory.descriptors()
        os.close(make())
        with self.assertRaisesRegex(dws.LayoutError, "backend:native"):
            CudaMemory([located(self.gpu.malloc_async(5000), 10)])

    def test_chunks_that_cannot_be_exported_are_refused(self) -> None:
        base = self.gpu.reserve(GRANULARITY)
        self.gpu.map(base, GRANULARITY, HandleType.NONE)
        with self.assertRaisesRegex(dws.LayoutError, "'w'.*expandable_segments:False"):
            CudaMemory([located(base, 10)])

    def test_an_engine_hands_its_memory_over_and_drains_the_device(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        receiver = FakeReceiver(folder.name)
        self.addCleanup(receiver.stop)
        engine = dws.Engine(receiver.socket)
        self.addCleanup(engine.close)
        tensor = GpuTensor(self.gpu, self.gpu.malloc(4096), (8, 3), DType.BF16, strides=(4, 1))
        values = np.arange(24, dtype=np.uint16).reshape(8, 3)
        tensor.put(values)
        self.assertIs(engine.attach({"w": tensor})["w"], tensor)
        np.testing.assert_array_equal(tensor.get(), values)
        self.assertEqual(len(receiver.attached.regions[0].cuda.chunks[0].ipc), 64)
        down, up = receiver.leases.get(timeout=20)
        up.get(timeout=20)
        down.put(pause(3))
        self.assertTrue(up.get(timeout=20).paused.devices_drained)


if __name__ == "__main__":
    unittest.main()
