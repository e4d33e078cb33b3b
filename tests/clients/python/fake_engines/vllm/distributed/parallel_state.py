"""The tensor-parallel group of this process; a test sets it."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class GroupCoordinator:
    rank_in_group: int
    world_size: int
    cpu_group: Any


_TP: list[GroupCoordinator] = []


def set_tp_group(rank: int, size: int, cpu_group: Any) -> None:
    _TP[:] = [GroupCoordinator(rank, size, cpu_group)]


def get_tp_group() -> GroupCoordinator:
    assert _TP, "tensor model parallel group is not initialized"
    return _TP[0]
