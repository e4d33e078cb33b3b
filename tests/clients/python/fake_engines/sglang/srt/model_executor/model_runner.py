"""The runner of one rank: a model and forward passes."""

from __future__ import annotations

from typing import Any


class ModelRunner:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.lora_manager: Any = None

    def forward(self, forward_batch: Any) -> Any:
        return forward_batch, self.model.tensor("model.norm.weight").clone()
