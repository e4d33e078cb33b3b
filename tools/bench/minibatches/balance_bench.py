"""P36: bubble rates and speed-ups of dws.balance beside those of the paper (tables 4 to 6), the paper's trends, and
the time of a plan.

CSV on stdout and nothing else, the bars on stderr. --write=PAGE puts the tables into a page, between its marks.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import sys
import time
from pathlib import Path
from typing import Callable, Iterator

from dws.balance import Cost, Row, Run, compare, lb_micro, lb_mini

from tools.bench.minibatches import page
from tools.bench.minibatches.figures import BASELINE, PLAN_MINIBATCH, PLAN_RANKS, Cell, Figures, Trend
from tools.bench.minibatches.sets import AIME, COSTS, LONG_ALIGN, SETS, LengthSet

_HERE = Path(__file__).parent
# The paper's methods: the packing, and the way.
_METHODS = {
    "Collective LocalSort": ("local_sort", "collectives"),
    "Collective LB-Micro": ("lb_micro", "collectives"),
    "Collective Native": ("verl_native", "collectives"),
    "ODC LocalSort": ("local_sort", "on_demand"),
    "ODC LB-Micro": ("lb_micro", "on_demand"),
    "ODC LB-Mini": ("lb_mini", "on_demand"),
}
_SEED = 1
# What is published for these was measured on as many devices.
DEVICES = {"1.5B": 8, "7B": 8, "14B": 16, "32B": 32}


class Simulation:
    """Runs of each set, model and minibatch: every packing is computed once."""

    def __init__(self, minibatches: int) -> None:
        self._minibatches = minibatches
        self._rows: dict[tuple[str, str, int], dict[str, Row]] = {}

    def run(self, lengths: LengthSet, cost: Cost, ranks: int, minibatch: int) -> Run:
        drawn = lengths.draw(self._minibatches * ranks * minibatch, _SEED)
        return Run(drawn, ranks, minibatch, cost, lengths.limit)

    def outcome(self, model: str, dataset: str, minibatch: int, method: str) -> tuple[float, float]:
        """The bubble rate in per cent, and the span."""
        key = (model, dataset, minibatch)
        if key not in self._rows:
            lengths = AIME[model] if dataset == "AIME" else SETS[dataset]
            run = self.run(lengths, COSTS[model], DEVICES[model], minibatch)
            packings = ("local_sort", "lb_micro", "lb_mini")
            if dataset == "AIME":
                packings = ("verl_native", "lb_micro", "lb_mini")
            self._rows[key] = {row.packing: row for row in compare(run, packings)}
        packing, way = _METHODS[method]
        outcome = getattr(self._rows[key][packing], way)
        return 100 * outcome.bubble, outcome.span

    def speed_up(self, lengths: LengthSet, ranks: int, minibatch: int) -> float:
        """Returns the speed-up of on demand over collectives, both with LB-Micro and the cost of 7B."""
        run = self.run(lengths, COSTS["7B"], ranks, minibatch)
        row = compare(run, ["lb_micro"])[0]
        assert row.collectives is not None
        return row.collectives.span / row.on_demand.span


def _table(name: str) -> Iterator[tuple[dict[str, str], dict[int, float]]]:
    with open(_HERE / name, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            figures = {name: value for name, value in row.items() if name.startswith("minibatch_")}
            yield row, {int(n.removeprefix("minibatch_")): float(v) for n, v in figures.items()}


def _bubbles(simulation: Simulation, table: str, name: str) -> Iterator[Cell]:
    for row, figures in _table(name):
        model, dataset, method = row["model"], row["dataset"], row["method"]
        if int(row["devices"]) != DEVICES[model]:
            raise ValueError(f"{name}: {model} has {row['devices']} devices, not {DEVICES[model]}")
        for minibatch, paper in figures.items():
            ours, _ = simulation.outcome(model, dataset, minibatch, method)
            yield Cell(table, model, dataset, method, minibatch, ours, paper)


def _speed_ups(simulation: Simulation) -> Iterator[Cell]:
    """Samples a second beside those of collectives with LB-Micro. With one sample a rank both do the same."""
    rows = list(_table("table5_samples_per_second_sft.csv"))
    baselines = {(r["model"], r["dataset"]): f for r, f in rows if r["method"] == BASELINE}
    for row, figures in rows:
        model, dataset, method = row["model"], row["dataset"], row["method"]
        if not method.startswith("ODC LB"):
            continue
        for minibatch in sorted(set(figures) - {1}):
            _, span = simulation.outcome(model, dataset, minibatch, method)
            _, baseline = simulation.outcome(model, dataset, minibatch, BASELINE)
            paper = figures[minibatch] / baselines[model, dataset][minibatch]
            yield Cell("5", model, dataset, method, minibatch, baseline / span, paper)


def _scaled(longest: int) -> LengthSet:
    part = longest / LONG_ALIGN.longest
    return LengthSet(LONG_ALIGN.median * part, LONG_ALIGN.sigma, round(LONG_ALIGN.shortest * part),
                     longest, limit=longest)


def _trends(simulation: Simulation) -> Iterator[Trend]:
    def speed_ups(values: tuple[int, ...], of: Callable[[int], float]) -> dict[str, float]:
        return {f"{value:,}": of(value) for value in values}

    found = speed_ups((1, 2, 4, 8, 16, 32), lambda b: simulation.speed_up(LONG_ALIGN, 8, b))
    yield Trend("samples a rank", 0, "highest at a moderate minibatch and falling after it", found,
                _peaks(list(found.values())))
    for minibatch in (4, 8):
        found = speed_ups((8_192, 16_384, 32_768, 65_536),
                          lambda longest: simulation.speed_up(_scaled(longest), 8, minibatch))
        yield Trend("longest sequence", minibatch, "rising", found, _rises(list(found.values())))
        found = speed_ups((1, 2, 4, 8), lambda ratio: simulation.speed_up(
            dataclasses.replace(LONG_ALIGN, limit=ratio * LONG_ALIGN.longest), 8, minibatch))
        yield Trend("packing ratio", minibatch, "falling", found, _rises(list(found.values())[::-1]))
        found = speed_ups((2, 4, 8, 16, 32),
                          lambda ranks: simulation.speed_up(LONG_ALIGN, ranks, minibatch))
        yield Trend("devices", minibatch, "rising", found, _rises(list(found.values())))


def _rises(values: list[float]) -> bool:
    """True if no value is below the one before it, and the last is above the first."""
    return all(a <= b + 1e-9 for a, b in zip(values, values[1:])) and values[0] < values[-1]


def _peaks(values: list[float]) -> bool:
    """True if values rise to one between the ends, and fall from there on."""
    top = values.index(max(values))
    return 0 < top < len(values) - 1 and _rises(values[:top + 1]) and _rises(values[top:][::-1])


def _plan_seconds() -> dict[str, float]:
    """The median time of a plan, in seconds, for each packing that balances one minibatch."""
    found = {}
    for name, packing in (("lb_micro", lb_micro), ("lb_mini", lb_mini)):
        times = []
        for seed in range(20):
            lengths = LONG_ALIGN.draw(PLAN_RANKS * PLAN_MINIBATCH, seed)
            begin = time.perf_counter()
            packing(lengths, PLAN_RANKS, cost=COSTS["32B"], limit=LONG_ALIGN.limit)
            times.append(time.perf_counter() - begin)
        found[name] = statistics.median(times)
    return found


def measure(minibatches: int) -> Figures:
    simulation = Simulation(minibatches)
    cells = [
        *_bubbles(simulation, "4", "table4_bubble_rl.csv"),
        *_speed_ups(simulation),
        *_bubbles(simulation, "6", "table6_bubble_sft.csv"),
    ]
    return Figures(cells, list(_trends(simulation)), _plan_seconds())


def _print_csv(figures: Figures) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["id", "case", "ours", "reference", "ratio", "unit"])
    for cell in figures.cells:
        case = f"table {cell.table}: {cell.model} {cell.dataset} {cell.method} minibatch {cell.minibatch}"
        writer.writerow(["P36", case, f"{cell.ours:.4f}", f"{cell.paper:.4f}",
                         f"{cell.ours / cell.paper:.4f}", "x" if cell.table == "5" else "%"])
    for trend in figures.trends:
        of = f", minibatch {trend.minibatch}" if trend.minibatch else ""
        for value, speed_up in trend.speed_ups.items():
            writer.writerow(["trend", f"{trend.name} {value.replace(',', '')}{of}", f"{speed_up:.4f}", "", "", "x"])
    for packing, seconds in figures.plan_seconds.items():
        case = f"{packing}, {PLAN_RANKS} ranks, minibatch {PLAN_MINIBATCH}"
        writer.writerow(["plan", case, f"{seconds:.6f}", "1", f"{seconds:.6f}", "s"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench.sh balance", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minibatches", type=int, default=400, help="of each cell (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also put the tables into this page")
    options = parser.parse_args()
    if options.write:
        try:
            page.around(options.write)  # before minutes go by
        except (OSError, ValueError) as error:
            parser.error(str(error))
    figures = measure(options.minibatches)
    _print_csv(figures)
    for line in page.bars(figures):
        print(line, file=sys.stderr)
    if options.write:
        page.write(options.write, figures, options.minibatches)


if __name__ == "__main__":
    main()
