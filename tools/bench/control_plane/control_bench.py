"""P11: what the control plane adds: an empty delta from its announcement to COMMITTED, against one unary
call and two durable records in the state directory. Then receivers that join, and one that is slow."""

from __future__ import annotations

import argparse
import statistics
import subprocess
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Cluster, Daemon
from tools.bench.control_plane.crowd_bench import bench_joiners, bench_slow
from tools.bench.daemons.engine_loop import WAIT_SECONDS, EngineLoop
from tools.bench.daemons.report import Report

_PROBE = "tools/bench/control_plane/control_probe"
_WARM_UP = 5
_RATIO_MAX = 2.0
_SLOW_BYTES = 16 << 20


class _Reference:
    """A context manager. The process ends with it."""

    def __init__(self, sender: Daemon) -> None:
        command = [_PROBE, sender.address, sender.folder]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def __enter__(self) -> "_Reference":
        return self

    def __exit__(self, *unused: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _acknowledged_seconds(sender: Daemon) -> tuple[float, int]:
    """Sum and count of all acknowledgements so far, as the sender timed them."""
    name = "dws_sender_ack_seconds"
    return sender.metric(name + "_sum"), int(sender.metric(name + "_count"))


def bench_control(rounds: int, report: Report) -> None:
    specs = [dws.TensorSpec("w", "bf16", (1 << 16,))]
    ours, references = [], []
    with Cluster("bench") as cluster:
        sender = cluster.start_sender(0)
        receiver = cluster.start_receiver("engine")
        with dws.Trainer(sender.socket, "bench") as trainer, _Reference(sender) as reference:
            views = trainer.register(specs, views="numpy")
            views["w"][:] = np.arange(1 << 16, dtype=np.uint16)
            trainer.publish(1)
            engine = EngineLoop(receiver.socket, specs, idle=True)
            trainer.wait(1, 1, WAIT_SECONDS)
            before, count = _acknowledged_seconds(sender)
            for version in range(2, rounds + _WARM_UP + 2):
                trainer.publish(version)
                trainer.wait(version, timeout=WAIT_SECONDS)
                after, count_after = _acknowledged_seconds(sender)
                if count_after != count + 1:
                    raise RuntimeError(
                        f"version {version} was acknowledged {count_after - count} times"
                    )
                seconds = reference.seconds()
                if version > _WARM_UP + 1:
                    ours.append(after - before)
                    references.append(seconds)
                before, count = after, count_after
            engine.finish(views)
    mine, limit = statistics.median(ours), statistics.median(references)
    report.add(
        "P11", "empty delta from announcement to COMMITTED; one unary call and two fdatasyncs",
        mine * 1e3, limit * 1e3, mine / limit, "ms", _RATIO_MAX,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench.sh control", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="versions that are timed")
    parser.add_argument("--size", type=int, default=256, help="MiB of weights that joiners take")
    parser.add_argument("--only", choices=["P11", "joiners", "slow"], help="measure only this")
    options = parser.parse_args()
    report = Report()
    print("id,case,ours,reference,ratio,unit", flush=True)
    if options.only in (None, "P11"):
        bench_control(options.rounds, report)
    if options.only in (None, "joiners"):
        bench_joiners(options.size << 20, options.rounds, report)
    if options.only in (None, "slow"):
        bench_slow(_SLOW_BYTES, options.rounds, report)
    report.print_table()


if __name__ == "__main__":
    main()
