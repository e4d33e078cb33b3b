"""vLLM's weight transfer backend "dws" in a stand-in for vLLM, against a stand-in for the receiver; and with two
ranks, also of the worker extension: an error of a rank is one error of its RPC, and later RPCs get their replies."""

from __future__ import annotations

import os
import signal
import threading
import time
import types
import unittest
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional, Sequence
from unittest import mock

import dws
import dws.vllm
from dws.plugins.fingerprint import fingerprint
from tests.clients.python.fake_daemons import pause, resume
from tests.clients.python.vllm_case import SCHEDULED, VllmCase, config, parallel_state, step
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

RANKS = 2
ANSWERED = 4.0  # seconds for an update during which the test does something, on a busy machine


def transferring(ranks: int = 1, **settings: Any) -> Any:
    """A config of vLLM with the backend."""
    changed = config(tensor_parallel_size=ranks)
    vars(changed).update(weight_transfer_config=types.SimpleNamespace(backend="dws"), **settings)
    return changed


class VllmTransferTest(VllmCase):
    def setUp(self) -> None:
        super().setUp()
        dws.vllm.register()
        dws.vllm.register()  # vLLM loads plugins in each of its processes, in some twice
        # As vLLM's workers: one thread for all calls.
        self.thread = ThreadPoolExecutor(1)
        self.addCleanup(self.thread.shutdown)

    def call(self, worker: Any, method: str, *arguments: Any, **named: Any) -> Future[Any]:
        return self.thread.submit(worker.execute_method, method, *arguments, **named)

    def initialised(self, **options: Any) -> Any:
        worker = self.worker(transferring())
        init_info = {"socket": self.receiver.socket, "options": {"step_timeout": 0.05, **options}}
        self.call(worker, "init_weight_transfer_engine", init_info).result(60)
        self.addCleanup(self.close, worker)
        return worker

    def close(self, worker: Any) -> None:
        self.call(worker, "shutdown_weight_transfer_engine").result(60)

    def update(self, worker: Any, **update_info: Any) -> Future[Any]:
        self.call(worker, "start_weight_update").result(60)
        return self.call(worker, "update_weights", update_info)

    def opened(self) -> tuple[Any, Any]:
        down, up = self.receiver.leases.get(timeout=20)
        self.assertEqual(up.get(timeout=20).WhichOneof("message"), "open")
        return down, up

    def asked(self, up: Any) -> int:
        return int(up.get(timeout=20).commit_request.version)

    def updated(self, worker: Any) -> tuple[Any, Any]:
        """After the first update, to version 1."""
        update = self.update(worker, version=1)
        down, up = self.opened()
        self.assertEqual(self.asked(up), 1)
        self.write_norm(2.0)
        down.put(resume(1))
        update.result(60)
        self.assertEqual(self.asked(up), 0)
        self.call(worker, "finish_weight_update").result(60)
        return down, up

    def test_commits_fall_into_update_weights_alone(self) -> None:
        worker = self.initialised()
        self.assertIsNotNone(step(worker).logits)  # not attached yet: vLLM's own weights
        down, up = self.updated(worker)
        self.assertTrue(self.receiver.attached.commits_on_request)
        self.assertEqual(step(worker).logits, (2.0, 2.0))
        down.put(pause(1))  # outside of an update: not answered
        self.assertEqual(step(worker).logits, (2.0, 2.0))
        self.assertTrue(up.empty())
        update = self.update(worker, version=2)
        self.assertEqual(self.asked(up), 2)
        self.assertEqual(up.get(timeout=20).paused.pause_id, 1)
        self.write_norm(4.0)
        down.put(resume(2, 1))
        update.result(60)
        self.call(worker, "finish_weight_update").result(60)
        self.assertEqual(step(worker).logits, (4.0, 4.0))

    def test_a_step_between_its_two_calls_is_refused(self) -> None:
        worker = self.initialised()
        self.updated(worker)
        self.assertIsNone(worker.execute_model(SCHEDULED))
        with self.assertRaisesRegex(dws.StateError, "pause generation"):
            self.update(worker, version=2).result(60)
        self.assertEqual(worker.sample_tokens(None).logits, (2.0, 2.0))

    def test_a_number_that_memory_has_of_an_unnamed_stream_is_logged_with_its_stream(self) -> None:
        worker = self.initialised()
        down, up = self.updated(worker)
        with self.assertLogs("dws", "WARNING") as logged:
            self.update(worker, version=1).result(60)
        self.assertIn(f"memory has 1 of stream {dws.Stream(1, 2)}", logged.output[0])
        self.assertEqual([self.asked(up), self.asked(up)], [1, 0])
        # A trainer that has restarted names its own.
        update = self.update(worker, version=1, stream=str(dws.Stream(2, 3)))
        self.assertEqual(self.asked(up), 1)
        down.put(pause(1))
        up.get(timeout=20)
        self.write_norm(4.0)
        down.put(resume(1, 1, dws.Stream(2, 3)))
        update.result(60)
        self.assertEqual(step(worker).logits, (4.0, 4.0))

    def test_an_update_of_wrong_types_is_refused_by_name_and_changes_nothing(self) -> None:
        worker = self.initialised()
        _, up = self.updated(worker)
        for wrong in (
            {"version": "2"},
            {"version": True},
            {"version": 0},
            {"version": 1 << 64},
            {"version": 2, "timeout": "1"},
            {"version": 2, "timeout": float("nan")},
            {"version": 2, "stream": 7},
            {"version": 2, "newer": 1},
        ):
            with self.assertRaisesRegex(dws.InvalidArgumentError, f"has {list(wrong)[-1]}="):
                self.update(worker, **wrong).result(60)
        self.assertTrue(up.empty())
        self.assertEqual(step(worker).logits, (2.0, 2.0))

    def test_a_newer_version_has_to_be_named_or_allowed(self) -> None:
        worker = self.initialised()
        down, up = self.updated(worker)
        update = self.update(worker, version=2)
        self.assertEqual(self.asked(up), 2)
        down.put(pause(1))
        up.get(timeout=20)
        down.put(resume(3, 1))
        message = "2 was asked for, and 3 of stream 1:.*2 is in memory: ask for 3"
        with self.assertRaisesRegex(dws.StateError, message):
            update.result(60)
        self.update(worker, version=3).result(60)
        self.update(worker, version=2, newer=True).result(60)

    def test_a_version_that_does_not_come_leaves_the_one_that_is_there(self) -> None:
        worker = self.initialised()
        self.updated(worker)
        with self.assertRaisesRegex(dws.DeadlineError, "version 2 was not committed within 0"):
            self.update(worker, version=2, timeout=0.05).result(60)
        self.assertEqual(step(worker).logits, (2.0, 2.0))
        with self.assertRaisesRegex(dws.DeadlineError, "of stream 1:"):
            self.update(worker, version=1, timeout=0.05, stream=str(dws.Stream(7, 7))).result(60)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "'7' is no stream"):
            self.update(worker, version=1, stream="7").result(60)

    def test_a_commit_that_had_begun_at_the_deadline_is_an_update(self) -> None:
        for stream in (None, dws.Stream(1, 2)):
            with self.subTest(stream=stream):
                worker = self.initialised(step_timeout=20)
                down, up = self.updated(worker)
                named = None if stream is None else str(stream)
                update = self.update(worker, version=2, timeout=ANSWERED, stream=named)
                self.assertEqual(self.asked(up), 2)
                down.put(pause(1))
                self.assertEqual(up.get(timeout=20).paused.pause_id, 1)
                self.assertEqual(self.asked(up), 0)  # the deadline
                self.write_norm(4.0)
                down.put(resume(2, 1))
                update.result(60)
                self.assertEqual(step(worker).logits, (4.0, 4.0))

    def test_a_commit_of_another_version_at_the_deadline_is_none(self) -> None:
        worker = self.initialised(step_timeout=20)
        down, up = self.updated(worker)
        update = self.update(worker, version=3, timeout=ANSWERED)
        self.assertEqual(self.asked(up), 3)
        down.put(pause(1))
        self.assertEqual(up.get(timeout=20).paused.pause_id, 1)
        self.assertEqual(self.asked(up), 0)
        down.put(resume(2, 1))
        with self.assertRaisesRegex(dws.DeadlineError, "version 3 was not committed"):
            update.result(60)

    def test_a_worker_whose_memory_has_no_whole_version_ends(self) -> None:
        worker = self.initialised()
        update = self.update(worker, version=1, timeout=ANSWERED)
        _, up = self.opened()
        self.assertEqual(self.asked(up), 1)
        self.write_norm(2.0)  # a commit that does not end
        with mock.patch("dws.plugins.requested.multiprocessing.parent_process"):
            with mock.patch("dws.plugins.requested.os.kill") as killed:
                with self.assertRaisesRegex(dws.StateError, "no whole version.*attached"):
                    update.result(60)
        self.assertEqual(killed.call_args.args, (os.getpid(), signal.SIGKILL))

    def test_in_a_process_of_the_users_own_no_step_runs_until_a_version_is_in_memory(self) -> None:
        worker = self.initialised()
        update = self.update(worker, version=1, timeout=ANSWERED)
        down, up = self.opened()
        self.assertEqual(self.asked(up), 1)
        self.write_norm(2.0)
        with self.assertRaisesRegex(dws.StateError, "no whole version.*attached"):
            update.result(60)
        with self.assertRaisesRegex(dws.StateError, "no step runs until an update succeeds"):
            step(worker)
        down.put(resume(1))
        self.update(worker, version=1).result(60)
        self.assertEqual(step(worker).logits, (2.0, 2.0))

    def test_without_any_version_an_update_fails_and_the_engine_keeps_its_own_weights(self) -> None:
        worker = self.initialised(step_timeout=60)
        own = step(worker).logits
        update = self.update(worker, version=1, timeout=0.5)
        self.opened()
        with self.assertRaisesRegex(dws.DeadlineError, "1 was not committed.*nothing was written"):
            update.result(60)
        self.assertEqual(step(worker).logits, own)
        self.updated(worker)  # it attaches again
        self.assertEqual(self.receiver.generation, 2)
        self.assertEqual(step(worker).logits, (2.0, 2.0))

    def test_a_receiver_that_comes_back_without_the_version_leaves_it_in_memory(self) -> None:
        worker = self.initialised(step_timeout=60)
        down, _ = self.updated(worker)
        down.put(None)
        engine = worker.weight_transfer_engine._commits.engine
        while engine.stats().connected:
            time.sleep(0.01)
        update = self.update(worker, version=2, timeout=1)
        self.opened()
        with self.assertRaisesRegex(dws.DeadlineError, "nothing was written"):
            update.result(60)
        self.assertEqual(step(worker).logits, (2.0, 2.0))

    def test_a_receiver_that_may_still_write_ends_the_worker(self) -> None:
        worker = self.initialised()
        self.receiver.handles.lets_go = False
        update = self.update(worker, version=1, timeout=0.2)
        self.opened()
        with mock.patch("dws.engine.ReceiverLink.suspend", side_effect=dws.DeadlineError("used")):
            with mock.patch("dws.engine.Engine.close"):
                with self.assertRaisesRegex(dws.StateError, "a commit had begun"):
                    update.result(60)

    def test_after_a_shutdown_the_version_stays_and_it_can_be_initialised_again(self) -> None:
        worker = self.initialised()
        self.updated(worker)
        init_info = {"socket": self.receiver.socket}
        with self.assertRaisesRegex(dws.StateError, "initialised already"):
            self.call(worker, "init_weight_transfer_engine", init_info).result(60)
        self.call(worker, "shutdown_weight_transfer_engine").result(60)
        self.assertEqual(step(worker).logits, (2.0, 2.0))
        with self.assertRaisesRegex(dws.StateError, "init_weight_transfer_engine first"):
            self.update(worker, version=1).result(60)
        self.call(worker, "init_weight_transfer_engine", init_info).result(60)
        self.updated(worker)

    def test_a_shutdown_on_another_thread_detaches_too(self) -> None:
        worker = self.initialised()
        self.updated(worker)
        worker.shutdown_weight_transfer_engine()
        self.assertEqual(step(worker).logits, (2.0, 2.0))
        init_info = {"socket": self.receiver.socket}
        self.call(worker, "init_weight_transfer_engine", init_info).result(60)
        self.updated(worker)

    def test_what_is_not_supported_is_refused_at_the_start(self) -> None:
        init_info = {"socket": self.receiver.socket}
        worker = self.worker(transferring(lora_config=object()))
        with self.assertRaisesRegex(dws.LayoutError, "LoRA"):
            self.call(worker, "init_weight_transfer_engine", init_info).result(60)
        sleeping = transferring()
        sleeping.model_config.enable_sleep_mode = True
        with self.assertRaisesRegex(dws.LayoutError, "enable_sleep_mode.*WorkerExtension"):
            worker = self.worker(sleeping)
            self.call(worker, "init_weight_transfer_engine", init_info).result(60)
        worker = self.worker(transferring())
        with self.assertRaisesRegex(ValueError, "port"):
            self.call(worker, "init_weight_transfer_engine", {**init_info, "port": 1}).result(60)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "unknown options"):
            wrong = {**init_info, "options": {"nothing": 1}}
            self.call(worker, "init_weight_transfer_engine", wrong).result(60)
        del worker.model_runner.execute_model_state
        with self.assertRaisesRegex(dws.StateError, "execute_model_state"):
            self.call(worker, "init_weight_transfer_engine", init_info).result(60)


class Ranks:
    """Stands for a process group: `minimum` of all ranks' numbers.

    Attributes:
      groups: how often ranks made a group of their own.
    """

    def __init__(self) -> None:
        self.groups = 0
        self._together = threading.Barrier(RANKS, timeout=20)
        self._given: list[Sequence[int]] = []

    def minimum_over(self, group: Any) -> Callable[[Sequence[int]], Sequence[int]]:
        self.groups += 1
        self._together.wait()
        return self._minimum

    def _minimum(self, values: Sequence[int]) -> Sequence[int]:
        self._given.append(values)
        self._together.wait()
        lowest = [min(column) for column in zip(*self._given[-RANKS:])]
        self._together.wait()
        return lowest


class RanksTest(VllmCase):
    def setUp(self) -> None:
        super().setUp()
        dws.vllm.register()
        self.ranks = Ranks()
        for module in ("dws.vllm", "dws.plugins.vllm_transfer"):
            patch = mock.patch(f"{module}.minimum_over", self.ranks.minimum_over)
            patch.start()
            self.addCleanup(patch.stop)
        self.workers: dict[int, Any] = {}

        def making(rank: int) -> Any:
            parallel_state.set_tp_group_of_thread(rank, RANKS, object())
            self.workers[rank] = self.worker(transferring(RANKS), rank)
            return self.workers[rank]

        self.executor = MultiprocExecutor([lambda r=rank: making(r) for rank in range(RANKS)])
        self.addCleanup(self.executor.shutdown)
        self.pool = ThreadPoolExecutor(1)
        self.addCleanup(self.pool.shutdown)
        self.addCleanup(self.rpc, "shutdown_weight_transfer_engine")
        self.rpc("dws_detach")  # the workers are made

    def rpc(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        return self.executor.collective_rpc(method, *args, **kwargs)

    def fails(self, message: str, method: str, *args: Any, **kwargs: Any) -> None:
        """The RPC fails, and the reply of the one after it is its own."""
        with self.assertLogs("dws", "ERROR"), self.assertRaisesRegex(RuntimeError, message):
            self.rpc(method, *args, **kwargs)
        self.assertEqual(self.rpc("rank_of"), list(range(RANKS)))

    def leases(self) -> list[tuple[Any, Any]]:
        """The two ends of each rank's lease, by rank."""
        found: dict[int, tuple[Any, Any]] = {}
        while len(found) < RANKS:
            down, up = self.receiver.leases.get(timeout=20)
            found[up.get(timeout=20).open.engine_rank] = (down, up)
        return [found[rank] for rank in range(RANKS)]

    def initialise(self, **options: Any) -> None:
        options = {"step_timeout": 0.05, **options}
        self.rpc("init_weight_transfer_engine", {"socket": self.receiver.socket, "options": options})

    def update(self, **update_info: Any) -> Future[Any]:
        self.rpc("start_weight_update")
        return self.pool.submit(self.rpc, "update_weights", update_info)

    def updated(self) -> list[tuple[Any, Any]]:
        """The leases after the first update, to version 1."""
        update = self.update(version=1)
        leases = self.leases()
        for down, up in leases:
            self.assertEqual(up.get(timeout=20).commit_request.version, 1)
            down.put(resume(1))
        update.result(60)
        self.rpc("finish_weight_update")
        for _, up in leases:
            self.assertEqual(up.get(timeout=20).commit_request.version, 0)
        return leases

    def grants(self) -> list[Optional[int]]:
        engines = [self.workers[rank].weight_transfer_engine for rank in range(RANKS)]
        return [engine._commits.engine.grant.version for engine in engines]

    def test_both_ranks_have_the_version_when_an_update_returns(self) -> None:
        self.initialise()
        leases = self.updated()
        self.assertEqual(self.grants(), [1, 1])
        update = self.update(version=2)
        for number, (down, up) in enumerate(leases, 1):
            self.assertEqual(up.get(timeout=20).commit_request.version, 2)
            down.put(pause(number))
            self.assertEqual(up.get(timeout=20).paused.pause_id, number)
        for number, (down, _) in enumerate(leases, 1):
            down.put(resume(2, number))
        update.result(60)
        self.assertEqual(self.grants(), [2, 2])
        self.assertEqual(self.ranks.groups, RANKS)

    def test_an_update_that_fails_on_one_rank_is_one_error_and_the_next_begins_again(self) -> None:
        for failing in range(RANKS):
            with self.subTest(failing=failing):
                self.initialise()
                one, two = self.updated()
                update = self.update(version=2, timeout=ANSWERED)
                for number, (down, up) in enumerate((one, two), 1):
                    self.assertEqual(up.get(timeout=20).commit_request.version, 2)
                    if number - 1 != failing:
                        down.put(pause(1))
                        up.get(timeout=20)
                        down.put(resume(2, 1))
                message = "another rank of the engine failed" if failing == 0 else "2 was not committed"
                with self.assertRaisesRegex(RuntimeError, message):
                    update.result(60)
                self.assertEqual(self.rpc("rank_of"), [0, 1])
                self.assertEqual(self.grants(), [1, 2] if failing == 0 else [2, 1])
                self.update(version=1, newer=True).result(60)
                self.rpc("finish_weight_update")
                self.rpc("shutdown_weight_transfer_engine")

    def test_ranks_go_on_with_their_own_weights_together_or_end_together(self) -> None:
        self.initialise()
        update = self.update(version=1, timeout=0.5)
        self.leases()
        with self.assertRaisesRegex(RuntimeError, "nothing was written"):
            update.result(60)
        update = self.update(version=1, timeout=ANSWERED)
        leases = self.leases()
        for _, up in leases:  # written while a rank attaches, it would be refused for that
            self.assertEqual(up.get(timeout=20).commit_request.version, 1)
        self.write_norm(2.0)  # of the rank that attached last
        with self.assertLogs("dws", "ERROR"), self.assertRaisesRegex(RuntimeError, "no whole version"):
            update.result(60)
        for down, _ in leases:
            down.put(resume(1))
        self.update(version=1).result(60)
        self.assertEqual(self.grants(), [1, 1])

    def test_a_rank_that_cannot_read_its_weights_keeps_up_with_the_others(self) -> None:
        self.initialise()

        def failing(model: Any) -> int:
            if model is self.workers[0].model_runner.get_model():
                raise MemoryError("the device is full")
            return fingerprint(model)

        with mock.patch("dws.plugins.requested.fingerprint", failing):
            with self.assertLogs("dws", "WARNING"):
                update = self.update(version=1, timeout=0.5)
                leases = self.leases()
                with self.assertRaisesRegex(RuntimeError, "no whole version"):
                    update.result(60)
        for down, _ in leases:
            down.put(resume(1))
        self.update(version=1).result(60)
        self.assertEqual(self.grants(), [1, 1])

    def test_refusals_of_the_backend_are_one_error_each(self) -> None:
        self.rpc("start_weight_update")
        self.fails("init_weight_transfer_engine first", "update_weights", {"version": 1})
        socket = {"socket": self.receiver.socket}
        self.fails("port", "init_weight_transfer_engine", {**socket, "port": 1})
        self.fails("nothing", "init_weight_transfer_engine", {**socket, "options": {"nothing": 1}})
        self.initialise()
        self.receiver.refuse = "no such tensor"
        self.rpc("start_weight_update")
        self.fails("no such tensor", "update_weights", {"version": 1})
        self.receiver.refuse = None
        self.rpc("start_weight_update")
        self.fails("unexpected keyword", "update_weights", {"versions": 1})
        self.updated()
        self.assertEqual(self.ranks.groups, RANKS)  # one for each rank, whatever failed

    def test_refusals_of_the_extension_are_one_error_each(self) -> None:
        socket = self.receiver.socket
        self.fails("dws_attach first", "dws_status")
        self.fails("unknown options", "dws_attach", socket, sockets=1)
        self.receiver.refuse = "no such tensor"
        self.fails("no such tensor", "dws_attach", socket)
        self.receiver.refuse = None
        self.assertEqual([status["rank"] for status in self.rpc("dws_attach", socket)], [0, 1])
        leases = self.leases()
        leases[1][0].put(resume(1))
        self.fails("another rank of the engine failed", "dws_wait_ready", 0.2)
        self.fails("paused", "dws_detach", 0.05)
        leases[0][0].put(resume(1))
        ready = self.rpc("dws_wait_ready", 20)
        self.assertEqual([status["version"] for status in ready], [1, 1])
        self.fails("dws_detach first", "dws_attach", socket)
        self.rpc("dws_detach")
        self.assertEqual(self.ranks.groups, RANKS)


if __name__ == "__main__":
    unittest.main()
