"""The runner of one rank: a model, forward passes, and weights that are given as tensors."""

from __future__ import annotations

import importlib
from typing import Any


class ModelRunner:
    def __init__(self, model: Any, server_args: Any, is_draft_worker: bool = False) -> None:
        self.model = model
        self.server_args = server_args
        self.is_draft_worker = is_draft_worker
        self.initialize()

    def initialize(self) -> None:
        self.ready = True

    def forward(self, forward_batch: Any) -> Any:
        return forward_batch, self.model.tensor("model.norm.weight").clone()

    def update_weights_from_tensor(self, named_tensors: Any, load_format: str) -> tuple[bool, str]:
        if load_format not in self.server_args.custom_weight_loader:
            raise NotImplementedError(f"Unknown load_format={load_format}")
        module, _, name = load_format.rpartition(".")
        getattr(importlib.import_module(module), name)(self.model, named_tensors)
        return True, "Success"
