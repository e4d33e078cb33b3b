"""W10: engines that join a sender behind a slow link at once, each on a host of its own (network namespaces: root and
iproute2), with receivers that serve each other and without; beside one that joins alone. Time until all have
committed, and bytes over the sender's link.

CSV on stdout and nothing else, the same as a table with the bars on stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from typing import Any, Sequence

import numpy as np

import dws
from tests.integration.cluster import Cluster
from tests.integration.network_hosts import NetworkHosts, NoNamespaces
from tools.bench.daemons.report import Report

_WAIT_SECONDS = 600.0
_TENSORS = 4


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench.sh wide --only=joiners", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--joiners", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--mib", type=int, default=64, help="of weights (%(default)s)")
    parser.add_argument("--link", type=int, default=16, help="of the sender, MB/s (%(default)s)")
    options = parser.parse_args(arguments)
    for name, most in (("joiners", 60), ("mib", 1024), ("link", 10_000)):
        if not 1 <= getattr(options, name) <= most:
            parser.error(f"--{name} must be 1 to {most}")
    return options


def join(hosts: NetworkHosts, count: int, mib: int, serve: bool) -> tuple[float, int]:
    """Seconds until `count` engines that attach together have committed, and bytes over the sender's link."""
    elements = (mib << 20) // 4 // _TENSORS
    random = np.random.default_rng(3)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster("bench"))
        hosts.enter(cluster, 0)
        sender = cluster.start_sender(0, "--insecure")
        trainer = stack.enter_context(dws.Trainer(sender.socket, "bench"))
        source = trainer.register(
            {f"t{i}": random.standard_normal(elements, np.float32) for i in range(_TENSORS)}
        )
        trainer.publish(1)
        os.unlink(f"{sender.socket}.handles")  # as from another host: nobody can map its memory
        engines = []
        for index in range(count):
            hosts.enter(cluster, index + 1)
            flags = [f"--serve-peers={cluster.host}:0"] if serve else []
            receiver = cluster.start_receiver(f"r{index}", "--insecure", "--full-way=auto", *flags)
            engines.append(stack.enter_context(dws.Engine(receiver.socket, 0, 1)))
        memory: list[dict[str, Any]] = [{n: np.zeros_like(a) for n, a in source.items()} for _ in engines]
        before = hosts.traffic()[0][0]
        begin = time.monotonic()
        live = [engine.attach(tensors) for engine, tensors in zip(engines, memory)]
        trainer.wait(1, count, _WAIT_SECONDS)
        seconds = time.monotonic() - begin
        sent = hosts.traffic()[0][0] - before
        for tensors in live:
            for name, array in source.items():
                if not np.array_equal(tensors[name], array):
                    raise RuntimeError(f"'{name}' differs")
        return seconds, sent


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    report = Report()
    weights = options.mib << 20
    try:
        with NetworkHosts(options.joiners + 1) as hosts:
            hosts.limit(0, options.link * 1_000_000)
            one, _ = join(hosts, 1, options.mib, False)
            for serve in (False, True):
                seconds, sent = join(hosts, options.joiners, options.mib, serve)
                what = f"{options.joiners} joiners {'that serve each other' if serve else 'of the sender alone'}"
                report.add("W10", f"{what}; 1 joiner", seconds, one, seconds / one, "s",
                           at_most=2.5 if serve else None)  # fmt: skip
                report.add("W10", f"{what}; bytes over its link; the weights", sent / 1e6, weights / 1e6,
                           sent / weights, "MB", at_most=2.0 if serve else None)  # fmt: skip
    except NoNamespaces as error:
        print(f"W10 skipped: {error}", file=sys.stderr)
    report.print_table()


if __name__ == "__main__":
    main()
