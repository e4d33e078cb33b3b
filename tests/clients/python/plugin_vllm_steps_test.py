"""dws.vllm in a stand-in for vLLM: no commit happens inside an engine step, in every way that vLLM runs it, and
every step ends."""

from __future__ import annotations

import unittest
from typing import Any

import dws
from tests.clients.python.fake_daemons import pause, resume
from tests.clients.python.vllm_case import NOTHING, SCHEDULED, VllmCase, config, step


class VllmStepsTest(VllmCase):
    def ready(self, **ways: Any) -> Any:
        """A worker at version 1 with weights of 1.0. `ways` are settings of the stand-in's config."""
        vllm_config = config()
        for name, value in ways.items():
            setattr(vllm_config, name, value)
        worker, self.down, self.up = self.attached(vllm_config, step_timeout=0.01)
        self.attached_rank = worker.worker._dws_attached
        self.write_norm(1.0)
        self.down.put(resume(1))
        worker.execute_method("dws_wait_ready", timeout=20)
        return worker

    def ask_for_a_commit(self) -> None:
        """Sends a pause; returns once the lease is shut."""
        self.down.put(pause(5))
        while self.attached_rank.engine.grant is not None:
            pass

    def commit(self, version: int, value: float) -> None:
        """Completes the commit; returns when the engine may run with the new weights."""
        self.assertEqual(self.up.get(timeout=20).paused.pause_id, 5)
        self.write_norm(value)
        self.down.put(resume(version))
        self.attached_rank.engine.wait_ready(20)

    def assert_held(self, held: bool) -> None:
        """Checks whether a commit has to wait now."""
        self.assertEqual(not self.attached_rank.engine._lease.wait_empty(0), held)

    def test_a_commit_between_the_two_calls_of_a_step_waits_for_its_end(self) -> None:
        for v2 in (False, True):
            with self.subTest(v2_model_runner=v2):
                worker = self.ready(use_v2_model_runner=v2)
                self.assertIsNone(worker.execute_model(SCHEDULED))
                self.ask_for_a_commit()
                self.assert_held(True)
                output = worker.sample_tokens(None)
                self.assertEqual((output.logits, output.prompt_logits), ((1.0, 1.0), (1.0, 1.0)))
                self.assert_held(False)
                self.commit(2, 4.0)
                output = step(worker)
                self.assertEqual((output.logits, output.prompt_logits), ((4.0, 4.0), (4.0, 4.0)))
                self.assertEqual(worker.execute_method("dws_status")["passes"], 2)

    def test_rays_wrapper_that_calls_the_runner_directly_runs_one_step(self) -> None:
        for v2 in (False, True):
            with self.subTest(v2_model_runner=v2):
                worker = self.ready(use_v2_model_runner=v2)
                compute = worker.vllm_config.compute_logits

                def computed(live: Any, hidden: Any, compute: Any = compute) -> Any:
                    self.assert_held(True)
                    return compute(live, hidden)

                worker.vllm_config.compute_logits = computed
                self.assertEqual(worker.execute_model_ray((SCHEDULED, None)).logits, (1.0, 1.0))
                self.assert_held(False)
                self.assertEqual(self.attached_rank.gate.passes, 1)

    def test_a_step_of_a_pooling_model_ends_without_sampling(self) -> None:
        for v2 in (False, True):
            with self.subTest(v2_model_runner=v2):
                worker = self.ready(use_v2_model_runner=v2, is_pooling_model=True)
                self.assertEqual(worker.execute_model(SCHEDULED).pooled, 1.0)
                self.assert_held(False)

    def test_a_step_with_nothing_to_run_ends_without_sampling(self) -> None:
        for v2 in (False, True):
            worker = self.ready(use_v2_model_runner=v2)
            self.assertIsNotNone(worker.execute_model(NOTHING))
            self.assert_held(False)

    def test_a_dummy_run_ends_without_sampling(self) -> None:
        for v2 in (False, True):
            worker = self.ready(use_v2_model_runner=v2)
            worker.execute_dummy_batch()
            self.assert_held(False)

    def test_a_step_that_fails_ends_and_its_sampling_returns_none(self) -> None:
        worker = self.ready()
        hidden = worker.vllm_config.hidden_states

        def fails(live: Any, batch: Any) -> None:
            raise MemoryError("the model")

        worker.vllm_config.hidden_states = fails
        with self.assertRaisesRegex(MemoryError, "the model"):
            worker.execute_model(SCHEDULED)
        self.assert_held(False)
        # vLLM has already queued this call; None stands for the failure of the first call.
        self.assertIsNone(worker.sample_tokens(None))
        worker.vllm_config.hidden_states = hidden
        self.assertEqual(step(worker).logits, (1.0, 1.0))

    def test_sampling_that_fails_ends_the_step(self) -> None:
        worker = self.ready(use_v2_model_runner=True)

        def fails(live: Any, hidden: Any) -> None:
            raise MemoryError("the head")

        worker.vllm_config.compute_logits = fails
        with self.assertRaisesRegex(MemoryError, "the head"):
            step(worker)
        self.assert_held(False)

    def test_a_step_that_is_never_sampled_ends_when_the_next_one_begins(self) -> None:
        worker = self.ready(use_v2_model_runner=True)
        worker.execute_model(SCHEDULED)
        self.ask_for_a_commit()
        with self.assertRaisesRegex(dws.EnginePaused, "commits"):
            worker.execute_model(SCHEDULED)
        self.commit(2, 4.0)
        # The runner still has the first step's hidden states. They must not be used with new weights.
        with self.assertRaisesRegex(dws.StateError, "abandoned"):
            worker.sample_tokens(None)
        self.assertEqual(step(worker).logits, (4.0, 4.0))

    def test_a_step_that_is_never_sampled_does_not_block_calls_between_steps(self) -> None:
        for method, arguments in (
            ("dws_wait_ready", {"timeout": 20}),
            ("sleep", {"level": 1}),
            ("dws_suspend", {}),
        ):
            with self.subTest(method):
                worker = self.ready(use_v2_model_runner=True)
                worker.execute_model(SCHEDULED)
                worker.execute_method(method, **arguments)
                self.assert_held(False)
                with self.assertRaisesRegex(dws.StateError, "abandoned"):
                    worker.sample_tokens(None)

    def test_the_status_shows_an_open_step_and_does_not_end_it(self) -> None:
        worker = self.ready(use_v2_model_runner=True)
        worker.execute_model(SCHEDULED)
        self.assertTrue(worker.execute_method("dws_status")["step_open"])
        self.assert_held(True)
        self.assertEqual(worker.sample_tokens(None).logits, (1.0, 1.0))
        self.assertFalse(worker.execute_method("dws_status")["step_open"])


if __name__ == "__main__":
    unittest.main()
