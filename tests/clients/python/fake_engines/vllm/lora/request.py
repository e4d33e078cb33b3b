"""What asks for an adapter."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False
