"""P5: from a publish to the engine's acknowledgement, two processes on one machine, against slime's path
with the same weights, changes and number of threads; over loopback, and over a directory of limited
throughput. Both see each version, one after the other, in turns first. P27: versions in which every element
changed, beside first contact."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from contextlib import ExitStack
from typing import Callable, Optional

from tools.bench.daemons.report import Report
from tools.bench.end_to_end import model
from tools.bench.end_to_end.dws_path import DwsPath
from tools.bench.end_to_end.full_versions import bench_full_versions
from tools.bench.end_to_end.limited_dir import LimitedDir
from tools.bench.end_to_end.published import Published
from tools.bench.end_to_end.slime_path import SlimePath

DENSITY = 0.01
LIMIT_BYTES_PER_SECOND = 300e6
_FASTER_MIN = 5.0
_ALLOWANCE_BYTES = 256 << 20


def _run(
    options: argparse.Namespace, rate: Optional[float], folder: str
) -> tuple[list[Published], list[Published]]:
    """The result of each round on both paths, without the first, which warms up."""
    ours: list[Published] = []
    theirs: list[Published] = []
    with ExitStack() as stack:
        shared = stack.enter_context(LimitedDir(os.path.join(folder, "shared"))) if rate else None
        specs = model.specs(int(options.gib * (1 << 30)))
        daemons = stack.enter_context(DwsPath(specs, options.threads, shared))
        changes = model.Changes(daemons.views, DENSITY)
        piece_bytes = int(options.piece * (1 << 20))
        slime = stack.enter_context(
            SlimePath(folder, daemons.views, options.threads, piece_bytes, shared)
        )
        if shared is not None and rate is not None:
            shared.limit(rate)
        for turn in range(options.rounds + 1):
            changes.advance()
            for first in (True, False):
                if first == (turn % 2 == 1):
                    ours.append(daemons.publish(turn + 2))  # version 1 was the whole model
                else:
                    theirs.append(slime.publish(turn + 1))
        daemons.finish()
    return ours[1:], theirs[1:]


def bench(options: argparse.Namespace, shared: bool, folder: str, report: Report) -> None:
    rate = LIMIT_BYTES_PER_SECOND if shared else None
    ours, theirs = _run(options, rate, folder)
    way = f"files at {rate / 1e6:.0f} MB/s" if rate else "loopback"

    def add(what: str, of: Callable[[Published], float], unit: str, bar: Optional[float]) -> None:
        mine, slime = (statistics.median(map(of, rounds)) for rounds in (ours, theirs))
        report.add(
            "P5", f"{what}; slime's path; {way}", mine, slime, slime / mine, unit, at_least=bar
        )

    for number, (mine, slime) in enumerate(zip(ours, theirs), 1):
        case = f"round {number}; slime's path; {way}"
        report.add("P5", case, mine.seconds, slime.seconds, slime.seconds / mine.seconds, "s")
    add("bytes of a version", lambda run: run.size_bytes / 1e6, "MB", None)
    add("until the weights may change", lambda run: run.stall_seconds, "s", None)
    what = f"publish to last ACK; {options.gib:g} GiB; {DENSITY:.0%}; {options.threads} threads"
    add(what, lambda run: run.seconds, "s", _FASTER_MIN)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/bench.sh e2e", description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="weights (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="versions that are timed (%(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)),
        help="threads of each of the four sides (default: the cores, %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--piece", type=float, default=1.0,
        help="MiB of a tensor that slime's path handles at a time; 0: whole tensors (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--dir", default="/dev/shm", help="a folder in memory (%(default)s)")
    parser.add_argument(
        "--only", choices=["loopback", "shared", "full"], help="one of P5's two ways, or P27"
    )
    options = parser.parse_args()
    if not 0 < options.gib <= 1024 or not 1 <= options.rounds <= 30 or options.threads < 1:
        parser.error("expected --gib above 0, --rounds from 1 to 30, --threads above 0")
    # The checkpoint that slime's path patches, and the first version's files in the directory.
    needed = int(2 * options.gib * (1 << 30)) + _ALLOWANCE_BYTES
    if shutil.disk_usage(options.dir).free < needed:
        parser.error(
            f"{options.dir} has less than the required {needed >> 20} MiB free: "
            "name another with --dir"
        )
    return options


def main() -> int:
    options = parse_options()
    report = Report()
    print("id,case,ours,reference,ratio,unit", flush=True)
    for way in ("loopback", "shared"):
        if options.only in (None, way):
            with tempfile.TemporaryDirectory(prefix="dws-bench-", dir=options.dir) as folder:
                bench(options, way == "shared", folder, report)
    if options.only in (None, "full"):
        size_bytes = int(options.gib * (1 << 30))
        bench_full_versions(size_bytes, options.rounds, options.threads, report)
    report.print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
