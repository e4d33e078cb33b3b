"""The packings: five ways to distribute the samples of minibatches over ranks and microbatches.

Every rank calls the same packing with the lengths of all samples, not of its own only, and gets the
same plan. dws.balance.plans says what a plan costs.
"""

from __future__ import annotations

from typing import Any, Iterable, Optional

import numpy as np
from numpy.typing import NDArray

from dws.balance.cost import Cost, check_fits, checked_lengths
from dws.balance.differencing import partition
from dws.balance.plans import Microbatch, Plan
from dws.errors import InvalidArgumentError

# Both parts cost the same at 64.5 k tokens: a dense model of 7 billion parameters.
DEFAULT_COST = Cost(a=1.0, b=64_500.0)

_Lengths = NDArray[np.int64]


def local_sort(lengths: Iterable[int], ranks: int) -> Plan:
    """Rank d has the samples d, d + ranks, ...: one a microbatch, the shortest first.

    Args:
      lengths: of the samples of one minibatch, in tokens.

    Raises:
      InvalidArgumentError: a length is wrong, or the samples do not divide by the ranks.
    """
    tokens = _checked(lengths, ranks, "local_sort")
    order = np.argsort(tokens, kind="stable")
    return Plan(
        tuple(tuple((int(i),) for i in order if i % ranks == rank) for rank in range(ranks))
    )


def lb_micro(
    lengths: Iterable[int],
    ranks: int,
    *,
    cost: Cost = DEFAULT_COST,
    limit: Optional[int] = None,
) -> Plan:
    """Each rank has equally many samples and equally many microbatches, so that collectives may be
    used in each of them. Microbatches are in descending cost: like meets like.

    Args:
      lengths: of the samples of one minibatch, in tokens.
      limit: tokens that fit into a microbatch; by default those of the longest sample.

    Raises:
      InvalidArgumentError: a length is wrong or over the limit, or the samples do not divide by the
        ranks.
    """
    tokens = _checked(lengths, ranks, "lb_micro")
    limit = _checked_limit(tokens, limit)
    costs = cost.of(tokens)
    shares = partition(costs.tolist(), ranks, equal_counts=True)
    return _in_step(shares, tokens, costs, limit)


def lb_mini(
    lengths: Iterable[int],
    ranks: int,
    *,
    cost: Cost = DEFAULT_COST,
    limit: Optional[int] = None,
) -> Plan:
    """Each rank has as many samples, and as many microbatches, as make the work of ranks equal.

    Only a trainer whose ranks wait for each other once a minibatch can use this plan: FSDP's
    collectives wait for ever on it. Each rank has at least one sample.

    Args:
      lengths: of the samples of one minibatch, in tokens; at least one for each rank.
      limit: tokens that fit into a microbatch; by default those of the longest sample.

    Raises:
      InvalidArgumentError: a length is wrong or over the limit, or there are fewer samples than
        ranks.
    """
    tokens = _checked(lengths, ranks, "")
    limit = _checked_limit(tokens, limit)
    costs = cost.of(tokens)
    shares = partition(costs.tolist(), ranks, equal_counts=False)
    return Plan(tuple(_cut_to_fit([share], tokens, costs, limit)[0] for share in shares))


def verl_native(
    lengths: Iterable[int],
    ranks: int,
    minibatch: int,
    *,
    cost: Cost = DEFAULT_COST,
    limit: Optional[int] = None,
    seed: int = 0,
) -> tuple[Plan, ...]:
    """verl's way: the global batch is balanced over the ranks, each shuffles its samples and cuts
    them into minibatches, which are cut into microbatches as those of `lb_micro`.

    Args:
      lengths: of all samples of the global batch, in tokens.
      minibatch: samples of a rank in each minibatch.
      limit: tokens that fit into a microbatch; by default those of the longest sample.
      seed: of the shuffling.

    Returns:
      a plan for each minibatch; all their indexes are those of `lengths`.

    Raises:
      InvalidArgumentError: a length is wrong or over the limit, or the samples do not divide into
        minibatches.
    """
    tokens = _checked(lengths, ranks, "verl_native", minibatch)
    limit = _checked_limit(tokens, limit)
    costs = cost.of(tokens)
    generator = np.random.default_rng(seed)
    shuffled = [
        generator.permutation(share)
        for share in partition(costs.tolist(), ranks, equal_counts=True)
    ]
    return tuple(
        _in_step(
            [share[begin : begin + minibatch].tolist() for share in shuffled], tokens, costs, limit
        )
        for begin in range(0, len(tokens) // ranks, minibatch)
    )


def verl_optimised(
    lengths: Iterable[int],
    ranks: int,
    minibatch: int,
    *,
    cost: Cost = DEFAULT_COST,
    limit: Optional[int] = None,
) -> tuple[Plan, ...]:
    """verl's way in the better order: the global batch is cut into minibatches, in the order given;
    each of them is balanced over the ranks as `lb_micro` does.

    Args, returns, raises: as verl_native.
    """
    tokens = _checked(lengths, ranks, "verl_optimised", minibatch)
    limit = _checked_limit(tokens, limit)
    costs = cost.of(tokens)
    plans = []
    size = ranks * minibatch
    for begin in range(0, len(tokens), size):
        shares = partition(costs[begin : begin + size].tolist(), ranks, equal_counts=True)
        moved = [[begin + i for i in share] for share in shares]
        plans.append(_in_step(moved, tokens, costs, limit))
    return tuple(plans)


def _checked(lengths: Iterable[Any], ranks: int, equal: str, minibatch: int = 1) -> _Lengths:
    """Returns the lengths.

    Args:
      equal: the packing that gives each rank equally many samples, in each minibatch; "" if the
        packing at hand does not.
    """
    tokens = checked_lengths(lengths)
    if ranks < 1 or minibatch < 1:
        raise InvalidArgumentError(
            f"expected at least one rank and one sample a rank, found {ranks} and {minibatch}"
        )
    if len(tokens) < ranks:
        raise InvalidArgumentError(
            f"{len(tokens)} samples do not suffice for {ranks} ranks: expected one for each or more"
        )
    if equal and len(tokens) % (ranks * minibatch):
        raise InvalidArgumentError(
            f"{len(tokens)} samples are no multiple of {ranks * minibatch}: {equal} gives each of "
            f"the {ranks} ranks equally many; leave some out, or take lb_mini"
        )
    return tokens


def _checked_limit(tokens: _Lengths, limit: Optional[int]) -> int:
    longest = int(tokens.argmax())
    check_fits(int(tokens[longest]), limit, f"sequence {longest}")
    return int(tokens[longest]) if limit is None else limit


def _in_step(
    shares: list[list[int]], tokens: _Lengths, costs: NDArray[np.float64], limit: int
) -> Plan:
    return Plan(tuple(_cut_to_fit(shares, tokens, costs, limit)))


def _cut_to_fit(
    shares: list[list[int]], tokens: _Lengths, costs: NDArray[np.float64], limit: int
) -> list[tuple[Microbatch, ...]]:
    """Cuts the samples of each rank into the same number of microbatches: the smallest with which
    the partition keeps all within the limit. One a sample always does."""
    fewest = max(-(-int(tokens[share].sum()) // limit) for share in shares)
    for count in range(fewest, max(map(len, shares))):
        cut = [_microbatches(share, costs, count) for share in shares]
        if all(tokens[list(micro)].sum() <= limit for rank in cut for micro in rank):
            return cut
    return [_microbatches(share, costs, len(share)) for share in shares]


def _microbatches(
    share: list[int], costs: NDArray[np.float64], count: int
) -> tuple[Microbatch, ...]:
    """Cuts a rank's samples into microbatches of about equal cost, the most expensive first."""
    sets = partition(costs[share].tolist(), count, equal_counts=False)
    micros = [tuple(share[i] for i in members) for members in sets]
    return tuple(sorted(micros, key=lambda micro: -float(costs[list(micro)].sum())))
