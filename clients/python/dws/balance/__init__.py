"""Balances the work of trainer ranks whose samples have different lengths.

plan = dws.balance.lb_micro(lengths, ranks=8, limit=65_536)  # the same on every rank
for microbatch in plan.ranks[rank]:  # indexes of the samples
    ...

`lb_micro` is for trainers with collectives in each microbatch, such as FSDP; `lb_mini` for those
whose ranks wait for each other once a minibatch. `python3 -m dws.balance LENGTHS.txt` prints what
each packing would cost. Needs numpy; no daemon, no torch.
"""

from dws.balance.comparison import PACKINGS, Row, Run, compare
from dws.balance.cost import Cost
from dws.balance.packings import (
    DEFAULT_COST,
    lb_micro,
    lb_mini,
    local_sort,
    verl_native,
    verl_optimised,
)
from dws.balance.plans import Outcome, Plan, collectives, on_demand

__all__ = [
    "Cost",
    "DEFAULT_COST",
    "Outcome",
    "PACKINGS",
    "Plan",
    "Row",
    "Run",
    "collectives",
    "compare",
    "lb_micro",
    "lb_mini",
    "local_sort",
    "on_demand",
    "verl_native",
    "verl_optimised",
]
