"""Which rank computes which samples in which microbatch, and how long the ranks wait."""

from __future__ import annotations

import dataclasses
from typing import Iterable, Iterator

from dws.balance.cost import Cost, checked_lengths
from dws.errors import InvalidArgumentError

Microbatch = tuple[int, ...]  # indexes of samples


@dataclasses.dataclass(frozen=True)
class Plan:
    """One minibatch.

    Attributes:
      ranks: for each rank its microbatches in the order in which it computes them; of each the
        indexes of its samples in the lengths that were planned.
    """

    ranks: tuple[tuple[Microbatch, ...], ...]

    @property
    def in_step(self) -> bool:
        """True if all ranks have equally many microbatches: only then collectives can be used
        in each of them. Otherwise they would wait for ever."""
        return len({len(microbatches) for microbatches in self.ranks}) <= 1

    def samples(self) -> Iterator[int]:
        """The indexes of all samples, rank by rank."""
        for microbatches in self.ranks:
            for microbatch in microbatches:
                yield from microbatch


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How long a plan takes, or several one after the other.

    Attributes:
      busy: the mean over ranks of the time in which a rank computes, in the unit of the cost.
      span: from the begin to the end, in the same unit.
    """

    busy: float
    span: float

    @property
    def bubble(self) -> float:
        """The part of all ranks' time in which they wait: 0 to 1."""
        return max(0.0, 1.0 - self.busy / self.span)

    @classmethod
    def of_run(cls, outcomes: Iterable["Outcome"]) -> "Outcome":
        """The outcome of minibatches one after the other; at least one."""
        found = list(outcomes)
        return cls(sum(one.busy for one in found), sum(one.span for one in found))


def on_demand(plan: Plan, lengths: Iterable[int], cost: Cost) -> Outcome:
    """The outcome if ranks wait for each other once a minibatch: it takes as long as the rank with
    the most work.

    Args:
      lengths: those that were planned, in tokens.

    Raises:
      InvalidArgumentError: the plan has no samples, others than the lengths, or a length is wrong.
    """
    times = _times(plan, lengths, cost)
    return Outcome(_busy(times), max(sum(of_rank) for of_rank in times))


def collectives(plan: Plan, lengths: Iterable[int], cost: Cost) -> Outcome:
    """The outcome if ranks wait for each other in each microbatch: it takes as long as the most
    expensive one.

    Args:
      lengths: those that were planned, in tokens.

    Raises:
      InvalidArgumentError: as on_demand; or ranks have different numbers of microbatches.
    """
    times = _times(plan, lengths, cost)
    if not plan.in_step:
        counts = [len(microbatches) for microbatches in plan.ranks]
        raise InvalidArgumentError(
            f"expected ranks with equally many microbatches, found {min(counts)} to {max(counts)}: "
            "collectives would wait for ever; train this plan on demand, or take lb_micro"
        )
    return Outcome(_busy(times), sum(max(of_microbatch) for of_microbatch in zip(*times)))


def _busy(times: list[list[float]]) -> float:
    return sum(sum(of_rank) for of_rank in times) / len(times)


def _times(plan: Plan, lengths: Iterable[int], cost: Cost) -> list[list[float]]:
    """The cost of each microbatch of each rank."""
    costs = cost.of(checked_lengths(lengths)).tolist()
    samples = list(plan.samples())
    if not samples or min(samples) < 0 or max(samples) >= len(costs):
        raise InvalidArgumentError(
            f"the plan has {len(samples)} samples and there are {len(costs)} lengths: expected "
            "the lengths that were planned"
        )
    return [[sum(costs[i] for i in micro) for micro in rank] for rank in plan.ranks]
