"""The adapters of a worker: registered ones in the order of use, and slots of active ones; B is multiplied when it is loaded."""

from __future__ import annotations

import json
import os
import struct
import types
from typing import Any, Optional

import numpy as np
import torch

MAX_RANK = 4


class LoRALayerWeights:
    def __init__(self, rank: int, scaling: float) -> None:
        self.rank, self.scaling = rank, scaling
        self.lora_a: Any = None
        self.lora_b: Any = None

    def optimize(self) -> None:
        self.lora_b *= self.scaling
        self.scaling = 1


class LoRAModel:
    def __init__(self, lora_model_id: int, loras: dict[str, LoRALayerWeights]) -> None:
        self.id, self.loras = lora_model_id, loras

    @classmethod
    def from_local_checkpoint(cls, folder: str, expected: Any, *, peft_helper: Any, **given: Any) -> "LoRAModel":
        with open(os.path.join(folder, "adapter_model.safetensors"), "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            data = file.read()
        tensors = {
            name: torch.from_numpy(np.frombuffer(data[slice(*one["data_offsets"])], np.float32).reshape(one["shape"]).copy())
            for name, one in header.items()
        }
        return cls.from_lora_tensors(tensors=tensors, peft_helper=peft_helper, **given)

    @classmethod
    def from_lora_tensors(cls, lora_model_id: int, tensors: Any, peft_helper: Any, dtype: Any = None) -> "LoRAModel":
        loras: dict[str, LoRALayerWeights] = {}
        for name, tensor in tensors.items():
            module = name.removeprefix("base_model.model.").rpartition(".lora_")[0]
            scaling = peft_helper.lora_alpha / peft_helper.r
            one = loras.setdefault(module, LoRALayerWeights(peft_helper.r, scaling))
            setattr(one, "lora_a" if ".lora_A." in name else "lora_b", tensor.to(dtype))
        return cls(lora_model_id, loras)


class Layer:
    """A layer with a slot for each active adapter."""

    def __init__(self, rows: int, columns: int, slots: int) -> None:
        self.tp_size = 1
        self.lora_a_stacked = (torch.zeros(slots, 1, MAX_RANK, columns, dtype=torch.bfloat16),)
        self.lora_b_stacked = (torch.zeros(slots, 1, rows, MAX_RANK, dtype=torch.bfloat16),)

    def set_lora(self, slot: int, weights: Optional[LoRALayerWeights]) -> None:
        for (stacked,), tensor in (
            (self.lora_a_stacked, None if weights is None else weights.lora_a),
            (self.lora_b_stacked, None if weights is None else weights.lora_b),
        ):
            stacked[slot] = 0
            if tensor is not None:
                stacked[slot, 0, : tensor.shape[0], : tensor.shape[1]] = tensor


class Cache(dict[int, LoRAModel]):
    """Registered adapters in the order of use; a pinned one that is removed is no longer pinned."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned_items: set[int] = set()

    def remove(self, lora_id: int) -> bool:
        self.pinned_items.discard(lora_id)
        return self.pop(lora_id, None) is not None


class AdapterSlots:
    def __init__(self, modules: dict[str, tuple[int, int]], slots: int, capacity: int) -> None:
        self.modules = {name: Layer(*shape, slots) for name, shape in modules.items()}
        self.lora_index_to_id: list[Optional[int]] = [None] * slots
        self.capacity = capacity
        self._last_slot_layout = None
        self._registered_adapters = self.registered = Cache()

    def _create_merged_loras_inplace(self, model: LoRAModel) -> None:
        for weights in model.loras.values():
            weights.optimize()

    def _get_lora_layer_weights(self, model: LoRAModel, name: str) -> Optional[LoRALayerWeights]:
        return model.loras.get(name)

    def get_adapter(self, lora_id: int) -> Optional[LoRAModel]:
        return self.registered.get(lora_id)

    def remove_adapter(self, lora_id: int) -> bool:
        if lora_id in self.lora_index_to_id:
            self.lora_index_to_id[self.lora_index_to_id.index(lora_id)] = None
        return self.registered.remove(lora_id)

    def activate_adapter(self, lora_id: int) -> None:
        self.registered[lora_id] = self.registered.pop(lora_id)  # the last one used
        if lora_id in self.lora_index_to_id:
            return
        if None not in self.lora_index_to_id:
            oldest = next(one for one in self.registered if one in self.lora_index_to_id)
            self.lora_index_to_id[self.lora_index_to_id.index(oldest)] = None
        slot = self.lora_index_to_id.index(None)
        self.lora_index_to_id[slot] = lora_id
        for name, layer in self.modules.items():
            layer.set_lora(slot, self._get_lora_layer_weights(self.registered[lora_id], name))


class WorkerAdapters:
    _lora_model_cls = LoRAModel

    def __init__(self, modules: dict[str, tuple[int, int]], slots: int = 2, capacity: int = 2) -> None:
        self.device = torch.device("cpu")
        self._adapter_manager = AdapterSlots(modules, slots, capacity)

    def _load_adapter(self, lora_request: Any) -> LoRAModel:
        with open(os.path.join(lora_request.lora_path, "adapter_config.json")) as file:
            helper = types.SimpleNamespace(**json.load(file))
        if helper.r > MAX_RANK:
            raise ValueError(f"LoRA rank {helper.r} is greater than max_lora_rank {MAX_RANK}.")
        return self._lora_model_cls.from_local_checkpoint(
            lora_request.lora_path, (), peft_helper=helper, lora_model_id=lora_request.lora_int_id, dtype=torch.bfloat16
        )

    def add_adapter(self, lora_request: Any) -> bool:
        number, manager = lora_request.lora_int_id, self._adapter_manager
        if number not in manager.registered or lora_request.load_inplace:
            model = self._load_adapter(lora_request)
            manager.remove_adapter(number)
            if len(manager.registered) >= manager.capacity:
                manager.remove_adapter(next(iter(manager.registered)))
            manager._create_merged_loras_inplace(model)
            manager.registered[number] = model
        manager.activate_adapter(number)
        return True

    def remove_adapter(self, adapter_id: int) -> bool:
        return self._adapter_manager.remove_adapter(adapter_id)

    def remove_all_adapters(self) -> None:
        for adapter_id in list(self._adapter_manager.registered):
            self._adapter_manager.remove_adapter(adapter_id)

    def pin_adapter(self, adapter_id: int) -> bool:
        self._adapter_manager.registered.pinned_items.add(adapter_id)
        return True

    def list_adapters(self) -> set[int]:
        return set(self._adapter_manager.registered)
