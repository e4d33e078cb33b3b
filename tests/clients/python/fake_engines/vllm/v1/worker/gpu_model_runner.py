"""The V1 model runner: logits of sampled tokens in execute_model, prompt logits in sample_tokens."""

from __future__ import annotations

from typing import Any

from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, REQUESTS, ModelRunnerOutput
from vllm.v1.worker.model_holder import ModelHolder


class GPUModelRunner(ModelHolder):
    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        if self.execute_model_state is not None:
            raise RuntimeError("sample_tokens() must be called after execute_model() returns None.")
        if not scheduler_output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        hidden = self.hidden_states(scheduler_output)
        if self.is_pooling_model:
            return ModelRunnerOutput(REQUESTS, pooled=hidden)
        self.execute_model_state = (hidden, self.compute_logits(hidden))
        return None

    def sample_tokens(self, grammar_output: Any) -> Any:
        if self.execute_model_state is None:
            return None
        hidden, logits = self.execute_model_state
        self.execute_model_state = None
        return ModelRunnerOutput(REQUESTS, logits, self.compute_logits(hidden))

    def _dummy_run(self, num_tokens: int) -> None:
        self.vllm_config.hidden_states(self.get_model(), None)
