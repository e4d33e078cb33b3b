"""vLLM's weight transfer backend "dws" in a stand-in for vLLM, against a stand-in for the receiver."""

from __future__ import annotations

import signal
import types
import unittest
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest import mock

import dws
import dws.vllm
from tests.clients.python.fake_daemons import pause, resume
from tests.clients.python.vllm_case import SCHEDULED, VllmCase, config, step


def transferring(**settings: Any) -> Any:
    """A config of vLLM with the backend."""
    changed = config()
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
        self.call(worker, "init_weight_transfer_engine", init_info).result(20)
        self.addCleanup(self.close, worker)
        return worker

    def close(self, worker: Any) -> None:
        self.call(worker, "shutdown_weight_transfer_engine").result(20)

    def update(self, worker: Any, **update_info: Any) -> Future[Any]:
        self.call(worker, "start_weight_update").result(20)
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
        update.result(20)
        self.assertEqual(self.asked(up), 0)
        self.call(worker, "finish_weight_update").result(20)
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
        update.result(20)
        self.call(worker, "finish_weight_update").result(20)
        self.assertEqual(step(worker).logits, (4.0, 4.0))

    def test_a_step_between_its_two_calls_is_refused(self) -> None:
        worker = self.initialised()
        self.updated(worker)
        self.assertIsNone(worker.execute_model(SCHEDULED))
        with self.assertRaisesRegex(dws.StateError, "pause generation"):
            self.update(worker, version=2).result(20)
        self.assertEqual(worker.sample_tokens(None).logits, (2.0, 2.0))

    def test_a_newer_version_has_to_be_named_or_allowed(self) -> None:
        worker = self.initialised()
        down, up = self.updated(worker)
        update = self.update(worker, version=2)
        self.assertEqual(self.asked(up), 2)
        down.put(pause(1))
        up.get(timeout=20)
        down.put(resume(3, 1))
        with self.assertRaisesRegex(dws.StateError, "2 was asked for, and 3 is in memory.*ask for 3"):
            update.result(20)
        self.update(worker, version=3).result(20)
        self.update(worker, version=2, newer=True).result(20)

    def test_a_version_that_does_not_come_leaves_the_one_that_is_there(self) -> None:
        worker = self.initialised()
        self.updated(worker)
        with self.assertRaisesRegex(dws.DeadlineError, "version 2 was not committed within 0.0"):
            self.update(worker, version=2, timeout=0.05).result(20)
        self.assertEqual(step(worker).logits, (2.0, 2.0))
        with self.assertRaisesRegex(dws.DeadlineError, "of stream 1:"):
            self.update(worker, version=1, timeout=0.05, stream=str(dws.Stream(7, 7))).result(20)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "'7' is no stream"):
            self.update(worker, version=1, stream="7").result(20)

    def test_a_worker_whose_memory_has_no_whole_version_ends(self) -> None:
        worker = self.initialised()
        with mock.patch("dws.plugins.vllm_transfer.os.kill") as killed:
            with self.assertRaisesRegex(dws.EnginePaused, "attached"):
                self.update(worker, version=1, timeout=0.05).result(20)
        self.assertEqual(killed.call_args.args[1], signal.SIGKILL)

    def test_after_a_shutdown_the_version_stays_and_it_can_be_initialised_again(self) -> None:
        worker = self.initialised()
        self.updated(worker)
        init_info = {"socket": self.receiver.socket}
        with self.assertRaisesRegex(dws.StateError, "initialised already"):
            self.call(worker, "init_weight_transfer_engine", init_info).result(20)
        self.call(worker, "shutdown_weight_transfer_engine").result(20)
        self.assertEqual(step(worker).logits, (2.0, 2.0))
        with self.assertRaisesRegex(dws.StateError, "init_weight_transfer_engine first"):
            self.call(worker, "start_weight_update").result(20)
        self.call(worker, "init_weight_transfer_engine", init_info).result(20)
        self.updated(worker)

    def test_what_is_not_supported_is_refused_at_the_start(self) -> None:
        init_info = {"socket": self.receiver.socket}
        worker = self.worker(transferring(lora_config=object()))
        with self.assertRaisesRegex(dws.LayoutError, "LoRA"):
            self.call(worker, "init_weight_transfer_engine", init_info).result(20)
        worker = self.worker(transferring())
        with self.assertRaisesRegex(ValueError, "port"):
            self.call(worker, "init_weight_transfer_engine", {**init_info, "port": 1}).result(20)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "unknown options"):
            wrong = {**init_info, "options": {"nothing": 1}}
            self.call(worker, "init_weight_transfer_engine", wrong).result(20)
        del worker.model_runner.execute_model_state
        with self.assertRaisesRegex(dws.StateError, "execute_model_state"):
            self.call(worker, "init_weight_transfer_engine", init_info).result(20)


if __name__ == "__main__":
    unittest.main()
