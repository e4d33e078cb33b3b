"""sglang.launch_server with LoRA on a processor without a GPU. Processes that the server spawns import this module, too.

Its backend torch_native pins memory for copies to a GPU, which torch refuses without one: here nothing is pinned. What
POST /weights_checker answers has the slots of adapters, too."""

from __future__ import annotations

import functools
import runpy
from typing import Any, Callable, Iterator

import torch
from sglang.srt.lora.lora_manager import LoRAManager
from sglang.srt.lora.utils import get_stacked_multiply
from sglang.srt.utils.weight_checker import WeightChecker

from tools.real.adapters.sglang_engine import PREFIX

_managers: list[Any] = []


def _not_pinning(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    return made


def _slots(manager: Any) -> Iterator[tuple[str, Any]]:
    """By PREFIX, the adapter's name, A or B, module and layer: what is in its slot, as far as its rank goes."""
    pool = manager.memory_pool
    for uid, slot in pool.uid_to_buffer_id.items():
        if uid is None:
            continue
        name, r = manager.lora_refs[uid].lora_name, manager.loras[uid].config.r
        for target, buffers in pool.A_buffer.items():
            rows = r * get_stacked_multiply(target, pool.base_model)
            for layer, buffer in enumerate(buffers):
                yield f"{PREFIX}{name}:A:{target}:{layer}", buffer[slot, :rows].contiguous()
                yield f"{PREFIX}{name}:B:{target}:{layer}", pool.B_buffer[target][layer][slot, :, :r].contiguous()


def _kept(init: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _managers.append(self)

    return made


def _with_slots(state: Callable[..., Any]) -> Callable[..., Any]:
    def found(self: Any) -> Iterator[tuple[str, Any]]:
        yield from state(self)
        for manager in _managers:
            yield from _slots(manager)

    return found


torch.tensor, torch.zeros = _not_pinning(torch.tensor), _not_pinning(torch.zeros)
torch.Tensor.pin_memory = lambda self, *args: self  # type: ignore[assignment]
LoRAManager.__init__ = _kept(LoRAManager.__init__)
WeightChecker._model_state = _with_slots(WeightChecker._model_state)

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
