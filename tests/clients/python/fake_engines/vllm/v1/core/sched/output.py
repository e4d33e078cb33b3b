"""The scheduler's output for one step of the workers."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class SchedulerOutput:
    total_num_scheduled_tokens: int
    batch: Any = None  # the input of the test's config
