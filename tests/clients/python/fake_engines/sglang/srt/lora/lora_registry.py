"""What identifies an adapter."""

from __future__ import annotations

import dataclasses
from typing import Optional


@dataclasses.dataclass(frozen=True)
class LoRARef:
    lora_id: str
    lora_name: Optional[str] = None
    lora_path: Optional[str] = None
