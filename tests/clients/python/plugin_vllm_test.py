"""dws.vllm in a stand-in for vLLM, against a stand-in for the receiver: one rank."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import types
import unittest
from typing import Any
from unittest import mock

import numpy as np

import dws
from tests.clients.python.engine_models import Config, RankModel
from tests.clients.python.fake_daemons import FakeReceiver, pause, resume

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_engines"))

from vllm.distributed import parallel_state  # noqa: E402
from vllm.v1.worker.worker_base import WorkerWrapperBase  # noqa: E402

SMALL = Config(num_hidden_layers=1, vocab_size=100)


def config(model: Config = SMALL, **parallel: Any) -> types.SimpleNamespace:
    parallel_config = types.SimpleNamespace(
        tensor_parallel_size=1,
        worker_cls="vllm.v1.worker.gpu_worker.Worker",
        worker_extension_cls="dws.vllm.WorkerExtension",
        **parallel,
    )
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(hf_text_config=model),
        parallel_config=parallel_config,
        make_model=lambda rank: RankModel(model, rank, 1),
        forward=lambda live, batch: (batch, live.tensor("model.norm.weight").clone()),
    )


def renamed(model: Any) -> Any:
    """For given=."""
    return {"model.norm.weight": "transformer.final_norm"}


class VllmTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(lambda: self.receiver.stop())
        parallel_state.set_tp_group(0, 1, None)

    def worker(self, vllm_config: Any = None) -> Any:
        wrapper = WorkerWrapperBase()
        wrapper.init_worker(vllm_config or config(), 0)
        wrapper.load_model()
        return wrapper

    def attached(self, **options: Any) -> tuple[Any, Any, Any]:
        worker = self.worker()
        self.addCleanup(worker.execute_method, "dws_detach")
        worker.execute_method("dws_attach", socket=self.receiver.socket, **options)
        down, up = self.receiver.leases.get(timeout=20)
        up.get(timeout=20)
        return worker, down, up

    def test_parameters_are_attached_and_passes_run_as_the_lease_lets_them(self) -> None:
        worker, down, up = self.attached(step_timeout=0.01)
        views = {view.tensor: view for view in self.receiver.attached.views}
        self.assertEqual(list(views["model.embed_tokens.weight"].shape), [100, 24])
        self.assertEqual((views["model.layers.0.self_attn.v_proj.weight"].end), 8)
        with self.assertRaisesRegex(dws.EnginePaused, "attached"):
            worker.execute_model("batch")
        self.assertIsNone(worker.execute_method("dws_status")["version"])
        norm = views["model.norm.weight"]
        memory = np.frombuffer(self.receiver.writable_region(), np.uint16)
        memory[norm.offset_bytes // 2 :][:24] = 0x4000
        down.put(resume(7))
        status = worker.execute_method("dws_wait_ready", timeout=20)
        self.assertEqual((status["version"], status["rank"], status["connected"]), (7, 0, True))
        batch, seen = worker.execute_model("batch")
        self.assertEqual((batch, seen.tolist()), ("batch", [2.0] * 24))
        self.assertEqual(worker.execute_method("dws_status")["passes"], 1)

    def test_options_say_what_the_mapping_does_not_know(self) -> None:
        self.attached(
            own=["model.layers.0.input_layernorm.weight"],
            given=f"{__name__}:renamed",
            excluded=["lm_head.extra"],
        )
        names = {view.tensor for view in self.receiver.attached.views}
        self.assertNotIn("model.layers.0.input_layernorm.weight", names)
        self.assertNotIn("model.norm.weight", names)
        self.assertIn("transformer.final_norm", names)
        self.assertEqual(list(self.receiver.attached.excluded), ["lm_head.extra"])
        with tempfile.TemporaryDirectory() as empty:
            with self.assertRaisesRegex(dws.InvalidArgumentError, "no \\*.safetensors"):
                socket = self.receiver.socket
                self.worker().execute_method("dws_attach", socket=socket, checkpoint=empty)

    def test_a_commit_waits_for_the_pass_that_runs(self) -> None:
        worker, down, up = self.attached()
        inside, leave = threading.Event(), threading.Event()

        def slow(live: Any, batch: Any) -> None:
            inside.set()
            leave.wait(20)

        worker.vllm_config.forward = slow
        down.put(resume(1))
        thread = threading.Thread(target=worker.execute_model, args=("batch",))
        thread.start()
        self.assertTrue(inside.wait(20))
        down.put(pause(5))
        while worker.worker._dws_attached.engine.grant is not None:
            pass
        self.assertTrue(up.empty())
        leave.set()
        self.assertEqual(up.get(timeout=20).paused.pause_id, 5)
        thread.join()

    def test_sleep_lets_go_of_the_weights_and_wake_up_attaches_them_again(self) -> None:
        worker, down, _ = self.attached(step_timeout=0.01)
        down.put(resume(1))
        worker.execute_method("dws_wait_ready", timeout=20)
        worker.execute_method("sleep", level=1)
        self.assertTrue(worker.worker.asleep)
        with self.assertRaisesRegex(dws.EnginePaused, "suspended"):
            worker.execute_model("batch")
        worker.execute_method("wake_up", ["kv_cache"])
        self.assertEqual(self.receiver.generation, 1)
        worker.execute_method("wake_up")
        down, _ = self.receiver.leases.get(timeout=20)
        self.assertEqual(self.receiver.generation, 2)
        down.put(resume(1))
        self.assertEqual(worker.execute_method("dws_wait_ready", timeout=20)["version"], 1)

    def test_a_sleep_that_fails_leaves_the_worker_awake(self) -> None:
        worker, down, _ = self.attached()
        engine = worker.worker._dws_attached.engine
        failures: Any = (
            mock.patch.object(
                worker.worker.allocator, "sleep", side_effect=MemoryError("the host")
            ),
            mock.patch.object(engine, "suspend", side_effect=dws.DeadlineError("still used")),
        )
        for version, failure in enumerate(failures, start=1):
            down.put(resume(version))
            worker.execute_method("dws_wait_ready", timeout=20)
            with failure as failed, self.assertRaises((MemoryError, dws.DeadlineError)):
                worker.execute_method("sleep", level=1)
            failed.assert_called_once()
            down, _ = self.receiver.leases.get(timeout=20)
        down.put(resume(3))
        self.assertEqual(worker.execute_method("dws_wait_ready", timeout=20)["version"], 3)
        self.assertEqual(worker.execute_model("batch")[0], "batch")

    def test_detached_it_does_not_generate(self) -> None:
        worker, down, _ = self.attached(step_timeout=0.01)
        down.put(resume(1))
        worker.execute_method("dws_wait_ready", timeout=20)
        worker.execute_method("dws_detach")
        with self.assertRaisesRegex(dws.EnginePaused, "closed"):
            worker.execute_model("batch")
        with self.assertRaisesRegex(dws.StateError, "is attached"):
            worker.execute_method("dws_attach", socket=self.receiver.socket)

    def test_ways_to_run_that_are_not_supported_are_refused_by_name(self) -> None:
        drafting = config()
        for changed, message in (
            (config(pipeline_parallel_size=2), "pipeline parallelism"),
            (config(data_parallel_size=2), "data parallelism"),
            (config(enable_eplb=True), "enable_eplb"),
            (config(expert_placement_strategy="round_robin"), "expert_placement_strategy"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, f"{message}.*turn it off"):
                self.worker(changed).execute_method("dws_attach", socket=self.receiver.socket)
        drafting.lora_config = object()
        worker = self.worker(drafting)
        worker.model_runner.drafter = types.SimpleNamespace(model=object())
        with self.assertRaisesRegex(dws.LayoutError, "LoRA; speculation"):
            worker.execute_method("dws_attach", socket=self.receiver.socket)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "unknown options \\['sockets'\\]"):
            self.worker().execute_method("dws_attach", socket=self.receiver.socket, sockets=1)

    def test_what_this_vllm_lacks_is_named_with_its_version(self) -> None:
        worker = self.worker()
        del worker.worker.vllm_config.parallel_config.tensor_parallel_size
        parallel_state.set_tp_group(0, 2, None)
        with self.assertRaisesRegex(
            dws.StateError, r"vLLM 0\.19\.0\+fake .*tensor_parallel_size.*cpu_group.*0\.14 to"
        ):
            worker.execute_method("dws_attach", socket=self.receiver.socket)
        with self.assertRaisesRegex(dws.StateError, "dws_attach first"):
            worker.execute_method("dws_status")

    def test_an_attach_that_fails_leaves_the_worker_as_it_was(self) -> None:
        self.receiver.refuse = "no such tensor"
        worker = self.worker()
        with self.assertRaisesRegex(dws.InvalidArgumentError, "no such tensor"):
            worker.execute_method("dws_attach", socket=self.receiver.socket)
        self.assertEqual(worker.execute_model("batch")[0], "batch")


if __name__ == "__main__":
    unittest.main()
