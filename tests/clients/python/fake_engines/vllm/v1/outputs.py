"""The result of a step. `logits` are those that tokens are sampled from, `prompt_logits` those of prompt
tokens; a pooling model has neither."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class ModelRunnerOutput:
    req_ids: list[str] = dataclasses.field(default_factory=list)
    logits: Any = None
    prompt_logits: Any = None
    pooled: Any = None


REQUESTS = ["request"]
EMPTY_MODEL_RUNNER_OUTPUT = ModelRunnerOutput()
