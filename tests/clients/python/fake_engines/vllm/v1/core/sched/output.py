"""What the scheduler gives to the workers for one step."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class SchedulerOutput:
    total_num_scheduled_tokens: int
    batch: Any = None  # what the test's config computes with
