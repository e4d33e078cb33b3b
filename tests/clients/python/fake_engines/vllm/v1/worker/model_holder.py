"""The base of both model runners of the stand-in: the model, and the test's two parts of a forward pass."""

from __future__ import annotations

from typing import Any


class GraphWrapper:
    """The wrapper that a runner puts around a module that runs in graphs; it is not a module."""

    def __init__(self, module: Any) -> None:
        self.module = module


class ModelHolder:
    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.is_pooling_model = bool(getattr(vllm_config, "is_pooling_model", False))
        self.model: Any = None
        self.execute_model_state: Any = None

    def load_model(self, rank: int) -> None:
        self.model = GraphWrapper(self.vllm_config.make_model(rank))

    def get_model(self) -> Any:
        return self.model.module

    def hidden_states(self, scheduler_output: Any) -> Any:
        return self.vllm_config.hidden_states(self.get_model(), scheduler_output.batch)

    def compute_logits(self, hidden_states: Any) -> Any:
        return self.vllm_config.compute_logits(self.get_model(), hidden_states)
