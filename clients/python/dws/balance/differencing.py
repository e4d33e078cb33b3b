"""Partitions of numbers into sets of equal sums: Karmarkar-Karp differencing, then exchanges.

The largest differencing method (Karmarkar and Karp, 1982) for several sets: each partition begins
with one item, or with one item in each set; the two partitions that are least even are merged,
the heaviest sets of one with the lightest of the other, until one partition is left.
"""

from __future__ import annotations

import heapq
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

# An exchange must lower the heavier of two sets by more than this part of it, so that rounding
# cannot make two exchanges undo each other for ever.
_GAIN_MIN = 1e-12
# Exchanges for each item. The largest number seen is below one.
_EXCHANGES_MAX = 10

_Set = tuple[float, list[int]]  # sum, items


def partition(values: Sequence[float], sets: int, *, equal_counts: bool) -> list[list[int]]:
    """Partitions items into sets with sums that are as equal as this method makes them.

    The result depends on the arguments only. No set is empty unless there are fewer items than
    sets: differencing fills an empty set first, and no exchange takes the only item of a set.

    Args:
      values: of the items, at least one; above zero and finite.
      sets: how many, at least 1.
      equal_counts: the counts of two sets differ by at most one. Otherwise equal counts are
        tried too, and the result with the smaller largest sum is taken.

    Returns:
      for each set the indexes of its items, by descending value.
    """
    costs = np.asarray(values, np.float64)
    ascending = [int(i) for i in np.argsort(costs, kind="stable")]
    best = _exchange(costs, _differenced(_groups(costs, ascending, sets)), equal_counts=True)
    if not equal_counts:
        singles = [[(float(costs[i]), [i])] + _empty(sets - 1) for i in ascending]
        free = _exchange(costs, _differenced(singles), equal_counts=False)
        best = min(free, _exchange(costs, best, equal_counts=False), key=_heaviest)
    rank = {item: at for at, item in enumerate(reversed(ascending))}
    return [sorted(items, key=rank.__getitem__) for _, items in best]


def _empty(sets: int) -> list[_Set]:
    return [(0.0, []) for _ in range(sets)]


def _heaviest(sets: list[_Set]) -> float:
    return max(total for total, _ in sets)


def _groups(costs: NDArray[np.float64], ascending: list[int], sets: int) -> list[list[_Set]]:
    """Items of about the same value, one in each set. The group of the smallest may lack some."""
    first = len(ascending) % sets
    cuts = ([0] if first else []) + list(range(first, len(ascending), sets))
    groups = []
    for begin, end in zip(cuts, cuts[1:] + [len(ascending)]):
        group = [(float(costs[i]), [i]) for i in reversed(ascending[begin:end])]
        groups.append(group + _empty(sets - len(group)))
    return groups


def _differenced(partitions: list[list[_Set]]) -> list[_Set]:
    """Merges partitions, each with its sets by descending sum, into one."""
    heap = [(sets[-1][0] - sets[0][0], at, sets) for at, sets in enumerate(partitions)]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, at, one = heapq.heappop(heap)
        _, _, other = heap[0]
        merged = [(a + b, p + q) for (a, p), (b, q) in zip(one, reversed(other))]
        merged.sort(key=lambda entry: -entry[0])
        heapq.heapreplace(heap, (merged[-1][0] - merged[0][0], at, merged))
    return heap[0][2]


def _exchange(costs: NDArray[np.float64], sets: list[_Set], *, equal_counts: bool) -> list[_Set]:
    """Exchanges single items of the heaviest and the lightest set while that lowers the heavier.

    Without `equal_counts` an item may also move without one in return.
    """
    items = [list(members) for _, members in sets]
    sums = np.array([costs[members].sum() for members in items])
    for _ in range(_EXCHANGES_MAX * len(costs)):
        heavy, light = int(sums.argmax()), int(sums.argmin())
        there = costs[items[light]] if equal_counts else np.append(costs[items[light]], 0.0)
        moved = costs[items[heavy]][:, None] - there[None, :]
        surplus = float(sums[heavy] - sums[light])
        # What the heavier of the two sets loses by each exchange.
        gains = np.minimum(moved, surplus - moved)
        if gains.size == 0 or gains.max() <= _GAIN_MIN * sums[heavy]:
            break
        give, take = divmod(int(gains.argmax()), gains.shape[1])
        given = items[heavy].pop(give)
        if take < len(items[light]):
            items[heavy].append(items[light].pop(take))
        items[light].append(given)
        for at in (heavy, light):
            sums[at] = costs[items[at]].sum()
    return [(float(total), members) for total, members in zip(sums, items)]
