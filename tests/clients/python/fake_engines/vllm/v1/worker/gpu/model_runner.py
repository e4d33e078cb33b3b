"""The V2 model runner: all logits in sample_tokens. A step that is not sampled has no effect."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, REQUESTS, ModelRunnerOutput
from vllm.v1.worker.model_holder import ModelHolder


class GPUModelRunner(ModelHolder):
    def execute_model(
        self, scheduler_output: Any, intermediate_tensors: Any = None, dummy_run: bool = False
    ) -> Any:
        if not dummy_run and not scheduler_output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        self.execute_model_state = (self.hidden_states(scheduler_output),)
        return None

    def sample_tokens(self, grammar_output: Any) -> Any:
        if self.execute_model_state is None:
            return None
        (hidden,) = self.execute_model_state
        self.execute_model_state = None
        return ModelRunnerOutput(REQUESTS, self.compute_logits(hidden), self.compute_logits(hidden))

    def pool(self) -> Any:
        if self.execute_model_state is None:
            return None
        (hidden,) = self.execute_model_state
        self.execute_model_state = None
        return ModelRunnerOutput(REQUESTS, pooled=hidden)

    def _dummy_run(self, num_tokens: int) -> None:
        self.execute_model(SchedulerOutput(num_tokens), dummy_run=True)
        assert self.execute_model_state is not None
        self.execute_model_state = None
