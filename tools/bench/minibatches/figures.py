"""What the balance bench computes: figures beside those of the paper, trends, and the time of a plan."""

from __future__ import annotations

from typing import NamedTuple

BASELINE = "Collective LB-Micro"  # what speed-ups are measured against
PLAN_RANKS, PLAN_MINIBATCH = 32, 8


class Cell(NamedTuple):
    """A figure of ours beside the paper's, of one table."""

    table: str
    model: str
    dataset: str
    method: str
    minibatch: int
    ours: float
    paper: float

    @property
    def difference(self) -> float:
        """In points for bubble rates, in per cent for speed-ups."""
        return 100 * (self.ours / self.paper - 1) if self.table == "5" else self.ours - self.paper


class Trend(NamedTuple):
    """How a speed-up of on demand over collectives, with LB-Micro, goes with one quantity."""

    name: str
    minibatch: int  # 0 where it is the quantity
    claim: str
    speed_ups: dict[str, float]
    holds: bool


class Figures(NamedTuple):
    cells: list[Cell]
    trends: list[Trend]
    plan_seconds: dict[str, float]  # by packing
