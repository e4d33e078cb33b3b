"""A small adapter, and its checkpoint as peft writes it."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

import torch

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "use_rslora": False, "bias": "none"}
MODULES = {"model.layers.0.q_proj": (6, 4), "model.layers.0.down_proj": (4, 8)}


def tensors(seed: int = 0, r: int = 2, modules: Any = None) -> dict[str, torch.Tensor]:
    """A and B by the names that peft saves."""
    random = torch.Generator().manual_seed(seed)
    found = {}
    for name, (rows, columns) in (modules or MODULES).items():
        found[f"base_model.model.{name}.lora_A.weight"] = torch.randn(r, columns, generator=random)
        found[f"base_model.model.{name}.lora_B.weight"] = torch.randn(rows, r, generator=random)
    return found


def save(folder: str, weights: dict[str, torch.Tensor], **config: Any) -> str:
    """Writes a checkpoint in float32; returns its folder."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({**CONFIG, **config}, file)
    header, data = {}, b""
    for name, tensor in weights.items():
        bits = tensor.numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(bits)]}
        data += bits
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    return folder
