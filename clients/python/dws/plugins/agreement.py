"""How the ranks of an engine agree (dws.plugins.step_gate): over a process group of torch."""

from __future__ import annotations

import importlib
from typing import Any, Sequence

from dws.plugins.step_gate import Minimum


def minimum_over(group: Any) -> Minimum:
    """Args:
    group: of torch.distributed, of the host (gloo): a group of devices would have to wait for them.
    """
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")

    def minimum(values: Sequence[int]) -> Sequence[int]:
        lowest = torch.tensor(list(values), dtype=torch.int64)
        distributed.all_reduce(lowest, op=distributed.ReduceOp.MIN, group=group)
        found: list[int] = lowest.tolist()
        return found

    return minimum
