"""Parameters of a device: that what copies bring is right. A device of the host's memory takes its place (late_copies); of torch's
CUDA runtime only the calls are looked at."""

from __future__ import annotations

import contextlib
import types
import unittest
from typing import Any, Iterator, Optional
from unittest import mock

import numpy as np
import torch

from dws.dtypes import DType
from dws.errors import CudaError, LayoutError, StateError
from dws.on_demand import sharding
from dws.on_demand.comms import UnitGather, UnitReduce
from dws.on_demand.device_copies import CudaRuntime, DeviceCopies, copies_of
from dws.on_demand.gradients import Gradients
from dws.on_demand.rank_memory import RankMemory
from dws.on_demand.training import Training
from dws.on_demand.units import RECORD_BYTES
from tests.clients.python.on_demand.late_copies import LateRuntime
from tests.clients.python.on_demand.traffic_case import RANK, RANKS, UNIT, VERSION, Job, job
from tests.clients.python.stand_in_cuda import StandInDriver

MEAN: Any = getattr(torch.distributed.ReduceOp, "AVG")


class CommsTest(unittest.TestCase):
    """One unit, with a LateRuntime."""

    def setUp(self) -> None:
        self.job = Job()
        self.addCleanup(self.job.close)
        self.runtime = LateRuntime(queries=2)
        self.copies = DeviceCopies(self.runtime, self.job.memory.unit_bytes)
        self.published = {p.name: torch.randn(p.shape).to(torch.bfloat16) for p in UNIT.parameters}
        self._fill(0)

    def _fill(self, slot: int) -> None:
        """The published parameters, in a slot of the arena."""
        self.job.member.offset = slot * self.job.memory.unit_bytes
        for each, begin in zip(UNIT.parameters, UNIT.arena_offsets(2)[0]):
            place = self.job.memory.arena.view("torch", DType.BF16, each.shape, self.job.member.offset + begin)
            place.copy_(self.published[each.name])

    def _gather(self, unit: UnitGather, own: dict[str, Any]) -> Any:
        """As FSDP2 calls it, whose own parameters are those. Returns the output."""
        each_has = UNIT.gathered_elements(RANKS)
        self.runtime.stream = "allocations"
        output = unit.allocate((each_has * RANKS,), dtype=torch.bfloat16, device=torch.device("cpu")).zero_()
        self.runtime.stream = "pass"
        mine, column = output.narrow(0, RANK * each_has, each_has), 0
        for each in UNIT.parameters:
            low, high = each.rows_of(RANK, RANKS)
            part = own[each.name][low:high].reshape(-1)
            mine[column : column + part.numel()] = part
            column += each.padded(RANKS)
        unit(output, mine, None).wait()
        return output

    def _unit(self, copies: Optional[DeviceCopies]) -> UnitGather:
        return UnitGather(0, UNIT, DType.BF16, RANKS, RANK, self.job.memory.arena, self.job.traffic, copies)

    def test_a_gathered_unit_is_that_of_the_host_and_its_slot_is_held_until_the_copy_has_ended(self) -> None:
        expected = self._gather(self._unit(None), self.published)
        self.assertEqual(self.job.member.released, [1])
        unit = self._unit(self.copies)
        for slot in (1, 2, 0, 1):
            self._fill(slot)
            output = self._gather(unit, self.published)
            self.assertTrue(torch.equal(output.view(torch.int16), expected.view(torch.int16)))
            self.assertNotIn(self.job.member.gathers, self.job.member.released)
        self.assertGreater(self.runtime.late, 0)
        # Each copy comes after what has read its buffer two units before, and not after later ones.
        reads = [number for stream, number in self.runtime.followed if stream == "allocations"]
        self.assertEqual(len(reads), 4)
        self.assertEqual(self.runtime.afters[2:], reads[:2])
        self.job.traffic.settle()
        self.job.traffic.end()
        self.assertEqual(self.job.member.released, [1, 2, 3, 4, 5])

    def test_a_slot_that_is_filled_before_the_copy_has_ended_is_noticed(self) -> None:
        self._gather(self._unit(self.copies), self.published)
        self.job.memory.arena.bytes()[0] ^= 1
        with self.assertRaisesRegex(AssertionError, "has changed before the copy had ended"):
            self.job.traffic.end()

    def test_a_part_that_is_not_as_published_is_named_before_the_attempt_is_finished(self) -> None:
        unit = self._unit(self.copies)
        own = {name: each.clone() for name, each in self.published.items()}
        own["b"][2] = -0.0 if own["b"][2] == 0 else -own["b"][2]
        for _ in range(2):  # it is not forgotten that it differs
            self._gather(unit, own)
            with self.assertRaisesRegex(StateError, "'b': this rank's part is not what it has published"):
                self.job.traffic.settle()
        outs = self.runtime.out
        self._gather(unit, self.published)
        self.job.traffic.settle()
        self._gather(unit, own)  # is not compared again in the same version
        self.assertEqual(self.runtime.out, outs + 1)
        self.job.traffic.version = VERSION + 1
        self._gather(unit, own)
        with self.assertRaisesRegex(StateError, "'b'"):
            self.job.traffic.settle()

    def test_gradients_are_seen_by_the_sender_when_they_were_copied_and_not_before(self) -> None:
        forgotten: list[int] = []
        unit = UnitReduce(
            0, UNIT, DType.BF16, RANKS, self.job.traffic, lambda: forgotten.append(1), self.copies
        )
        elements, host = UNIT.shard_elements(RANKS), torch.device("cpu")
        wanted = torch.randn(elements * RANKS).to(torch.bfloat16)
        given = unit.allocate((elements * RANKS,), dtype=torch.bfloat16, device=host)
        output = unit.allocate((elements,), dtype=torch.bfloat16, device=host)
        given.copy_(wanted)
        unit(output, given, None, MEAN)
        self.assertFalse(bool(output.any()))
        self.assertEqual(self.job.pushed(), [])
        found = torch.frombuffer(self.job.outbox._data[0], dtype=torch.bfloat16)[: elements * RANKS]
        self.assertFalse(torch.equal(found, wanted))
        self.job.traffic.settle()
        self.assertEqual([number for number, _ in self.job.pushed()], [1])
        self.assertTrue(torch.equal(found, wanted))
        self.assertEqual(forgotten, [1])


class GradientsTest(unittest.TestCase):
    def test_gradients_are_copies_on_the_device_until_they_are_detached(self) -> None:
        memory = RankMemory([UNIT], RANKS, DType.BF16, DType.BF16, 1, exact=False)
        self.addCleanup(memory.close)
        shared = memory.gradients.view("torch", DType.F32, (memory.gradient_elements,), RECORD_BYTES)
        shared.copy_(torch.arange(shared.numel(), dtype=torch.float32))
        parameters: Any = {
            each.name: types.SimpleNamespace(
                to_local=lambda each=each: torch.zeros(each.rows_of(RANK, RANKS)[1] - each.rows_of(RANK, RANKS)[0], *each.shape[1:]),
                device_mesh=None, placements=None, shape=each.shape, stride=lambda: (), grad=None,
            )
            for each in UNIT.parameters
        }
        gradients = Gradients(parameters, [UNIT], RANKS, memory, DeviceCopies(LateRuntime(), memory.unit_bytes))
        tensors = types.SimpleNamespace(DTensor=types.SimpleNamespace(from_local=lambda part, *_, **__: part))
        with mock.patch.dict("sys.modules", {"torch.distributed.tensor": tensors}):
            gradients.attach(0.5)
        gradients.scale(0.5)
        for name, begin, shape in (("a", 0, (3, 5)), ("b", 15, (2,))):
            wanted = 0.25 * (begin + torch.arange(int(np.prod(shape)), dtype=torch.float32)).view(shape)
            self.assertTrue(torch.equal(parameters[name].grad, wanted), name)
        self.assertIsNone(parameters["frozen"].grad)
        self.assertEqual(float(shared[8]), 8.0)
        gradients.detach()
        self.assertIsNone(parameters["a"].grad)


class MemoryTest(unittest.TestCase):
    def test_memory_that_a_device_copies_from_and_to_is_page_locked_as_long_as_it_is_used(self) -> None:
        driver = StandInDriver()
        with driver.installed():
            memory = RankMemory([UNIT], RANKS, DType.BF16, DType.BF16, 1, exact=False)
            before = memory.outbox(2)
            self.assertEqual(driver.asked, [])
            memory.pin()
            outbox = memory.outbox(2)
            sizes = [region.size_bytes for region in (memory.arena, memory.gradients, outbox.region)]
            self.assertEqual(driver.asked, [("register", size) for size in sizes])
            outbox.close()
            memory.close()
            self.assertEqual(driver.asked[3:], [("unregister",)] * 3)
            before.close()

    def test_memory_that_cannot_be_page_locked_is_named_in_the_log(self) -> None:
        driver = StandInDriver()
        refused = mock.patch.object(driver, "register_host", side_effect=CudaError("no locked memory is left"))
        with driver.installed(), refused, job() as rank, self.assertLogs("dws", "WARNING") as logs:
            rank.memory.pin()
        self.assertEqual(len(logs.output), 2)
        self.assertIn("not page-locked", logs.output[0])


class DevicesTest(unittest.TestCase):
    def test_a_rank_has_all_parameters_on_one_device(self) -> None:
        def check(**devices: str) -> None:
            sharding._check_devices(
                [(name, types.SimpleNamespace(device=torch.device(of))) for name, of in devices.items()]
            )

        check(a="cpu", b="cpu")
        check(a="cuda:1", b="cuda:1")
        with self.assertRaisesRegex(LayoutError, "'a' is on cuda:0, 'b' on cuda:1: expected all of a rank on one device"):
            check(a="cuda:0", b="cuda:1")
        with self.assertRaisesRegex(LayoutError, "'a' is on cpu, 'b' on cuda:0"):
            check(a="cpu", b="cuda:0")
        with self.assertRaisesRegex(LayoutError, "'a' is on meta, expected the host or a CUDA device: call model.to_empty"):
            check(a="meta")
        with self.assertRaisesRegex(LayoutError, "'a' is on xpu:0, expected the host or a CUDA device$"):
            check(a="xpu:0")

    def test_the_sender_reads_on_the_device_only_what_is_a_copy(self) -> None:
        def reads(model: Any, dtype: DType, on_device: bool = True, copies: Any = "some") -> bool:
            od = Training("/nowhere/{rank}.sock", "job", on_device=on_device)
            od._model, od._dtype, od._copies = model, dtype, copies
            return od._reads_on_device()

        tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        tied[1].weight = tied[0].weight
        self.assertTrue(reads(tied, DType.BF16))
        self.assertFalse(reads(tied, DType.BF16, on_device=False))
        self.assertFalse(reads(tied, DType.F32))
        self.assertTrue(reads(tied, DType.F32, copies=None))
        self.assertFalse(reads(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), DType.BF16))

    def test_parameters_of_the_host_need_no_copies(self) -> None:
        self.assertIsNone(copies_of(torch.device("cpu"), 64))


class CudaTest(unittest.TestCase):
    """The calls of torch's CUDA runtime, which is not here."""

    def setUp(self) -> None:
        self.calls: list[Any] = []
        self.streams = ["pass"]

        def stream(device: Any) -> Any:
            return types.SimpleNamespace(
                name="copies", wait_event=lambda event: self.calls.append(("copies waits", event.name))
            )

        @contextlib.contextmanager
        def on(stream: Any) -> Iterator[None]:
            self.streams.append(stream.name)
            yield
            self.streams.pop()

        def event(blocking: bool) -> Any:
            made = types.SimpleNamespace(name="", record=lambda stream: setattr(made, "name", f"event on {stream}"))
            return made

        cuda = torch.cuda
        patches = {"Stream": stream, "Event": event, "stream": on, "current_stream": lambda device: self.streams[-1]}
        for name, call in patches.items():
            patch = mock.patch.object(cuda, name, call)
            patch.start()
            self.addCleanup(patch.stop)
        self.runtime = CudaRuntime(torch.device("cuda", 0))

    def _tensor(self) -> Any:
        def copy(source: Any, non_blocking: bool) -> None:
            self.calls.append((self.streams[-1], source, non_blocking))

        return types.SimpleNamespace(copy_=copy)

    def test_units_are_copied_beside_the_pass_after_what_has_read_their_buffer(self) -> None:
        after = self.runtime.mark()
        done: Any = self.runtime.copy_in(self._tensor(), "the unit", after)
        self.assertEqual(self.calls, [("copies waits", "event on pass"), ("copies", "the unit", True)])
        self.assertEqual(done.name, "event on copies")

    def test_gradients_are_copied_on_the_stream_of_the_call(self) -> None:
        done: Any = self.runtime.copy_out(self._tensor(), "gradients")
        self.assertEqual((self.calls, done.name), ([("pass", "gradients", True)], "event on pass"))


if __name__ == "__main__":
    unittest.main()
