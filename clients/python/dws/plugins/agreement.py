"""How the ranks of an engine agree (dws.plugins.step_gate): over a process group of torch."""

from __future__ import annotations

import importlib
from typing import Any, Sequence

from dws.plugins.step_gate import Minimum


def minimum_over(group: Any) -> Minimum:
    """Makes a group of its own, of the same ranks: an engine may use `group` on another thread. All
    ranks of the default group call it, which a tensor-parallel group alone is.

    Args:
      group: of torch.distributed, the engine's ranks.
    """
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    # Of the host: a group of devices would have to wait for them.
    ranks = distributed.get_process_group_ranks(group)
    own = distributed.new_group(ranks, backend="gloo")

    def minimum(values: Sequence[int]) -> Sequence[int]:
        lowest = torch.tensor(list(values), dtype=torch.int64)
        distributed.all_reduce(lowest, op=distributed.ReduceOp.MIN, group=own)
        found: list[int] = lowest.tolist()
        return found

    return minimum
