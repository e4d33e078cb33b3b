"""The scheduler of one rank: its __init__ ends with a model that is ready to run."""

from __future__ import annotations

import types
from typing import Any, Optional

from sglang.srt.model_executor.model_runner import ModelRunner


class Scheduler:
    def __init__(self, model: Any, lora_manager: Any = None) -> None:
        self.tp_worker = types.SimpleNamespace(model_runner=ModelRunner(model))
        self.tp_worker.model_runner.lora_manager = lora_manager
        self.versions: list[Optional[str]] = []  # one after the other

    def record_weight_version_change(self, new_version: Optional[str]) -> None:
        if new_version not in (None, *self.versions[-1:]):
            self.versions.append(new_version)
