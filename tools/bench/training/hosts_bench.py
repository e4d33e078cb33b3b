"""P23b: gathers between two hosts of two ranks each, beside raw TCP over loopback, and beside links of 1 Gbit/s between network
namespaces, in time and in bytes. The namespaces need root and iproute2; without them that part is skipped, and says so.

CSV on stdout and nothing else, the same as a table with the bars on stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from typing import Sequence

from tests.integration.network_hosts import NetworkHosts, NoNamespaces
from tools.bench.daemons.report import Report
from tools.bench.full_weights.raw_limits import RawLimits
from tools.bench.training.host_ranks import HostRanks, Shape

_LINK_BYTES = 125_000_000  # a second, each way
_HEADROOM = 1 << 20
_SHARE = 0.01  # of BF16 weights that an optimizer step changes


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench.sh on_demand hosts", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--units", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--unit-mib", type=int, default=64, help="of each unit (%(default)s)")
    parser.add_argument("--prefetch", type=int, default=1, help="units that are gathered ahead (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="whose median counts (%(default)s)")
    options = parser.parse_args(arguments)
    for name, most in (("units", 64), ("unit_mib", 1024), ("prefetch", 64), ("rounds", 100)):
        if not 1 <= getattr(options, name) <= most:
            parser.error(f"--{name.replace('_', '-')} must be 1 to {most}")
    return options


def _loopback(shape: Shape, rounds: int, report: Report) -> None:
    moved = shape.hosts * shape.lacking_bytes
    limits = RawLimits(moved)
    for way, flags in (("grpc", ()), ("fabric tcp", ("--fabric=tcp",))):
        with HostRanks(shape, None, *flags) as job:
            job.minibatch(check=True)
            ours, raw = [], []
            for _ in range(rounds):
                ours.append(job.minibatch())
                raw.append(limits.tcp_seconds())
        rates = [moved / 1e9 / statistics.median(seconds) for seconds in (ours, raw)]
        report.add("P23b", f"loopback; {way}; 2 raw TCP streams", *rates, rates[0] / rates[1], "GB/s",
                   at_least=0.7 if way != "grpc" else None)  # fmt: skip


def _links(shape: Shape, rounds: int, report: Report) -> None:
    lacking = shape.lacking_bytes
    with NetworkHosts(shape.hosts) as hosts:
        for host in range(shape.hosts):
            hosts.limit(host, _LINK_BYTES)
        for cache, share in ((lacking + _HEADROOM, 1.0), (lacking + _HEADROOM, _SHARE), (0, 1.0)):
            with HostRanks(shape, hosts, f"--host-cache-bytes={cache}") as job:
                job.minibatch(share, check=True)
                before = hosts.traffic()
                seconds = statistics.median(job.minibatch(share) for _ in range(rounds))
                received = max(now[1] - then[1] for now, then in zip(hosts.traffic(), before)) / rounds
                job.minibatch(check=True)
            full = cache > 0 and share == 1.0
            what = f"{'cached' if cache else 'no cache'}; {share:.0%} changed"
            rate = lacking / seconds
            report.add("P23b", f"{what}; 2 links of 1 Gbit/s", rate / 1e6, _LINK_BYTES / 1e6, rate / _LINK_BYTES,
                       "MB/s", at_least=0.9 if full else None)  # fmt: skip
            report.add("P23b", f"{what}; bytes over a link; those its host lacks", received / 1e6, lacking / 1e6,
                       received / lacking, "MB", at_most=1.05 if full else None)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    shape = Shape(hosts=2, ranks=2, units=options.units, unit_bytes=options.unit_mib << 20, prefetch=options.prefetch)
    report = Report()
    _loopback(dataclasses.replace(shape, ranks=1), options.rounds, report)
    try:
        _links(shape, options.rounds, report)
    except NoNamespaces as error:
        print(f"P23b between namespaces skipped: {error}", file=sys.stderr)
    report.print_table()


if __name__ == "__main__":
    main()
