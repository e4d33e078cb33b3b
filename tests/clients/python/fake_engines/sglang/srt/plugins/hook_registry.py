"""Hooks that plugins register by dotted path; apply_hooks installs them."""

from __future__ import annotations

import enum
import importlib
from typing import Any, Callable


class HookType(enum.Enum):
    AFTER = "after"


class HookRegistry:
    _hooks: list[tuple[str, Callable[..., Any]]] = []

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
        assert hook_type is HookType.AFTER
        cls._hooks.append((target, hook))

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hook in cls._hooks:
            path, _, method = target.rpartition(".")
            module, _, name = path.rpartition(".")
            owner = getattr(importlib.import_module(module), name)
            setattr(owner, method, _after(getattr(owner, method), hook))


def _after(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        changed = hook(result, *args, **kwargs)
        return result if changed is None else changed

    return wrapper
