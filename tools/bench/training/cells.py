"""What is measured in P24: minibatches of samples, their plans, and how long those take without communication."""

from __future__ import annotations

import dataclasses
from typing import Iterator

from dws.balance import Cost, Outcome, Plan, collectives, lb_micro, lb_mini, on_demand
from tools.bench.minibatches.sets import COSTS, LONG_ALIGN

LIMIT = 65_536  # tokens of a microbatch
_COST = COSTS["1.5B"]
_BALANCED = LIMIT // 2  # so that a microbatch has two samples
_SEED = 24


@dataclasses.dataclass(frozen=True)
class Minibatch:
    """One of them, on all ranks.

    Attributes:
      seconds: that each sample computes.
      micro, mini: the plans of lb_micro and lb_mini.
    """

    seconds: tuple[float, ...]
    micro: Plan
    mini: Plan


@dataclasses.dataclass(frozen=True)
class Cell:
    """Minibatches of one kind.

    Attributes:
      samples: of a rank in a minibatch.
      balanced: all samples have the same length; otherwise lengths are like LongAlign's.
      span: the seconds that a minibatch takes by the plan of lb_mini without communication, in the mean.
    """

    ranks: int
    samples: int
    balanced: bool
    count: int
    span: float

    @property
    def name(self) -> str:
        return f"{'balanced' if self.balanced else 'LongAlign'}; {self.samples} a rank"

    def _lengths(self) -> list[tuple[int, ...]]:
        each = self.ranks * self.samples
        if self.balanced:
            return [(_BALANCED,) * each] * self.count
        drawn = LONG_ALIGN.draw(self.count * each, _SEED)
        return [drawn[i * each : (i + 1) * each] for i in range(self.count)]

    def _planned(self) -> Iterator[tuple[tuple[int, ...], Plan, Plan]]:
        for lengths in self._lengths():
            yield (
                lengths,
                lb_micro(lengths, self.ranks, cost=_COST, limit=LIMIT),
                lb_mini(lengths, self.ranks, cost=_COST, limit=LIMIT),
            )

    def minibatches(self) -> list[Minibatch]:
        """Every rank gets the same ones for a cell."""
        planned = list(self._planned())
        whole = sum(on_demand(mini, lengths, _COST).span for lengths, _, mini in planned)
        factor = self.span * self.count / whole
        return [
            Minibatch(tuple((_COST.of(lengths) * factor).tolist()), micro, mini)
            for lengths, micro, mini in planned
        ]

    def outcomes(self) -> tuple[Outcome, Outcome]:
        """The outcomes of all minibatches, in seconds: of lb_micro with collectives, and of lb_mini on demand."""
        planned = list(self._planned())
        minis = Outcome.of_run(on_demand(mini, lengths, _COST) for lengths, _, mini in planned)
        cost = Cost(_COST.a * self.span * self.count / minis.span, _COST.b * self.span * self.count / minis.span)
        return (
            Outcome.of_run(collectives(micro, lengths, cost) for lengths, micro, _ in planned),
            Outcome.of_run(on_demand(mini, lengths, cost) for lengths, _, mini in planned),
        )
