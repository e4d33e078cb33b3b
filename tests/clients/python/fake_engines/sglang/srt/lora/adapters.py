"""The adapters of a scheduler: on the host as they were read, with gate and up stacked, and in slots."""

from __future__ import annotations

import json
import os
import struct
import types
from typing import Any

import numpy as np
import torch

from sglang.srt.lora.utils import get_stacked_multiply, get_target_module_name

MAX_RANK = 4
TARGETS = {"gate_up_proj", "down_proj"}


def read_checkpoint(folder: str) -> dict[str, torch.Tensor]:
    with open(os.path.join(folder, "adapter_model.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    return {
        name: torch.from_numpy(np.frombuffer(data[slice(*one["data_offsets"])], np.float32).reshape(one["shape"]).copy())
        for name, one in header.items()
    }


class LoRAAdapter:
    """One layer's weights on the host."""

    def __init__(self, config: Any, tensors: dict[str, torch.Tensor]) -> None:
        self.config, self.scaling = config, config.lora_alpha / config.r
        weights = dict(tensors)
        for name in tensors:
            if "gate_proj" in name:
                pair = weights.pop(name), weights.pop(name.replace("gate_proj", "up_proj"))
                weights[name.replace("gate_proj", "gate_up_proj")] = torch.cat(pair)
        self.layers = [types.SimpleNamespace(weights=weights)]


class Layer:
    def slice_lora_a_weights(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def slice_lora_b_weights(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class LoRAMemoryPool:
    def __init__(self, slots: int, shapes: dict[str, tuple[int, int]]) -> None:
        self.dtype, self.base_model, self.target_modules = torch.bfloat16, torch.nn.Module(), set(TARGETS)
        self.uid_to_buffer_id: dict[str, int] = {}
        self.slots = slots
        self.A_buffer, self.B_buffer = {}, {}
        for target, (rows, columns) in shapes.items():
            stacked = get_stacked_multiply(target, None)
            self.A_buffer[target] = [torch.zeros(slots, MAX_RANK * stacked, columns, dtype=self.dtype)]
            self.B_buffer[target] = [torch.zeros(slots, rows, MAX_RANK, dtype=self.dtype)]

    def load_lora_weight_to_buffer(
        self, uid: str, buffer_id: int, lora_adapter: LoRAAdapter, lora_modules: Any, embed: Any, lm_head: Any
    ) -> None:
        r = lora_adapter.config.r
        for name in lora_modules[0]:
            target = get_target_module_name(name, self.target_modules)
            size = r * get_stacked_multiply(target, None)
            for half, view in (
                ("lora_A", self.A_buffer[target][0][buffer_id, :size]),
                ("lora_B", self.B_buffer[target][0][buffer_id, :, :r]),
            ):
                weight = lora_adapter.layers[0].weights.get(f"base_model.model.{name}.{half}.weight")
                view.zero_() if weight is None else view.copy_(weight)


class SchedulerAdapters:
    def __init__(self, modules: tuple[str, ...], shapes: dict[str, tuple[int, int]], slots: int = 2) -> None:
        self.device = torch.device("cpu")
        self.configs: dict[str, Any] = {}
        self.loras: dict[str, LoRAAdapter] = {}
        self.lora_refs: dict[str, Any] = {}
        self.lora_modules: list[dict[str, Any]] = [{name: Layer() for name in modules}]
        self.embed_tokens_module = self.lm_head_module = None
        self.memory_pool = LoRAMemoryPool(slots, shapes)
        self.notified: list[set[int]] = []

    def create_lora_update_result(self, success: bool, error_message: str = "") -> Any:
        return types.SimpleNamespace(success=success, error_message=error_message)

    def load_lora_adapter(self, lora_ref: Any) -> Any:
        if lora_ref.lora_name in [ref.lora_name for ref in self.lora_refs.values()]:
            return self.create_lora_update_result(False, f"{lora_ref.lora_name} is already loaded")
        with open(os.path.join(lora_ref.lora_path, "adapter_config.json")) as file:
            return self._kept(lora_ref, read_checkpoint(lora_ref.lora_path), json.load(file))

    def load_lora_adapter_from_tensors(self, lora_ref: Any, tensors: Any, config_dict: Any) -> Any:
        return self._kept(lora_ref, tensors, config_dict)

    def _kept(self, lora_ref: Any, tensors: Any, config_dict: Any) -> Any:
        self.configs[lora_ref.lora_id] = types.SimpleNamespace(r=config_dict["r"], lora_alpha=config_dict["lora_alpha"])
        self.load_lora_weights_from_tensors(lora_ref, tensors)
        self.lora_refs[lora_ref.lora_id] = lora_ref
        return self.create_lora_update_result(True)

    def load_lora_weights_from_tensors(self, lora_ref: Any, tensors: Any) -> None:
        self.loras[lora_ref.lora_id] = LoRAAdapter(self.configs[lora_ref.lora_id], tensors)

    def unload_lora_adapter(self, lora_ref: Any) -> Any:
        self.memory_pool.uid_to_buffer_id.pop(lora_ref.lora_id, None)
        for table in (self.configs, self.loras, self.lora_refs):
            table.pop(lora_ref.lora_id, None)
        return self.create_lora_update_result(True)

    def fetch_new_loras(self, new_loras: set[str]) -> None:
        pool = self.memory_pool
        for uid in sorted(new_loras - pool.uid_to_buffer_id.keys()):
            if len(pool.uid_to_buffer_id) == pool.slots:
                pool.uid_to_buffer_id.pop(next(one for one in pool.uid_to_buffer_id if one not in new_loras))
            slot = min(set(range(pool.slots)) - set(pool.uid_to_buffer_id.values()))
            pool.load_lora_weight_to_buffer(uid, slot, self.loras[uid], self.lora_modules, None, None)
            pool.uid_to_buffer_id[uid] = slot

    def _notify_lora_slots_updated(self, slot_ids: set[int]) -> None:
        self.notified.append(slot_ids)
