"""The adapters of the check, and their checkpoints as peft writes them. (tools/real.sh trainers compares what peft itself
writes with what a trainer publishes.)"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from typing import Any

import torch

from dws.adapters import AdapterConfig
from dws.dtypes import DType
from tools.real.engines.model import CONFIGS

KIND = "qwen3"
STEPS = (0, 1, 2)
_LAYERS = int(CONFIGS[KIND]["num_hidden_layers"])
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass(frozen=True)
class Adapter:
    """One adapter, of all layers. Scalings are no powers of two: what engines multiply B by rounds."""

    config: AdapterConfig
    targets: tuple[str, ...]
    dtype: torch.dtype = torch.float32  # peft trains adapters of a model in bfloat16 in this

    def shapes(self) -> dict[str, tuple[int, int]]:
        """By the names of a checkpoint."""
        found = {}
        for layer in range(_LAYERS):
            for target in self.targets:
                at = f"base_model.model.model.layers.{layer}.{'self_attn' if target in _ATTENTION else 'mlp'}.{target}"
                rows, columns = _shape_of(target)
                found[f"{at}.lora_A.weight"] = (self.config.r, columns)
                found[f"{at}.lora_B.weight"] = (rows, self.config.r)
        return found


ADAPTERS = {
    "math": Adapter(AdapterConfig(r=8, lora_alpha=12), (*_ATTENTION, *_MLP)),
    "code": Adapter(AdapterConfig(r=4, lora_alpha=9, use_rslora=True), ("q_proj", "v_proj", "down_proj"), torch.bfloat16),
    "plain": Adapter(AdapterConfig(r=4, lora_alpha=9), ("q_proj", "v_proj", "down_proj"), torch.bfloat16),
    # Like "math", but for one thing.
    "wide": Adapter(AdapterConfig(r=16, lora_alpha=12), (*_ATTENTION, *_MLP)),
    "loud": Adapter(AdapterConfig(r=8, lora_alpha=24), (*_ATTENTION, *_MLP)),
    "rooted": Adapter(AdapterConfig(r=8, lora_alpha=12, use_rslora=True), (*_ATTENTION, *_MLP)),
    "narrow": Adapter(AdapterConfig(r=8, lora_alpha=12), _ATTENTION),
    "other": Adapter(AdapterConfig(r=2, lora_alpha=6), ("o_proj",)),
}


def step_weights(name: str, step: int) -> dict[str, torch.Tensor]:
    """A and B after so many steps of training: of step 0 B is zero, as peft begins."""
    found = {}
    seed = 1000 * list(ADAPTERS).index(name)
    for number, (key, shape) in enumerate(ADAPTERS[name].shapes().items()):
        random = torch.Generator().manual_seed(seed + number)
        value = torch.randn(shape, generator=random) / shape[1] ** 0.5
        if key.endswith("lora_B.weight"):
            value = torch.zeros(shape)
        for _ in range(step):
            value = value + torch.randn(shape, generator=random) / shape[1] ** 0.5
        found[key] = value.to(ADAPTERS[name].dtype)
    return found


def version_weights(name: str, version: int) -> dict[str, torch.Tensor]:
    """For the search for torn passes: version 0 or 1 of what a trainer registers. They differ in the MLP of the last layer
    alone, so that what earlier tokens left in the KV cache is the same in both."""
    found = step_weights(name, 1)
    changed = step_weights(name, 2)
    last = f"base_model.model.model.layers.{_LAYERS - 1}.mlp."
    assert any(key.startswith(last) for key in found)
    found.update({key: changed[key] for key in found if version and key.startswith(last)})
    return registered(name, found)


def registered(name: str, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a trainer registers."""
    zeros = {key: torch.from_numpy(zero) for key, zero in ADAPTERS[name].config.tensors().items()}
    return {**weights, **zeros}


def write_adapter(folder: str, name: str, weights: dict[str, torch.Tensor]) -> str:
    """Writes a checkpoint; returns its folder."""
    os.makedirs(folder, exist_ok=True)
    one = ADAPTERS[name]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "target_modules": list(one.targets),
        **dataclasses.asdict(one.config),
    }
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump(config, file)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end, data = 0, []
    for key, tensor in weights.items():
        bits = tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32).numpy().tobytes()
        header[key] = {"dtype": DType.of(tensor.dtype).name, "shape": list(tensor.shape), "data_offsets": [end, end + len(bits)]}
        end += len(bits)
        data.append(bits)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data)
    return folder


def _shape_of(target: str) -> tuple[int, int]:
    config = CONFIGS[KIND]
    hidden, middle, dim = int(config["hidden_size"]), int(config["intermediate_size"]), int(config["head_dim"])
    query, key_value = (int(config[k]) * dim for k in ("num_attention_heads", "num_key_value_heads"))
    return {
        "q_proj": (query, hidden),
        "k_proj": (key_value, hidden),
        "v_proj": (key_value, hidden),
        "o_proj": (hidden, query),
        "gate_proj": (middle, hidden),
        "up_proj": (middle, hidden),
        "down_proj": (hidden, middle),
    }[target]
