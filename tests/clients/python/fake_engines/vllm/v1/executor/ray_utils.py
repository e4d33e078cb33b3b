"""The wrapper that Ray's executor calls: a whole step in one call, without the worker's own methods."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.worker_base import WorkerWrapperBase


class RayWorkerWrapper(WorkerWrapperBase):
    def execute_model_ray(self, execute_model_input: tuple[Any, Any]) -> Any:
        scheduler_output, grammar_output = execute_model_input
        output = self.worker.model_runner.execute_model(scheduler_output, None)
        if output is None:
            output = self.worker.model_runner.sample_tokens(grammar_output)
        return output
