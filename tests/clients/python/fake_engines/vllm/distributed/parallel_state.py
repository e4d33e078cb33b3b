"""The tensor-parallel group of this process, and that of all ranks, or of a thread that stands for one; a test sets it."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any


@dataclasses.dataclass
class GroupCoordinator:
    rank_in_group: int
    world_size: int
    cpu_group: Any


_TP: list[GroupCoordinator] = []
_WORLD: list[GroupCoordinator] = []  # empty: the same
_THREAD = threading.local()


def set_tp_group(rank: int, size: int, cpu_group: Any) -> None:
    _WORLD.clear()
    _TP[:] = [GroupCoordinator(rank, size, cpu_group)]


def set_world_group(rank: int, size: int, cpu_group: Any) -> None:
    _WORLD[:] = [GroupCoordinator(rank, size, cpu_group)]


def set_tp_group_of_thread(rank: int, size: int, cpu_group: Any) -> None:
    _THREAD.group = GroupCoordinator(rank, size, cpu_group)


def get_world_group() -> GroupCoordinator:
    return _WORLD[0] if _WORLD else get_tp_group()


def get_tp_group() -> GroupCoordinator:
    assert _TP, "tensor model parallel group is not initialized"
    return getattr(_THREAD, "group", _TP[0])
