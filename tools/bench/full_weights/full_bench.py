"""P14 to P18: full weights from two trainer ranks to an engine of two ranks, against the machine's limits and
against what a user would take instead, interleaved in one run. P28 and P29: from eight hosts to eight, whose links
have a limit; they need root and iproute2."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
from contextlib import ExitStack
from typing import Callable

from tests.integration.network_hosts import NetworkHosts, NoNamespaces
from tools.bench.daemons.report import Report
from tools.bench.full_weights.gather_and_send import GatherAndSend
from tools.bench.full_weights.gloo_broadcast import GlooBroadcast
from tools.bench.full_weights.link_job import LinkJob
from tools.bench.full_weights.mesh_job import MeshJob
from tools.bench.full_weights.mooncake_write import MooncakeMissing, MooncakeWrite, require_mooncake
from tools.bench.full_weights.raw_limits import RawLimits
from tools.bench.full_weights.shapes import Shapes

_THREADS = 2
_HOSTS = 8  # of the trainer, and of the engine


def _medians(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """One run of each in turn; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            seconds = run()
            if turn > 0:
                times[name].append(seconds)
    return {name: statistics.median(found) for name, found in times.items()}


def _versions(shapes: Shapes, rounds: int, peers: str, report: Report) -> None:
    size = f"{shapes.size_bytes / 2**30:.2g} GiB; 2 ranks of rows to TP 2"
    for way in ("grpc", "same-host"):
        with ExitStack() as stack:
            job = stack.enter_context(MeshJob(shapes, way, _THREADS))
            gloo = stack.enter_context(GlooBroadcast(shapes))
            limits = RawLimits(shapes.size_bytes)
            runs = {
                "ours": lambda: job.publish()[1], "tcp": limits.tcp_seconds, "memcpy": limits.memcpy_seconds,
                "gloo": gloo.seconds,
            }  # fmt: skip
            mooncake = None
            if way == "grpc" and peers:
                mooncake = stack.enter_context(MooncakeWrite(shapes, peers))
                runs["mooncake"] = mooncake.seconds
            found = _medians(runs, rounds)
            job.check()
            if mooncake is not None:
                mooncake.check()
        ours = found["ours"]
        if way == "grpc":
            report.add("P14", f"{size}: publish to COMMITTED by grpc against 2 raw TCP streams", ours,
                       found["tcp"], ours / found["tcp"], "s", at_most=2.0)  # fmt: skip
            report.add("P16", f"{size}: gloo broadcast and load against the same", ours, found["gloo"],
                       found["gloo"] / ours, "s", at_least=3)  # fmt: skip
            if "mooncake" in found:
                report.add("P17", f"{size}: Mooncake's writes over TCP against the same", ours, found["mooncake"],
                           found["mooncake"] / ours, "s", at_least=1.0)  # fmt: skip
            else:
                print("P17 skipped: no Python with Mooncake is named (--peers)", file=sys.stderr)
        else:
            report.add("P15", f"{size}: publish to COMMITTED on one host against memcpy", ours,
                       found["memcpy"], ours / found["memcpy"], "s", at_most=3.5)  # fmt: skip
            report.add("P16", f"{size}: gloo broadcast and load against the same", ours, found["gloo"],
                       found["gloo"] / ours, "s", at_least=3)  # fmt: skip


def _first_contact(shapes: Shapes, rounds: int, report: Report) -> None:
    size = f"{shapes.size_bytes / 2**30:.2g} GiB"
    for way in ("grpc", "same-host"):
        with MeshJob(shapes, way, _THREADS) as job:
            limits = RawLimits(shapes.size_bytes)
            found = _medians({"ours": job.join, "tcp": limits.tcp_seconds}, rounds)
            job.check()
        report.add("P18", f"{size}: first contact by {way} against raw TCP", found["ours"], found["tcp"],
                   found["ours"] / found["tcp"], "s", at_most=2.0 if way == "grpc" else 1.5)  # fmt: skip


def _links(shapes: Shapes, rate: int, rounds: int, report: Report) -> None:
    what = f"{shapes.size_bytes / 2**20:.0f} MiB; {_HOSTS} hosts to {_HOSTS}"
    with NetworkHosts(2 * _HOSTS) as hosts:
        with LinkJob(shapes, hosts) as job:
            for host in range(2 * _HOSTS):
                hosts.limit(host, rate)
            moved = [job.publish() for _ in range(rounds)]
            job.check()
        with GatherAndSend(shapes, hosts) as peer:
            gathered = peer.seconds()
    seconds = statistics.median(version.seconds for version in moved)
    slowest = statistics.median(min(version.sent + version.received) / version.seconds for version in moved)
    report.add("P28", f"{what}: slowest link from capture to COMMITTED against its limit", slowest / 1e6,
               rate / 1e6, slowest / rate, "MB/s", at_least=0.9)  # fmt: skip
    report.add("P29", f"{what}: one gathers and sends against the same", seconds, gathered,
               gathered / seconds, "s", at_least=7)  # fmt: skip


def main() -> None:
    # So that nothing of what was made is left.
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(f"{sys.argv[0]}: ended by SIGTERM"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=4096, help="of the weights; first contact takes half")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link-size-mib", type=int, default=512, help="of the weights between hosts")
    parser.add_argument("--link-rate", type=int, default=16_000_000, help="of each link, bytes a second")
    parser.add_argument("--peers", default=os.environ.get("DWS_BENCH_PEERS", ""), metavar="PYTHON",
                        help="one with the package mooncake-transfer-engine-non-cuda, for P17; by default"
                        " $DWS_BENCH_PEERS")  # fmt: skip
    options = parser.parse_args()
    if options.peers:
        try:
            require_mooncake(options.peers)
        except MooncakeMissing as error:
            parser.error(str(error))
    report = Report()
    _versions(Shapes.of(options.size_mib << 20), options.rounds, options.peers, report)
    _first_contact(Shapes.of(options.size_mib << 19), options.rounds, report)
    try:
        shapes = Shapes.of(options.link_size_mib << 20, _HOSTS, _HOSTS)
        _links(shapes, options.link_rate, options.rounds, report)
    except NoNamespaces as error:
        print(f"P28 and P29 skipped: {error}", file=sys.stderr)
    report.print_table()


if __name__ == "__main__":
    main()
