"""The process that schedules steps. A test gives it a worker, and the steps' outputs go through its scheduler."""

from __future__ import annotations

import types
from typing import Any


class Scheduler:
    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.updated = 0

    def update_from_output(self, scheduler_output: Any, model_output: Any) -> None:
        self.updated += 1

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return True


class EngineCore:
    def __init__(self, vllm_config: Any, worker: Any) -> None:
        self.vllm_config = vllm_config
        self.scheduler = Scheduler()
        self._worker = worker
        self._weight_version = "default"
        self._scheduled: Any = None
        call = lambda method: [worker.execute_method(method)]
        self.model_executor = types.SimpleNamespace(collective_rpc=call)

    def step(self) -> str:
        """Returns the weight version that vLLM gives the step's outputs."""
        output = self._worker.execute_model(self._scheduled)
        output = self._worker.sample_tokens(None) if output is None else output
        self.scheduler.update_from_output(self._scheduled, output)
        return self._weight_version

    def step_with_batch_queue(self) -> str:
        return self.step()

    def get_weight_version(self) -> str:
        return self._weight_version
