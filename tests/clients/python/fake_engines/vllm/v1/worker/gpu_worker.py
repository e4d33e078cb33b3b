"""The worker that runs a model. The test's config makes the model (make_model) and computes its outputs
(hidden_states, compute_logits)."""

from __future__ import annotations

from typing import Any, Optional

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as GPUModelRunnerV2
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as GPUModelRunnerV1
from vllm.v1.worker.worker_base import WorkerBase


class Allocator:
    """The allocator of weights, which are not on the device while they sleep."""

    def sleep(self) -> None:
        pass


class Worker(WorkerBase):
    allocator = Allocator()

    def load_model(self) -> None:
        self.use_v2_model_runner = bool(getattr(self.vllm_config, "use_v2_model_runner", False))
        runner: Any = GPUModelRunnerV2 if self.use_v2_model_runner else GPUModelRunnerV1
        self.model_runner = runner(self.vllm_config)
        self.model_runner.load_model(self.rank)
        self.weight_transfer_engine: Any = None
        self._weight_update_active = False
        transfer = getattr(self.vllm_config, "weight_transfer_config", None)
        if transfer is not None:
            self.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
                transfer, self.vllm_config, "cpu", self.model_runner.get_model()
            )

    def execute_model(self, scheduler_output: Any) -> Any:
        output = self.model_runner.execute_model(scheduler_output, None)
        if self.use_v2_model_runner and self.model_runner.is_pooling_model and output is None:
            output = self.model_runner.pool()
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        return self.model_runner.sample_tokens(grammar_output)

    def execute_dummy_batch(self) -> None:
        self.model_runner._dummy_run(1)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        engine = self.weight_transfer_engine
        engine.init_transfer_engine(engine.parse_init_info(init_info))

    def shutdown_weight_transfer_engine(self) -> None:
        self.weight_transfer_engine.shutdown()

    def start_weight_update(self) -> None:
        self.weight_transfer_engine.start_weight_update()
        self._weight_update_active = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        assert self._weight_update_active
        try:
            self.weight_transfer_engine.update_weights(update_info)
        except BaseException:
            self._weight_update_active = False
            raise

    def finish_weight_update(self) -> None:
        assert self._weight_update_active
        self.weight_transfer_engine.finish_weight_update()
        self._weight_update_active = False

    def sleep(self, level: int = 1) -> None:
        self.allocator.sleep()
        self.asleep = True

    def wake_up(self, tags: Optional[list[str]] = None) -> None:
        self.asleep = False
