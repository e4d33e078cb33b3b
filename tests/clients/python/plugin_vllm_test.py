"""dws.vllm in a stand-in for vLLM, against a stand-in for the receiver: one rank."""

from __future__ import annotations

import os
import sys
import tempfile
import types
import unittest
from typing import Any, Sequence
from unittest import mock

import numpy as np

import dws
import dws.vllm
from dws.plugins import vllm_config
from tests.clients.python.engine_models import PaddedModel, checkpoint, save_checkpoint
from tests.clients.python.fake_daemons import pause, resume
from tests.clients.python.vllm_case import (
    NOTHING,
    SCHEDULED,
    SMALL,
    VllmCase,
    config,
    parallel_state,
    step,
    vllm,
)
from vllm.distributed.weight_transfer import factory
from vllm.v1.core.sched import output
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def renamed(model: Any) -> Any:
    """An example for the option given=."""
    return {"model.norm.weight": "transformer.final_norm"}


def _with(**settings: Any) -> Any:
    """A config of vLLM with more settings."""
    changed = config()
    vars(changed).update(settings)
    return changed


def _inductor(device: str, **options: Any) -> Any:
    """A config of vLLM with options for torch.compile."""
    return _with(
        compilation_config=types.SimpleNamespace(inductor_compile_config=options),
        device_config=types.SimpleNamespace(device_type=device),
    )


def _loaded(folder: str) -> Any:
    """A config of vLLM whose model was loaded from there."""
    changed = _with(make_model=lambda rank: PaddedModel(SMALL, rank, 1))
    changed.model_config.model = folder
    return changed


class VllmTest(VllmCase):
    def test_parameters_are_attached_and_passes_run_only_with_the_lease(self) -> None:
        worker, down, up = self.attached(step_timeout=0.01)
        views = {view.tensor: view for view in self.receiver.attached.views}
        self.assertEqual(list(views["model.embed_tokens.weight"].shape), [100, 24])
        self.assertEqual((views["model.layers.0.self_attn.v_proj.weight"].end), 8)
        with self.assertRaisesRegex(dws.EnginePaused, "attached"):
            worker.execute_model(SCHEDULED)
        self.assertIsNone(worker.execute_method("dws_status")["version"])
        self.write_norm(2.0)
        down.put(resume(7))
        status = worker.execute_method("dws_wait_ready", timeout=20)
        self.assertEqual((status["version"], status["rank"], status["connected"]), (7, 0, True))
        self.assertEqual(step(worker).logits, (2.0, 2.0))
        self.assertEqual(worker.execute_method("dws_status")["passes"], 1)

    def test_what_says_the_mapping_is_logged_and_in_the_status(self) -> None:
        with self.assertLogs("vllm.dws", "INFO") as logged:
            worker, _, _ = self.attached()
        self.assertIn("rank 0 is attached: the table alone says", logged.output[0])
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(os.path.join(folder, "model.safetensors"), checkpoint(SMALL, seed=1))
            worker, _, _ = self.attached(_loaded(folder))
        status = worker.execute_method("dws_status")
        self.assertRegex(status["mapping"], "load_weights and the table agree on 12 parameters")

    def test_a_boundary_between_two_batches_ends_the_open_step_and_returns_the_status(self) -> None:
        worker, down, _ = self.attached()
        down.put(resume(1))
        worker.execute_method("dws_wait_ready", timeout=20)
        self.assertIsNone(worker.execute_model(SCHEDULED))  # never sampled: commits would wait
        status = worker.execute_method("dws_boundary", timeout=20)
        self.assertEqual((status["version"], status["step_open"]), (1, False))
        self.assertFalse(self.receiver.boundaries.get(timeout=20).stays)
        self.receiver.holds = True
        with self.assertRaisesRegex(dws.DeadlineError, "did not commit the version that it holds back within 0.2 s"):
            worker.execute_method("dws_boundary", timeout=0.2)

    def test_of_several_ranks_the_first_names_the_boundary(self) -> None:
        for number in (0, 1):
            attached = mock.Mock()
            attached.engine.engine_rank = number
            with mock.patch.object(dws.vllm, "_between_steps", return_value=attached):
                with mock.patch.object(dws.vllm, "replies_last", return_value=True):
                    worker = dws.vllm.WorkerExtension()
                    worker.vllm_config = config()  # type: ignore[attr-defined]
                    worker.dws_boundary(timeout=3)
            self.assertEqual(attached.engine.boundary.call_count, 1 - number)

    def test_options_complete_the_mapping(self) -> None:
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

    def test_sleep_releases_the_weights_and_wake_up_attaches_them_again(self) -> None:
        worker, down, _ = self.attached(step_timeout=0.01)
        down.put(resume(1))
        worker.execute_method("dws_wait_ready", timeout=20)
        worker.execute_method("sleep", level=1)
        self.assertTrue(worker.worker.asleep)
        with self.assertRaisesRegex(dws.EnginePaused, "suspended"):
            worker.execute_model(SCHEDULED)
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
        self.assertIsNotNone(step(worker).logits)

    def test_a_detached_worker_goes_on_with_its_version_and_can_be_attached_again(self) -> None:
        worker, down, _ = self.attached(step_timeout=0.01)
        with self.assertRaisesRegex(dws.EnginePaused, "attached"):
            worker.execute_method("dws_detach", timeout=0.01)  # memory may be of no version
        self.write_norm(2.0)
        down.put(resume(1))
        worker.execute_method("dws_wait_ready", timeout=20)
        worker.execute_method("dws_detach")
        self.assertEqual(step(worker).logits, (2.0, 2.0))
        worker.execute_method("sleep", level=1)
        worker.execute_method("wake_up")
        with self.assertRaisesRegex(dws.StateError, "not attached"):
            worker.execute_method("dws_status")
        worker.execute_method("dws_detach")
        worker.execute_method("dws_attach", socket=self.receiver.socket, step_timeout=0.01)
        self.addCleanup(worker.worker._dws_attached.close)
        with self.assertRaisesRegex(dws.EnginePaused, "attached"):
            worker.execute_model(SCHEDULED)
        down, _ = self.receiver.leases.get(timeout=20)
        down.put(resume(2))
        self.assertEqual(worker.execute_method("dws_wait_ready", timeout=20)["version"], 2)
        self.assertEqual(step(worker).logits, (2.0, 2.0))

    def test_an_open_step_goes_on_after_a_detach_with_the_weights_it_began_with(self) -> None:
        worker, down, up = self.attached(step_timeout=0.01)
        self.write_norm(2.0)
        down.put(resume(1))
        worker.execute_method("dws_wait_ready", timeout=20)
        self.assertIsNone(worker.execute_model(SCHEDULED))
        down.put(pause(3))
        worker.execute_method("dws_detach", timeout=0.01)
        self.assertEqual(worker.sample_tokens(None).prompt_logits, (2.0, 2.0))

    def agreeing(self, rank: int) -> list[Sequence[int]]:
        """Rank `rank` of two, in tensor-parallel groups of one, which the other agrees with; what it is told."""
        told: list[Sequence[int]] = []

        def minimum(values: Sequence[int]) -> Sequence[int]:
            told.append(values)
            return values

        parallel_state.set_world_group(rank, 2, object())
        patch = mock.patch.object(dws.vllm, "minimum_over", return_value=minimum)
        patch.start()
        self.addCleanup(patch.stop)
        return told

    def attached_as(self) -> tuple[int, int]:
        request = self.receiver.attached
        return request.engine_rank, request.engine_world_size

    def test_stages_of_a_pipeline_agree_before_their_worker_waits_for_the_one_before(self) -> None:
        told = self.agreeing(1)
        worker, down, _ = self.attached(config(pipeline_parallel_size=2), step_timeout=0.01)
        self.assertEqual(self.attached_as(), (1, 2))
        down.put(resume(1))
        worker.execute_method("dws_wait_ready", timeout=20)
        told.clear()
        runner = worker.worker.model_runner
        with mock.patch.object(runner, "execute_model", wraps=runner.execute_model) as call:
            call.side_effect = lambda *unused: self.assertEqual(len(told), 1) or mock.DEFAULT
            self.assertIsNone(worker.execute_model(SCHEDULED))
            call.assert_called_once()
        self.assertTrue(worker.worker._dws_attached.status()["step_open"])
        self.assertIsNotNone(worker.sample_tokens(None).logits)
        self.assertEqual((len(told), worker.worker._dws_attached.status()["passes"]), (1, 1))

    def test_replicas_with_experts_agree_on_steps_and_on_dummy_batches_alone(self) -> None:
        told = self.agreeing(0)
        worker, down, _ = self.attached(config(data_parallel_size=2))
        self.assertEqual(self.attached_as(), (0, 2))
        down.put(resume(1))
        worker.execute_method("dws_wait_ready", timeout=20)
        told.clear()
        worker.execute_model(NOTHING)
        self.assertEqual(told, [])
        worker.worker.execute_dummy_batch()
        step(worker)
        self.assertEqual(len(told), 2)

    def test_replicas_of_a_dense_model_are_ranks_of_one_engine_if_it_says_how_many(self) -> None:
        with self.assertRaisesRegex(dws.LayoutError, "rank 1 is of a replica.*ranks_on_host"):
            self.attached(config(data_parallel_index=1))
        self.attached(config(data_parallel_index=1), ranks_on_host=2)
        self.assertEqual(self.attached_as(), (1, 2))

    def test_unsupported_settings_are_refused_by_name(self) -> None:
        Namespace = types.SimpleNamespace
        offload = Namespace(
            uva=Namespace(cpu_offload_gb=1), prefetch=Namespace(offload_group_size=2)
        )
        for changed, message in (
            (
                config(pipeline_parallel_size=2, distributed_executor_backend="ray"),
                "pipeline parallelism by Ray",
            ),
            (config(prefill_context_parallel_size=2), "prefill_context_parallel_size"),
            (config(enable_eplb=True), "enable_eplb"),
            (_with(offload_config=offload), "cpu_offload_gb.*offload_group_size"),
            (_with(lora_config=object()), "LoRA"),
            (_inductor("cpu", max_autotune=True), "compiled into its code.*max_autotune"),
            (_inductor("cuda", freezing=True), "compiled into its code.*freezing"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, f"{message}.*turn it off"):
                self.worker(changed).execute_method("dws_attach", socket=self.receiver.socket)
        self.attached(_with(speculative_config=Namespace(method="ngram")))
        self.attached(_inductor("cuda", max_autotune=True))
        with self.assertRaisesRegex(dws.InvalidArgumentError, "unknown options \\['sockets'\\]"):
            self.worker().execute_method("dws_attach", socket=self.receiver.socket, sockets=1)

    def refused(self, worker: Any, message: str) -> None:
        with self.assertRaisesRegex(dws.StateError, message):
            worker.execute_method("dws_attach", socket=self.receiver.socket)
        with self.assertRaisesRegex(dws.StateError, "dws_attach first"):
            worker.execute_method("dws_status")

    def test_a_release_that_was_never_run_is_attached_with_one_warning(self) -> None:
        with mock.patch.object(vllm, "__version__", "0.99.1"):
            with self.assertLogs("vllm.dws", "WARNING") as logged:
                self.attached()
                self.attached()
        warned = [line for line in logged.output if "vLLM 0.99.1 was never run" in line]
        self.assertEqual(len(warned), 1)

    def test_of_a_release_that_was_never_run_weights_are_compared_with_the_checkpoint(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            with mock.patch.object(vllm, "__version__", "0.99.2"):
                save_checkpoint(path, checkpoint(SMALL, seed=1))
                with self.assertRaisesRegex(dws.LayoutError, "parameters differ from what checkpoint"):
                    self.attached(_loaded(folder))
                made_up = _loaded(folder)
                made_up.load_config = types.SimpleNamespace(load_format="dummy")
                with self.assertLogs("dws.plugins.attach", "WARNING") as logged:
                    self.attached(made_up)
                self.assertIn("not compared with a checkpoint", logged.output[0])
            self.attached(_loaded(folder))  # a release that was run

    def test_a_release_that_is_known_to_be_bad_is_refused(self) -> None:
        with mock.patch.dict(vllm_config.BAD, {"0.99.3": "its sampler reads other weights"}):
            with mock.patch.object(vllm, "__version__", "0.99.3+cpu"):
                self.refused(self.worker(), r"0\.99\.3\+cpu cannot be updated.*other weights.*checkpoints on disk")

    def test_what_this_vllm_lacks_is_named_with_its_version_and_what_was_found(self) -> None:
        worker = self.worker()
        del worker.worker.vllm_config.parallel_config.enable_eplb
        parallel_state.set_tp_group(0, 2, None)
        self.refused(
            worker,
            r"vLLM 0\.32\.0\+fake does not have vllm_config\.parallel_config\.enable_eplb "
            r"\(vllm_config\.parallel_config has no enable_eplb\); .*cpu_group \(is None\).*use 0\.32",
        )

    def test_calls_of_another_shape_are_refused(self) -> None:
        worker = self.worker()
        runner = worker.worker.model_runner
        runner.sample_tokens = lambda: None
        self.refused(worker, r"sample_tokens\(grammar_output\), it is model_runner\.sample_tokens\(\) \(too many")
        runner.sample_tokens = None
        self.refused(worker, r"worker\.model_runner\.sample_tokens \(is None\)")

    def test_parts_that_moved_are_refused(self) -> None:
        with mock.patch.dict(sys.modules, {"vllm.distributed.parallel_state": None}):
            self.refused(self.worker(), "the module vllm.distributed.parallel_state .*halted")
        with mock.patch.object(output.SchedulerOutput, "__annotations__", {}):
            self.refused(self.worker(), r"SchedulerOutput\.total_num_scheduled_tokens \(no such field\)")
        with mock.patch.object(GPUModelRunner, "_dummy_run", None):
            self.refused(self.worker(), r"model_runner\._dummy_run \(is None\)")

    def test_an_attach_that_fails_does_not_change_the_worker(self) -> None:
        self.receiver.refuse = "no such tensor"
        worker = self.worker()
        with self.assertRaisesRegex(dws.InvalidArgumentError, "no such tensor"):
            worker.execute_method("dws_attach", socket=self.receiver.socket)
        self.assertIsNotNone(step(worker).logits)


class RegisterTest(unittest.TestCase):
    def test_a_vllm_without_a_factory_for_trainers_gets_the_backend(self) -> None:
        fewer = types.SimpleNamespace(WeightTransferEngineFactory=mock.Mock())
        with mock.patch("vllm.distributed.weight_transfer.factory", fewer):
            dws.vllm.register()
        fewer.WeightTransferEngineFactory.register_engine.assert_called_once()

    def test_a_vllm_that_fails_at_it_starts_nevertheless(self) -> None:
        with mock.patch.object(
            factory.WeightTransferEngineFactory, "register_engine", side_effect=RuntimeError("other")
        ):
            with self.assertLogs("dws.vllm", "WARNING") as logged:
                dws.vllm.register()
        self.assertIn("other", logged.output[0])


if __name__ == "__main__":
    unittest.main()
