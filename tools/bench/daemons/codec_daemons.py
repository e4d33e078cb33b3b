"""The figures of tools/bench.sh codec that need daemons: trainer stall, engine pause, memory."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Sequence

from tools.bench.daemons.memory_bench import bench_resident_memory, bench_ring_memory, bench_view_memory
from tools.bench.daemons.report import Report
from tools.bench.daemons.stall_bench import bench_stall_and_pause

_UNITS = {"": 1, "k": 10, "m": 20, "g": 30}


def parse_size(text: str) -> int:
    """'64MiB', '2GiB', '1048576', as codec_bench takes them."""
    found = re.fullmatch(r"(\d+) ?([kmg]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"'{text}' is no size: expected 64MiB, 2GiB, ...")
    return int(found[1]) << (_UNITS[found[2]] if found[2] else 0)


def main(arguments: Sequence[str]) -> None:
    # codec_bench runs before this, checks all options and describes them.
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--size", type=parse_size, default=2 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    options, _ = parser.parse_known_args(arguments)
    report = Report()
    bench_stall_and_pause(options.size, options.rounds, report)
    bench_resident_memory(options.size, report)
    bench_ring_memory(options.size, report)
    bench_view_memory(options.size, report)
    report.print_table()


if __name__ == "__main__":
    main(sys.argv[1:])
