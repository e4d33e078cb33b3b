"""Names of the buffers for modules and weights."""

from __future__ import annotations

from typing import Any


def get_target_module_name(full_module_name: str, target_modules: set[str]) -> str:
    found = [name for name in target_modules if name in full_module_name]
    if not found:
        raise ValueError(f"Cannot find target module name for {full_module_name} in {target_modules}")
    return max(found, key=len)


def get_stacked_multiply(module_name: str, base_model: Any) -> int:
    return 2 if module_name == "gate_up_proj" else 1
