"""The processes of one engine, or of one trainer: collective calls over gloo on the loopback
interface."""

from __future__ import annotations

import os
from typing import Any, Sequence

import torch
import torch.distributed as dist


class Ranks:
    """This process and its peers; all of them make the same calls, in the same order.

    Lifecycle: made in each process; end. A process alone has no group: its calls return at once.
    Threads: one.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: str = "") -> None:
        """Args:
        store: a file through which the processes find each other; not there yet.
        """
        self.rank = rank
        self.size = size
        if size > 1:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=size
            )

    def total(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors."""
        if self.size == 1:
            return part
        wide = part.float()  # gloo of torch 1.13 cannot add BF16
        dist.all_reduce(wide)
        return wide.to(part.dtype)

    def lowest(self, numbers: Sequence[int]) -> list[int]:
        """Returns for each number the lowest of all ranks."""
        found = torch.tensor(numbers)
        if self.size > 1:
            dist.all_reduce(found, op=dist.ReduceOp.MIN)
        return [int(number) for number in found]

    def of_first(self, value: Any) -> Any:
        """What rank 0 passes."""
        if self.size == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def gathered(self, value: Any) -> list[Any]:
        """What each rank passes, in their order."""
        found = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value)
        return found

    def end(self) -> None:
        """Leaves the group."""
        if self.size > 1:
            dist.destroy_process_group()
