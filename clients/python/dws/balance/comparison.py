"""What each packing would cost for the samples of a run, with collectives and on demand."""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterable, Optional

from dws.balance import packings
from dws.balance.cost import Cost, check_fits, checked_lengths
from dws.balance.plans import Outcome, Plan, collectives, on_demand
from dws.errors import InvalidArgumentError

PACKINGS = ("local_sort", "lb_micro", "lb_mini", "verl_native", "verl_optimised")


@dataclasses.dataclass(frozen=True)
class Run:
    """The samples of a run, and what computes them.

    Attributes:
      lengths: of the samples, in tokens, in the order in which they are trained on.
      ranks: how many share a minibatch.
      minibatch: samples of a rank in each minibatch.
      cost: of a sequence.
      limit: tokens that fit into a microbatch; by default those of the longest sample.
      global_batch: minibatches in a global batch of verl; the last one may have fewer.
      seed: of verl's shuffling.

    Raises:
      InvalidArgumentError: on construction: a number or a length is wrong, a sequence is over the
        limit, or the samples do not fill one minibatch.
    """

    lengths: tuple[int, ...]
    ranks: int
    minibatch: int
    cost: Cost = packings.DEFAULT_COST
    limit: Optional[int] = None
    global_batch: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        lengths = tuple(checked_lengths(self.lengths).tolist())
        object.__setattr__(self, "lengths", lengths)
        for name in ("ranks", "minibatch", "global_batch"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(
                    f"expected {name} to be at least 1, found {getattr(self, name)}"
                )
        if self.seed < 0:
            raise InvalidArgumentError(f"expected seed to be at least 0, found {self.seed}")
        if self.minibatches == 0:
            raise InvalidArgumentError(
                f"{len(lengths)} samples do not fill one minibatch: expected at least "
                f"{self.ranks * self.minibatch}, {self.minibatch} for each of {self.ranks} ranks"
            )
        longest = max(lengths)
        check_fits(longest, self.limit, f"sequence {lengths.index(longest)}")
        if self.limit is None:
            object.__setattr__(self, "limit", longest)

    @property
    def minibatches(self) -> int:
        """Whole minibatches that the samples fill, over all ranks."""
        return len(self.lengths) // (self.ranks * self.minibatch)

    @property
    def left_out(self) -> int:
        """Samples at the end that do not fill a minibatch."""
        return len(self.lengths) % (self.ranks * self.minibatch)


@dataclasses.dataclass(frozen=True)
class Row:
    """A packing of all minibatches of a run.

    Attributes:
      packing: one of PACKINGS.
      collectives: if ranks wait for each other in each microbatch; None for lb_mini, which gives
        them different numbers of microbatches.
      on_demand: if ranks wait for each other once a minibatch.
    """

    packing: str
    collectives: Optional[Outcome]
    on_demand: Outcome


def compare(run: Run, chosen: Iterable[str] = PACKINGS) -> list[Row]:
    """Plans the run with each of the chosen packings.

    Raises:
      InvalidArgumentError: there is no such packing.
    """
    rows = []
    for packing in chosen:
        planned = list(_planned(run, packing))
        rows.append(
            Row(
                packing,
                _outcome(run, planned, collectives) if packing != "lb_mini" else None,
                _outcome(run, planned, on_demand),
            )
        )
    return rows


_Planned = tuple[tuple[int, ...], Plan]  # lengths, and the plan for them


def _outcome(
    run: Run,
    planned: list[_Planned],
    of_plan: Callable[[Plan, Iterable[int], Cost], Outcome],
) -> Outcome:
    return Outcome.of_run(of_plan(plan, lengths, run.cost) for lengths, plan in planned)


def _planned(run: Run, packing: str) -> Iterable[_Planned]:
    if packing not in PACKINGS:
        raise InvalidArgumentError(f"no packing {packing!r}: expected one of {', '.join(PACKINGS)}")
    verl = packing.startswith("verl_")
    minibatch = run.ranks * run.minibatch
    step = minibatch * (run.global_batch if verl else 1)
    for begin in range(0, run.minibatches * minibatch, step):
        lengths = run.lengths[begin : min(begin + step, run.minibatches * minibatch)]
        for plan in _plans(run, packing, lengths):
            yield lengths, plan


def _plans(run: Run, packing: str, lengths: tuple[int, ...]) -> tuple[Plan, ...]:
    cost, limit = run.cost, run.limit
    if packing == "verl_native":
        return packings.verl_native(
            lengths, run.ranks, run.minibatch, cost=cost, limit=limit, seed=run.seed
        )
    if packing == "verl_optimised":
        return packings.verl_optimised(lengths, run.ranks, run.minibatch, cost=cost, limit=limit)
    if packing == "lb_micro":
        return (packings.lb_micro(lengths, run.ranks, cost=cost, limit=limit),)
    if packing == "lb_mini":
        return (packings.lb_mini(lengths, run.ranks, cost=cost, limit=limit),)
    return (packings.local_sort(lengths, run.ranks),)
