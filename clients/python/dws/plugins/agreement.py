"""How the ranks of an engine agree (dws.plugins.step_gate): over a torch process group."""

from __future__ import annotations

import importlib
from typing import Any, Sequence

from dws.plugins.step_gate import Minimum


def minimum_over(group: Any) -> Minimum:
    """Makes its own group of the same ranks, because the engine may use `group` on another thread.
    All ranks of the default group must call it; a single tensor-parallel group is all of them.

    Args:
      group: of torch.distributed: the engine's ranks.
    """
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    # On the host: a group on devices would have to wait for them.
    ranks = distributed.get_process_group_ranks(group)
    own = distributed.new_group(ranks, backend="gloo")

    def minimum(values: Sequence[int]) -> Sequence[int]:
        lowest = torch.tensor(list(values), dtype=torch.int64)
        distributed.all_reduce(lowest, op=distributed.ReduceOp.MIN, group=own)
        found: list[int] = lowest.tolist()
        return found

    return minimum
