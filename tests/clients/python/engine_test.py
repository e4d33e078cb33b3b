"""dws.Engine against a stand-in for the receiver."""

import asyncio
import gc
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Optional
from unittest import mock

import grpc
import numpy as np
import torch

import dws
from dws._proto import engine_pb2
from tests.clients.python.fake_daemons import FakeReceiver, pause, resume


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.005)


class EngineTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(lambda: self.receiver.stop())

    def engine(self) -> dws.Engine:
        engine = dws.Engine(self.receiver.socket)
        self.addCleanup(engine.close)
        return engine

    def test_an_attach_that_others_displaced_is_made_again(self) -> None:
        displaced = [bytes(16), self.receiver.handles.token()]
        with mock.patch.object(self.receiver.handles, "token", lambda: displaced.pop(0)):
            self.engine().attach({"a": np.ones(3, np.uint8)})
        self.assertEqual(displaced, [])

    def attached(self, target: Any, **options: Any) -> tuple[dws.Engine, Any, Any]:
        engine = self.engine()
        engine.attach(target, **options)
        down, up = self.receiver.leases.get(timeout=20)
        self.assertEqual(up.get(timeout=20).open.generation, 1)
        return engine, down, up

    def test_a_modules_parameters_become_views_of_memory_that_the_receiver_writes(self) -> None:
        module = torch.nn.Linear(4, 3).to(torch.bfloat16)
        before = module.weight.detach().clone()
        engine, down, _ = self.attached(module)
        self.assertTrue(torch.equal(module.weight, before))
        self.assertTrue(module.weight.requires_grad)
        view = {v.engine_name: v for v in self.receiver.attached.views}["weight"]
        self.assertEqual((list(view.shape), list(view.strides)), ([3, 4], [4, 1]))
        self.assertTrue(view.whole)
        memory = np.frombuffer(self.receiver.writable_region(), np.uint16)
        memory[view.offset_bytes // 2 + 5] = 0x4000
        down.put(resume(1))
        with engine.running(20) as grant:
            self.assertEqual(module.weight[1, 1].item(), 2.0)
        self.assertEqual((grant.version, grant.state_token), (1, f"{0xAB:016x}{0xCD:016x}"))

    def test_tied_parameters_are_attached_once_and_stay_tied(self) -> None:
        class Tied(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embed = torch.nn.Embedding(5, 4)
                self.head = torch.nn.Linear(4, 5, bias=False)
                self.head.weight = self.embed.weight
                self.register_buffer("scale", torch.ones(2))
                self.register_buffer("table", torch.ones(9), persistent=False)

        module = Tied()
        self.attached(module)
        names = sorted(view.tensor for view in self.receiver.attached.views)
        self.assertEqual(names, ["embed.weight", "scale"])
        np.frombuffer(self.receiver.writable_region(), np.float32)[:] = 3
        self.assertEqual(module.head.weight.sum().item(), 60)
        self.assertEqual(module.scale.sum().item(), 6)

    def test_fused_and_sliced_parameters_are_described_by_strides(self) -> None:
        arrays = {
            "qkv": np.zeros((8, 6), np.float32),
            "down": np.zeros((5, 2), np.float32),
            "up": np.zeros((3, 10), np.float32),
            "own": np.zeros(3, np.float32),
        }
        self.attached(
            arrays,
            mapping={
                "qkv": dws.Fused(["q", "k", dws.Slice("v", 0, 2, 4)], sizes=[4, 2, 2]),
                "down": dws.Slice("down", dim=1, begin=4, end=6),
                "up": dws.Fused([dws.Slice("g", 1, 0, 5), dws.Slice("u", 1, 5, 10)], dim=1),
                "own": None,
            },
            excluded=["unused"],
        )
        views = {view.tensor: view for view in self.receiver.attached.views}
        self.assertEqual(sorted(views), ["down", "g", "k", "q", "u", "v"])
        offset = views["q"].offset_bytes
        self.assertEqual([views[n].offset_bytes - offset for n in "qkv"], [0, 96, 144])
        self.assertEqual((list(views["k"].shape), views["k"].whole), ([2, 6], True))
        self.assertEqual((views["v"].whole, views["v"].begin, views["v"].end), (False, 2, 4))
        self.assertEqual((views["down"].dim, views["down"].begin, views["down"].end), (1, 4, 6))
        self.assertEqual((list(views["u"].shape), list(views["u"].strides)), ([3, 5], [10, 1]))
        self.assertEqual(views["u"].offset_bytes - views["g"].offset_bytes, 20)
        self.assertEqual(list(self.receiver.attached.excluded), ["unused"])

    def test_bad_mappings_are_refused_by_name(self) -> None:
        array = {"a": np.zeros((4, 2), np.float32)}
        for mapping, message in (
            ({"b": "x"}, "does not have: \\['b'\\]"),
            ({"a": dws.Fused(["x", "y", "z"])}, "'a' has 4 .*sizes="),
            ({"a": dws.Slice("x", 0, 0, 3)}, "its extent must be 3"),
            ({"a": dws.Fused(["x", "y"], dim=2)}, "no dimension 2"),
            ({"a": None}, "nothing to attach"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, message):
                self.engine().attach(array, mapping=mapping)
        with self.assertRaisesRegex(dws.LayoutError, "'a'.*not contiguous"):
            self.engine().attach({"a": torch.zeros(4, 2).t()})
        with self.assertRaises(dws.LayoutError):
            dws.Slice("x", 0, 3, 3)

    def test_a_refused_attach_does_not_change_the_module(self) -> None:
        self.receiver.refuse = "rows [3, 7) are no union of the slices at {4, 8}"
        module = torch.nn.Linear(4, 3)
        pointer = module.weight.data_ptr()
        with self.assertRaisesRegex(dws.InvalidArgumentError, "union of the slices at {4, 8}"):
            self.engine().attach(module)
        self.assertEqual(module.weight.data_ptr(), pointer)

    def test_an_absent_receiver_is_named_with_the_command_to_start_it(self) -> None:
        engine = dws.Engine(self.folder + "/none.sock")
        with self.assertRaisesRegex(
            dws.DaemonUnavailableError, "none.sock.*Start it: dws-receiver --socket"
        ):
            engine.attach({"a": np.zeros(4, np.float32)})

    def test_a_pause_waits_for_running_blocks_and_the_hook_runs_before_the_resume(self) -> None:
        hooks = []
        engine, down, up = self.attached({"a": np.zeros(4, np.float32)}, post_commit=hooks.append)
        with self.assertRaisesRegex(dws.EnginePaused, "attached"):
            engine.wait_ready(0)
        down.put(resume(1))
        with engine.running(20):
            down.put(pause(5))
            eventually(lambda: engine.grant is None, "the gate shuts")
            self.assertTrue(up.empty())
        self.assertEqual(up.get(timeout=20).paused.pause_id, 5)
        with self.assertRaisesRegex(dws.EnginePaused, "commits a version"):
            engine.wait_ready(0.01)
        down.put(engine_pb2.LeaseDown(post_commit=engine_pb2.PostCommit(pause_id=5, version=2)))
        self.assertEqual(up.get(timeout=20).post_commit_done.error, "")
        down.put(resume(2, pause_id=5))
        self.assertEqual(engine.wait_ready(20).version, 2)
        self.assertEqual(hooks, [2])
        self.assertEqual(engine.stats().lease.grants, 2)

    def test_tasks_that_overlap_are_paused_between_two_blocks(self) -> None:
        engine, down, up = self.attached({"a": np.zeros(4, np.float32)})
        down.put(resume(1))

        async def request(number: int) -> None:
            await asyncio.sleep(0.005 * number)
            while True:
                async with engine.running(20) as grant:
                    await asyncio.sleep(0.03)
                    if grant.version == 2:
                        return

        async def serve() -> None:
            requests = asyncio.gather(*(request(number) for number in range(8)))
            await asyncio.sleep(0.1)  # they overlap now
            self.assertEqual(engine.wait_ready(0).version, 1)
            down.put(pause(5))
            answer = await asyncio.to_thread(up.get, timeout=20)
            self.assertEqual(answer.paused.pause_id, 5)
            down.put(resume(2, pause_id=5))
            await requests

        asyncio.run(serve())

    def test_a_task_that_waits_too_long_is_told_what_the_receiver_waits_for(self) -> None:
        engine, _, _ = self.attached({"a": np.zeros(4, np.float32)})
        self.receiver.waits_for = "version 7 is being fetched"

        async def main() -> None:
            async def enter() -> None:
                async with engine.running(2):
                    pass

            task = asyncio.create_task(enter())
            while not task.done():  # the loop runs meanwhile
                await asyncio.sleep(0.001)
            with self.assertRaisesRegex(dws.EnginePaused, "version 7 is being fetched"):
                await task

        asyncio.run(main())

    def test_a_rebuild_gets_the_tensors_that_have_changed_since_it_last_returned(self) -> None:
        calls: list[Any] = []
        fails = False

        def rebuild(changed: Optional[frozenset[str]]) -> None:
            calls.append(changed)
            if fails:
                raise ValueError("no memory")

        tensors = {"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32)}
        _, down, up = self.attached(tensors, rebuild=rebuild)
        names = [view.tensor for view in self.receiver.attached.views]
        self.assertEqual(names, ["a", "b"])

        def commit(*contents: int) -> Any:
            hook = engine_pb2.PostCommit(pause_id=1, version=2, contents=contents)
            down.put(engine_pb2.LeaseDown(post_commit=hook))
            self.assertEqual(up.get(timeout=20).post_commit_done.error != "", fails)
            return calls.pop()

        self.assertIsNone(commit(1, 2))
        self.assertEqual(commit(1, 2), frozenset())
        self.assertEqual(commit(1, 3), frozenset({"b"}))
        fails = True
        self.assertEqual(commit(4, 3), frozenset({"a"}))
        fails = False
        self.assertIsNone(commit(4, 3))  # what the failed one has done is not known
        self.assertIsNone(commit())  # a receiver that does not say
        self.assertIsNone(commit(4, 3))
        self.assertEqual(commit(2**64 - 1, 3), frozenset({"a"}))

    def test_a_hook_that_raises_is_reported(self) -> None:
        def hook(version: int) -> None:
            raise ValueError(f"cannot rebuild for {version}")

        _, down, up = self.attached({"a": np.zeros(4, np.float32)}, post_commit=hook)
        down.put(engine_pb2.LeaseDown(post_commit=engine_pb2.PostCommit(pause_id=1, version=2)))
        done = up.get(timeout=20).post_commit_done
        self.assertEqual(done.error, "ValueError: cannot rebuild for 2")

    def restart_receiver(self) -> None:
        self.receiver.stop()
        self.receiver = FakeReceiver(self.folder)

    def test_a_running_engine_that_loses_its_receiver_runs_until_it_attaches_again(self) -> None:
        engine, down, _ = self.attached({"a": np.zeros(4, np.float32)})
        down.put(resume(1))
        engine.wait_ready(20)
        self.receiver.stop()
        eventually(lambda: not engine.stats().connected, "the loss is seen")
        self.assertEqual(engine.wait_ready(0).version, 1)
        entered = threading.Event()
        with engine.running(0):  # before a receiver is back, because attaching again pauses
            self.receiver = FakeReceiver(self.folder)
            eventually(lambda: self.receiver.attached is not None, "attached again")
            # No descriptor is handed over while a forward pass runs.
            self.assertEqual(self.receiver.handles.received, [])
            entered.set()
        down, up = self.receiver.leases.get(timeout=20)
        with self.assertRaises(dws.EnginePaused):
            engine.wait_ready(0)
        down.put(resume(4))
        self.assertEqual(engine.wait_ready(20).version, 4)
        eventually(lambda: engine.stats().reattachments == 1, "counted")

    def test_a_paused_engine_that_loses_its_receiver_stays_paused_until_released(self) -> None:
        engine, down, up = self.attached({"a": np.zeros(4, np.float32)})
        down.put(resume(1))
        engine.wait_ready(20)
        down.put(pause(9))
        up.get(timeout=20)
        self.receiver.stop()
        eventually(lambda: not engine.stats().connected, "the loss is seen")
        with self.assertRaisesRegex(dws.EnginePaused, "lost"):
            engine.wait_ready(0.5)  # the reason appears shortly after the connection is lost
        self.receiver = FakeReceiver(self.folder)
        down, _ = self.receiver.leases.get(timeout=20)
        with self.assertRaises(dws.EnginePaused):
            engine.wait_ready(0.05)
        down.put(resume(2))
        self.assertEqual(engine.wait_ready(20).version, 2)

    def test_an_engine_that_has_ended_is_paused_for_good(self) -> None:
        engine, down, _ = self.attached({"a": np.zeros(4, np.float32)})
        down.put(resume(1))
        engine.wait_ready(20)
        self.receiver.refuse = "its commit group has ended"
        self.receiver.refuse_code = grpc.StatusCode.UNAVAILABLE
        down.put(None)  # the receiver ends the lease
        eventually(lambda: "group has ended" in engine.stats().last_error, "refused")
        self.assertEqual(engine.wait_ready(0).version, 1)  # still running: UNAVAILABLE is not final
        self.receiver.refuse_code = grpc.StatusCode.PERMISSION_DENIED
        eventually(lambda: engine.grant is None, "paused")
        with self.assertRaisesRegex(dws.EnginePaused, "its commit group has ended"):
            engine.wait_ready(0)
        another = dws.Engine(self.receiver.socket)
        self.addCleanup(another.close)
        with self.assertRaisesRegex(dws.EngineEndedError, "its commit group has ended"):
            another.attach({"a": np.zeros(4, np.float32)})

    def test_a_closed_engine_is_paused_for_good(self) -> None:
        engine, down, _ = self.attached({"a": np.zeros(4, np.float32)})
        down.put(resume(1))
        engine.wait_ready(20)
        engine.close()
        with self.assertRaisesRegex(dws.EnginePaused, "closed"):
            engine.wait_ready(0)
        engine.close()

    def test_an_engine_that_stops_tells_the_receiver_why_and_attaches_no_more(self) -> None:
        engine, down, up = self.attached({"a": np.zeros(4, np.float32)})
        down.put(resume(1))
        with engine.running(20):
            engine.stop("'layers.0.copy' is a copy of a weight")
            with engine.running(0):  # what is inside goes on
                pass
        self.assertEqual(up.get(timeout=20).stopped.reason, "'layers.0.copy' is a copy of a weight")
        down.put(None)
        for timeout in (0, 60, None):
            with self.assertRaisesRegex(dws.EnginePaused, "'layers.0.copy' is a copy of a weight"):
                engine.wait_ready(timeout)
        eventually(lambda: not engine.stats().connected, "the lease has ended")
        self.assertEqual(engine.stats().reattachments, 0)
        engine.close()
        with self.assertRaisesRegex(dws.EnginePaused, "'layers.0.copy' is a copy of a weight"):
            engine.wait_ready(0)

    def test_a_closed_engine_leaves_no_call_to_the_garbage_collector(self) -> None:
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        engine, down, _ = self.attached({"a": np.zeros(4, np.float32)})
        down.put(resume(1))
        engine.wait_ready(20)
        engine.close()
        # Threads of gRPC may hold it a moment longer. Nothing else ends it while the collector is off.
        deadline = time.monotonic() + 20
        while (left := self.calls()) and time.monotonic() < deadline:
            del left
            time.sleep(0.05)
        self.assertEqual(left, [])

    def calls(self) -> list[Any]:
        """Streams of gRPC that exist."""
        return [one for one in gc.get_objects() if type(one).__name__ == "_MultiThreadedRendezvous"]


if __name__ == "__main__":
    unittest.main()
