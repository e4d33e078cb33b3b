"""Prints what each packing of training samples would cost, with collectives and on demand.

The file has the length of one sample a line, in tokens, in the order in which they are trained on.
A bubble is the part of all ranks' time in which they wait. Errors in the input end with status 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import Any, Iterator, Optional, Sequence

from dws.balance.comparison import Row, Run, compare
from dws.balance.cost import Cost, check_fits, checked_length
from dws.balance.packings import DEFAULT_COST
from dws.balance.plans import Outcome
from dws.errors import InvalidArgumentError

# Files with more lines, or with longer ones, are refused.
_LINES_MAX = 10_000_000
_LINE_CHARACTERS_MAX = 1_000_000


def _lines(path: str) -> Iterator[tuple[str, list[str]]]:
    """For each line its place, for messages, and its words."""
    at = 0
    with open(path, encoding="utf-8", errors="replace") as file:
        while text := file.readline(_LINE_CHARACTERS_MAX):
            at += 1
            if at > _LINES_MAX or len(text) == _LINE_CHARACTERS_MAX:
                raise InvalidArgumentError(
                    f"{path}, line {at}: expected at most {_LINES_MAX} lines of fewer than "
                    f"{_LINE_CHARACTERS_MAX} characters"
                )
            yield f"{path}, line {at}", text.split()
    if at == 0:
        raise InvalidArgumentError(f"{path} is empty: expected one sample a line")


def _length(word: str, where: str) -> int:
    number = word.isascii() and word.isdecimal() and len(word) < 20
    return checked_length(int(word) if number else word, where)


def read_lengths(path: str, limit: Optional[int]) -> tuple[int, ...]:
    """Reads a file that has one length a line.

    Args:
      limit: of a length, in tokens; None for no limit.

    Raises:
      InvalidArgumentError: a line, which is named by its number, has none, several, or a wrong one.
      OSError: it cannot be read.
    """
    lengths = []
    for where, words in _lines(path):
        lengths.append(_length(" ".join(words), where))
        check_fits(lengths[-1], limit, where)
    return tuple(lengths)


def read_measured(path: str) -> list[tuple[list[int], float]]:
    """Reads a file that has on each line the seconds of a microbatch and the lengths in it.

    Raises:
      InvalidArgumentError, OSError: as read_lengths.
    """
    measured = []
    for where, words in _lines(path):
        try:
            seconds = float(words[0]) if words else 0.0
        except ValueError:
            seconds = 0.0
        if len(words) < 2 or not 0 < seconds < float("inf"):
            raise InvalidArgumentError(
                f"{where}: expected seconds and at least one length, found {' '.join(words)!r}"
            )
        measured.append(([_length(word, where) for word in words[1:]], seconds))
    return measured


def _parser() -> argparse.ArgumentParser:
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python3 -m dws.balance", description=about[0], epilog=about[1]
    )
    add = parser.add_argument
    add("lengths", metavar="LENGTHS", help="file with the length of one sample a line, in tokens")
    add("--ranks", type=int, default=8, help="ranks that share a minibatch (%(default)s)")
    add("--minibatch", type=int, default=4, help="samples of a rank a minibatch (%(default)s)")
    add("--limit", type=int, help="tokens that fit into a microbatch (those of the longest sample)")
    add("--a", type=float, default=DEFAULT_COST.a, help="cost of a square token (%(default)g)")
    add("--b", type=float, default=DEFAULT_COST.b, help="cost of a token (%(default)g)")
    add(
        "--measured",
        metavar="FILE",
        help="fit a and b to microbatches: on each line the seconds of one, then its lengths",
    )
    add(
        "--global-batch",
        type=int,
        default=4,
        help="minibatches in a global batch of verl (%(default)s)",
    )
    add("--seed", type=int, default=0, help="of the shuffling of verl (%(default)s)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument("--csv", action="store_true", help="print CSV")
    return parser


def _json(run: Run, rows: list[Row]) -> dict[str, Any]:
    def numbers(outcome: Optional[Outcome]) -> Optional[dict[str, float]]:
        return {"bubble": outcome.bubble, "span": outcome.span} if outcome else None

    return {
        "ranks": run.ranks,
        "minibatch": run.minibatch,
        "minibatches": run.minibatches,
        "left_out": run.left_out,
        "limit": run.limit,
        "a": run.cost.a,
        "b": run.cost.b,
        "packings": {
            row.packing: {
                "collectives": numbers(row.collectives),
                "on_demand": numbers(row.on_demand),
            }
            for row in rows
        },
    }


def _print_csv(rows: list[Row]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["packing", "way", "bubble", "span"])
    for row in rows:
        for way, outcome in (("collectives", row.collectives), ("on_demand", row.on_demand)):
            if outcome is not None:
                writer.writerow([row.packing, way, f"{outcome.bubble:.6f}", f"{outcome.span:.6g}"])


def _print_table(run: Run, rows: list[Row]) -> None:
    left_out = f"; {run.left_out} samples at the end fill none and are left out"
    print(
        f"{run.minibatches} minibatches of {run.minibatch} samples for each of {run.ranks} ranks"
        f"{left_out if run.left_out else ''}\n"
        f"at most {run.limit} tokens a microbatch; a sample of s tokens costs "
        f"{run.cost.a:g} s^2 + {run.cost.b:g} s\n\n"
        f"{'':14}  {'collectives':>21}  {'on demand':>21}\n"
        f"{'packing':14}{'bubble %':>10} {'span':>12} {'bubble %':>10} {'span':>12}"
    )
    for row in rows:
        cells = [
            f"{'-':>10} {'-':>12}"
            if outcome is None
            else f"{100 * outcome.bubble:10.2f} {outcome.span:12.5g}"
            for outcome in (row.collectives, row.on_demand)
        ]
        print(f"{row.packing:14}{' '.join(cells)}")
    print("\n- lb_mini gives ranks different numbers of microbatches: collectives would hang")


def main(arguments: Optional[Sequence[str]] = None) -> None:
    options = _parser().parse_args(arguments)
    try:
        cost = Cost(options.a, options.b)
        if options.measured is not None:
            cost = Cost.fitted(read_measured(options.measured))
        run = Run(
            lengths=read_lengths(options.lengths, options.limit),
            ranks=options.ranks,
            minibatch=options.minibatch,
            cost=cost,
            limit=options.limit,
            global_batch=options.global_batch,
            seed=options.seed,
        )
        rows = compare(run)
    except (InvalidArgumentError, OSError) as error:
        sys.exit(f"dws.balance: {error}")
    if options.json:
        print(json.dumps(_json(run, rows)))
    elif options.csv:
        _print_csv(rows)
    else:
        _print_table(run, rows)


if __name__ == "__main__":
    main()
