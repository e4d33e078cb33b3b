"""The tensor-parallel group of this process; a test sets it."""

from __future__ import annotations

from typing import Any

_TP: list[Any] = []


def set_tp_group(group: Any) -> None:
    _TP[:] = [group]


def get_tp_group() -> Any:
    return _TP[0]
