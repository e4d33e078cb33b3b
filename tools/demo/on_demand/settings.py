"""What the demo trains on: sequences with the shape of LongAlign's, scaled to 1,024 tokens. Needs numpy only."""

from __future__ import annotations

import numpy as np

from dws.balance import Cost, Plan, lb_micro, lb_mini, local_sort

FSDP2, AGAIN, LOCKSTEP, ON_DEMAND = WAYS = ("FSDP2", "again", "lock-step", "on demand")
LIMIT = 1024  # tokens of a microbatch
SAMPLES = 4  # of a rank in a step
_LONGEST = 65_536  # of LongAlign: log-normal, and what is out of bounds is drawn again
_SHORTEST, _MEDIAN, _SIGMA = 4_000, 10_167, 1.0
# A layer's matrices beside attention: about that of the demo's model.
COST = Cost(1.0, 1_000.0)


def lengths_of(step: int, ranks: int, seed: int) -> tuple[int, ...]:
    """The lengths of a step's samples in tokens, the same on all ranks."""
    generator = np.random.default_rng([seed, step])
    found: list[int] = []
    while len(found) < ranks * SAMPLES:
        length = generator.lognormal(np.log(_MEDIAN), _SIGMA)
        if _SHORTEST <= length <= _LONGEST:
            found.append(max(2, int(length * LIMIT / _LONGEST)))
    return tuple(found)


def plan_of(way: str, lengths: tuple[int, ...], ranks: int) -> Plan:
    """AGAIN is FSDP2 with other microbatches, one for each sample: how far two runs of the same training drift apart."""
    if way == ON_DEMAND:
        return lb_mini(lengths, ranks, cost=COST, limit=LIMIT)
    if way == AGAIN:
        return local_sort(lengths, ranks)
    return lb_micro(lengths, ranks, cost=COST, limit=LIMIT)
