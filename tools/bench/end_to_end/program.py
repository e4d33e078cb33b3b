"""P5: from a publish to the engine's acknowledgement, against slime's path with each of its encodings and a full
copy, over loopback, over a directory of limited throughput, and between two hosts whose link has a limit. P27:
versions in which every element changed, beside first contact. dense: what the daemons choose by themselves at
each density, beside a delta and a full version."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from typing import Callable, ContextManager

from tests.integration.network_hosts import NoNamespaces
from tools.bench.daemons.report import Report
from tools.bench.daemons.streams import TIMEOUT_SECONDS
from tools.bench.end_to_end import comparison
from tools.bench.end_to_end.comparison import Size, Way
from tools.bench.end_to_end.density import bench_density
from tools.bench.end_to_end.full_versions import bench_full_versions

_ALLOWANCE_BYTES = 256 << 20
_RATES_MAX = 16
_RATE_MB_MAX = 10_000


def _rates(text: str) -> list[int]:
    rates = [int(rate) for rate in text.split(",")]
    if len(rates) > _RATES_MAX or not all(1 <= rate <= _RATE_MB_MAX for rate in rates):
        raise ValueError
    return rates


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
    parser.add_argument(
        "--link-mb-s", type=_rates, default=list(comparison.LINK_RATES_MB), metavar="RATE,...",
        help="the link's speeds, in 10^6 bytes a second (default: 10,100,300,1000); needs root",
    )  # fmt: skip
    parser.add_argument(
        "--link-gib", type=float, default=1.0, help="weights that go over a link (%(default)s)"
    )
    parser.add_argument(
        "--dense-gib", type=float, default=0.5, help="weights, of each of dense's three (%(default)s)"
    )
    parser.add_argument("--dir", default="/dev/shm", help="a folder in memory (%(default)s)")
    parser.add_argument(
        "--only", choices=["loopback", "shared", "link", "full", "density"],
        help="one of P5's three ways, P27, or dense",
    )  # fmt: skip
    options = parser.parse_args()
    if not 0 < options.gib <= 1024 or not 1 <= options.rounds <= 30 or options.threads < 1:
        parser.error("expected --gib above 0, --rounds from 1 to 30, --threads above 0")
    if not 0 < options.link_gib <= 1024 or not 0 < options.dense_gib <= 1024:
        parser.error("expected --link-gib and --dense-gib above 0")
    copy_seconds = options.link_gib * (1 << 30) / (1e6 * min(options.link_mb_s))
    if copy_seconds > TIMEOUT_SECONDS:
        parser.error(
            f"a full copy of --link-gib={options.link_gib:g} takes {copy_seconds:.0f} s at the slowest of"
            f" --link-mb-s, more than {TIMEOUT_SECONDS:.0f} s: take less, or a faster link"
        )
    # The checkpoint that slime's path patches, and the first version's files on one side or on both.
    needed = int(max(2 * options.gib, 3 * options.link_gib) * (1 << 30)) + _ALLOWANCE_BYTES
    if shutil.disk_usage(options.dir).free < needed:
        parser.error(
            f"{options.dir} has less than the required {needed >> 20} MiB free: "
            "name another with --dir"
        )
    return options


class _Program:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._report = Report()

    def run(self) -> None:
        options = self._options
        if self._wanted("loopback"):
            self._compare(comparison.loopback, options.gib)
        if self._wanted("shared"):
            self._compare(comparison.limited_files, options.gib)
        if self._wanted("link"):
            self._sweep()
        if self._wanted("full"):
            size_bytes = int(options.gib * (1 << 30))
            bench_full_versions(size_bytes, options.rounds, options.threads, self._report)
        if self._wanted("density"):
            bench_density(options.dense_gib, options.rounds, options.threads, self._report)
        self._report.print_table()

    def _wanted(self, part: str) -> bool:
        return self._options.only in (None, part)

    def _sweep(self) -> None:
        for rate in self._options.link_mb_s:
            try:
                self._compare(lambda folder: comparison.link(folder, rate), self._options.link_gib)
            except NoNamespaces as error:
                print(f"P5 over links skipped: {error}", file=sys.stderr)
                return

    def _compare(self, way: Callable[[str], ContextManager[Way]], gib: float) -> None:
        options = self._options
        size = Size(gib, options.rounds, options.threads, int(options.piece * (1 << 20)))
        with tempfile.TemporaryDirectory(prefix="dws-bench-", dir=options.dir) as folder:
            with way(folder) as made:
                comparison.compare(made, size, folder, self._report)


def main() -> int:
    # So that nothing of what was made is left.
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(f"{sys.argv[0]}: ended by SIGTERM"))
    options = parse_options()
    print("id,case,ours,reference,ratio,unit", flush=True)
    _Program(options).run()
    return 0
