"""P37: a small model trained by PULSELoCo, beside averaging and DiLoCo, which send everything: the loss, and the bytes
that a worker sends in a round.

CSV on stdout and nothing else, a table and the bars on stderr. It takes about five minutes; times are not measured.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from typing import NamedTuple, Sequence

from tools.bench.local_rounds.task import ELEMENTS, LocalTrainer, Task
from tools.bench.local_rounds.ways import NAMES, Way, make

_DENSE_BAR, _INDEXED_BAR = 1 / 25, 0.27
_MARKS = 8  # losses of a way
_PULSE = ("PULSELoCo FP32", "PULSELoCo BF16")


class Result(NamedTuple):
    """What came of one way. `losses`: (round, loss); the first is of round 0."""

    way: Way
    losses: list[tuple[int, float]]
    changed: float


def run(name: str, options: argparse.Namespace) -> Result:
    task = Task(options.seed)
    way = make(name, task.theta, options.workers)
    trainers = [LocalTrainer(task, 1000 * options.seed + rank, options.rate) for rank in range(options.workers)]
    losses = [(0, task.loss(way.theta))]
    for number in range(1, options.rounds + 1):
        way.round([trainer.run(way.theta, options.steps) for trainer in trainers])
        if number * _MARKS // options.rounds > (number - 1) * _MARKS // options.rounds:
            losses.append((number, task.loss(way.theta)))
    return Result(way, losses, statistics.mean(part for trainer in trainers for part in trainer.changed))


def _print_csv(results: dict[str, Result]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["id", "case", "ours", "reference", "ratio", "unit"])
    diloco = results["DiLoCo"]
    for name, result in results.items():
        for (number, loss), (_, reference) in zip(result.losses, diloco.losses):
            writer.writerow(["loss", f"{name}, round {number}", f"{loss:.5f}", f"{reference:.5f}",
                             f"{loss / reference:.5f}", "nats"])
        if not result.way.sent_entries:
            continue
        sent, dense = statistics.mean(result.way.sent_bytes), diloco.way.sent_bytes[0]
        indexed = 8 * statistics.mean(result.way.sent_entries)
        sums, everyone = statistics.mean(result.way.sums_bytes), statistics.mean(result.way.everyone_bytes)
        for case, reference in (("beside dense DiLoCo", dense), ("beside int32 and FP32", indexed)):
            writer.writerow(["P37", f"{name}, {case}", f"{sent:.0f}", f"{reference:.0f}", f"{sent / reference:.5f}", "bytes"])
        writer.writerow(["sums", f"{name}, sums to the other workers", f"{sums:.0f}", f"{dense:.0f}", f"{sums / dense:.5f}", "bytes"])
        writer.writerow(["both", f"{name}, contributions and sums", f"{sent + sums:.0f}", f"{2 * dense:.0f}",
                         f"{(sent + sums) / (2 * dense):.5f}", "bytes"])
        writer.writerow(["both", f"{name}, contributions to everyone, no sums", f"{everyone:.0f}", f"{2 * dense:.0f}",
                         f"{everyone / (2 * dense):.5f}", "bytes"])


def _table(results: dict[str, Result], least: float) -> list[str]:
    first = next(iter(results.values()))
    marks = [number for number, _ in first.losses]
    lines = [
        f"{ELEMENTS} weights; {100 * results['DiLoCo'].changed:.2f} % of the BF16 weights change in a step; "
        f"the teacher's loss is {least:.4f}",
        "| loss after round | " + " | ".join(str(number) for number in marks) + " |",
        "|---" * (len(marks) + 1) + "|",
    ]
    lines += [f"| {name} | " + " | ".join(f"{loss:.4f}" for _, loss in result.losses) + " |"
              for name, result in results.items()]
    lines += ["| | sent | bytes an entry | a worker and round | of dense | of int32 + FP32 | sums | both ways | to everyone |",
              "|---" * 9 + "|"]
    dense = results["DiLoCo"].way.sent_bytes[0]
    for name, result in results.items():
        way = result.way
        if not way.sent_entries:
            continue
        sent, entries = statistics.mean(way.sent_bytes), statistics.mean(way.sent_entries)
        sums, everyone = statistics.mean(way.sums_bytes), statistics.mean(way.everyone_bytes)
        lines.append(
            f"| {name} | {100 * 4 * entries / dense:.2f} % | {sent / entries:.2f} | {sent:,.0f} | 1/{dense / sent:.1f} | "
            f"{sent / (8 * entries):.3f} | 1/{dense / sums:.1f} | 1/{2 * dense / (sent + sums):.1f} | "
            f"1/{2 * dense / everyone:.1f} |"
        )
    return lines


def _bars(results: dict[str, Result]) -> list[str]:
    lines = []
    dense = results["DiLoCo"].way.sent_bytes[0]
    for name in _PULSE:
        way = results[name].way
        sent, entries = statistics.mean(way.sent_bytes), statistics.mean(way.sent_entries)
        for what, ratio, bar in (("dense DiLoCo", sent / dense, _DENSE_BAR),
                                 ("int32 + FP32 of the same entries", sent / (8 * entries), _INDEXED_BAR)):
            verdict = "kept" if ratio <= bar else f"MISSED, {ratio / bar:.2f} times the bar"
            lines.append(f"P37: {name}: {ratio:.4f} of {what}, bar {bar:.2f}: {verdict}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tools/bench.sh pulse_loco", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4, help="R (%(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="H, local steps of a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="(%(default)s)")
    parser.add_argument("--rate", type=float, default=3.4e-6, help="AdamW's learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    options = parser.parse_args(arguments)
    if not 1 <= options.workers <= 256 or options.steps < 1 or options.rounds < 1:
        parser.error("expected 1 to 256 workers, at least 1 step and 1 round")
    results = {name: run(name, options) for name in NAMES}
    _print_csv(results)
    for line in [*_table(results, Task(options.seed).least_loss()), *_bars(results)]:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
