"""Hooks that plugins register by dotted path; apply_hooks installs them, and goes on after one that it cannot."""

from __future__ import annotations

import enum
import functools
import pkgutil
from typing import Any, Callable


class HookType(enum.Enum):
    AFTER = "after"
    AROUND = "around"


class HookRegistry:
    _hooks: dict[str, list[tuple[HookType, Callable[..., Any]]]] = {}
    _patched: set[str] = set()

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
        cls._hooks.setdefault(target, []).append((hook_type, hook))

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hooks in cls._hooks.items():
            path, _, method = target.rpartition(".")
            try:
                owner = pkgutil.resolve_name(path)
                for hook_type, hook in hooks:
                    setattr(owner, method, _wrapped(getattr(owner, method), hook, hook_type))
                cls._patched.add(target)
            except Exception:
                continue

    @classmethod
    def reset(cls) -> None:
        cls._hooks.clear()
        cls._patched.clear()


def _wrapped(
    original: Callable[..., Any], hook: Callable[..., Any], hook_type: HookType
) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if hook_type is HookType.AROUND:
            return hook(original, *args, **kwargs)
        result = original(*args, **kwargs)
        changed = hook(result, *args, **kwargs)
        return result if changed is None else changed

    return wrapper
