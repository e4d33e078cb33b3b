"""The figures of the balance bench as Markdown, between the marks of a page, and as lines with their bars."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Iterable

from tools.bench.minibatches.figures import BASELINE, PLAN_MINIBATCH, PLAN_RANKS, Cell, Figures

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
MEAN_MAX, DIFFERENCE_MAX, PLAN_SECONDS_MAX = 2.0, 7.0, 1.0
_NEAR_PERCENT = 5.0


def _verdict(kept: bool) -> str:
    return "kept" if kept else "**missed**"


def _of(figures: Figures, table: str) -> list[Cell]:
    return [cell for cell in figures.cells if cell.table == table]


def _mean(cells: Iterable[Cell]) -> float:
    return statistics.fmean(abs(cell.difference) for cell in cells)


def _largest(cells: Iterable[Cell]) -> Cell:
    return max(cells, key=lambda cell: abs(cell.difference))


def _named(cell: Cell) -> str:
    return f"{cell.model}, {cell.dataset}, {cell.method}, {cell.minibatch} a rank"


def bars(figures: Figures) -> list[str]:
    """The bars, one a line, with what was found."""
    cells = _of(figures, "6")
    mean, largest = _mean(cells), _largest(cells)
    above = sum(abs(cell.difference) > DIFFERENCE_MAX for cell in cells)
    slowest = max(figures.plan_seconds.values())
    lines = [
        f"P36: mean difference of the {len(cells)} cells of table 6: {mean:.2f} points, bar "
        f"{MEAN_MAX:g}: {_verdict(mean <= MEAN_MAX)}",
        f"P36: largest difference: {abs(largest.difference):.2f} points ({_named(largest)}), {above} above the bar "
        f"{DIFFERENCE_MAX:g}: {_verdict(above == 0)}",
        f"P36: a plan for {PLAN_RANKS} ranks of {PLAN_MINIBATCH} samples, the slower packing: "
        f"{1000 * slowest:.0f} ms, bar {1000 * PLAN_SECONDS_MAX:g} ms: {_verdict(slowest < PLAN_SECONDS_MAX)}",
    ]
    for trend in figures.trends:
        where = f" ({trend.minibatch} samples a rank)" if trend.minibatch else ""
        lines.append(f"trend: {trend.name}{where}: {trend.claim}: {_verdict(trend.holds)}")
    return lines


def around(path: Path) -> tuple[str, str]:
    """Returns what is before and after the figures of a page.

    Raises:
      ValueError: the page does not have each mark once, in order.
    """
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{path}: expected the lines {BEGIN} and {END}, each once, in this order")
    return text.partition(BEGIN)[0], text.partition(END)[2]


def write(path: Path, figures: Figures, minibatches: int) -> None:
    """Replaces what is between the marks of the page; raises as `around`."""
    before, after = around(path)
    made = "\n".join(_markdown(figures, minibatches))
    path.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


def _markdown(figures: Figures, minibatches: int) -> list[str]:
    return [
        f"These figures were made with {minibatches} minibatches for each cell.",
        "",
        "| bar | |",
        "|---|---|",
        *(f"| {before} | {verdict} |" for before, _, verdict in
          (line.rpartition(": ") for line in bars(figures) if line.startswith("P36"))),
        "",
        *_table_6(_of(figures, "6")),
        *_table_4(_of(figures, "4")),
        *_table_5(_of(figures, "5")),
        *_trends(figures),
        *_plans(figures),
    ]


def _grid(cells: list[Cell], form: str) -> list[str]:
    """A line for each model, dataset and method, a column for each minibatch: ours, the paper's, the difference."""
    minibatches = sorted({cell.minibatch for cell in cells})
    by_row: dict[tuple[str, str, str], dict[int, Cell]] = {}
    for cell in cells:
        by_row.setdefault((cell.model, cell.dataset, cell.method), {})[cell.minibatch] = cell
    lines = ["| model | set | method | " + " | ".join(f"{b} a rank" for b in minibatches) + " |",
             "|" + "---|" * (3 + len(minibatches))]
    for names, row in by_row.items():
        found = (f"{row[b].ours:{form}}; {row[b].paper:{form}}; {row[b].difference:+.1f}" for b in minibatches)
        lines.append(f"| {' | '.join([*names, *found])} |")
    return [*lines, ""]


def _summary(cells: list[Cell], unit: str) -> str:
    largest = _largest(cells)
    return (f"The mean absolute difference is {_mean(cells):.2f} {unit}, the largest is "
            f"{abs(largest.difference):.2f} ({_named(largest)}).")


def _table_6(cells: list[Cell]) -> list[str]:
    later = [cell for cell in cells if cell.minibatch > 1]
    return [
        "### Table 6: bubble rates of fine-tuning", "",
        "Each field is our bubble rate and the paper's in per cent, and the difference in points.",
        _summary(cells, "points"),
        f"The first column served to fit the sets; without it the mean of {len(later)} cells is "
        f"{_mean(later):.2f} points.",
        "", *_grid(cells, ".2f"),
    ]


def _table_4(cells: list[Cell]) -> list[str]:
    methods = dict.fromkeys(cell.method for cell in cells)
    by_method = "; ".join(
        f"{method} {_mean(cell for cell in cells if cell.method == method):.2f}" for method in methods)
    return [
        "### Table 4: bubble rates of reinforcement learning", "",
        "Native is verl's packing.",
        _summary(cells, "points"),
        f"The mean by method: {by_method}.", "", *_grid(cells, ".2f"),
    ]


def _table_5(cells: list[Cell]) -> list[str]:
    near = sum(abs(cell.difference) <= _NEAR_PERCENT for cell in cells)
    return [
        "### Table 5: speed-ups", "",
        f"Each field is a speed-up over {BASELINE}: ours by spans, the paper's by samples a second, and the "
        "difference in per cent.",
        "With one sample a rank there is nothing to balance, so that column is left out.",
        _summary(cells, "per cent"),
        f"{near} of {len(cells)} speed-ups are within {_NEAR_PERCENT:g} per cent.",
        "", *_grid(cells, ".3f"),
    ]


def _trends(figures: Figures) -> list[str]:
    lines = [
        "### Trends", "",
        "Each line is a speed-up of on demand over collectives, both with LB-Micro.",
        "", "| quantity | samples a rank | by the paper | ours | |", "|---|---|---|---|---|",
    ]
    for trend in figures.trends:
        found = "; ".join(f"{value}: {speed_up:.3f}" for value, speed_up in trend.speed_ups.items())
        verdict = "seen" if trend.holds else "**not seen**"
        lines.append(f"| {trend.name} | {trend.minibatch or ''} | {trend.claim} | {found} | {verdict} |")
    return [*lines, ""]


def _plans(figures: Figures) -> list[str]:
    times = "; ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in figures.plan_seconds.items())
    return ["### Time of a plan", "",
            f"The median of 20 plans for {PLAN_RANKS} ranks with {PLAN_MINIBATCH} samples each: {times}."]
