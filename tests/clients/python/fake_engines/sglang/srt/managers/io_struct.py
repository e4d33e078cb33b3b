"""Requests to the scheduler."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class UpdateWeightVersionReqInput:
    new_version: str
    abort_all_requests: bool = True
