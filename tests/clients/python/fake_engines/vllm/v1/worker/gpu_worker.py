"""The worker that runs a model. The test's config makes the model (make_model) and the pass (forward)."""

from __future__ import annotations

from typing import Any, Optional

from vllm.v1.worker.worker_base import WorkerBase


class GraphWrapper:
    """What a runner puts around a module that runs in graphs: not a module itself."""

    def __init__(self, module: Any) -> None:
        self.module = module


class GPUModelRunner:
    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.model: Any = None

    def load_model(self, rank: int) -> None:
        self.model = GraphWrapper(self.vllm_config.make_model(rank))

    def get_model(self) -> Any:
        return self.model.module

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        return self.vllm_config.forward(self.get_model(), scheduler_output)


class Allocator:
    """Of weights: asleep they are gone from the device."""

    def sleep(self) -> None:
        pass


class Worker(WorkerBase):
    allocator = Allocator()

    def load_model(self) -> None:
        self.model_runner = GPUModelRunner(self.vllm_config)
        self.model_runner.load_model(self.rank)

    def execute_model(self, scheduler_output: Any) -> Any:
        return self.model_runner.execute_model(scheduler_output)

    def sleep(self, level: int = 1) -> None:
        self.allocator.sleep()
        self.asleep = True

    def wake_up(self, tags: Optional[list[str]] = None) -> None:
        self.asleep = False
