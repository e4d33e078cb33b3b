"""P27: a version in which every element changed, published in full, against first contact: the same bytes
by the same daemons, to an engine that has attached and waits for its first version."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

import dws
from tests.integration.cluster import Cluster, Daemon
from tools.bench.daemons import weights
from tools.bench.daemons.engine_loop import WAIT_SECONDS, EngineLoop
from tools.bench.daemons.report import Report
from tools.bench.end_to_end import model
from tools.bench.end_to_end.published import Published

_STALL_MAX = 1.3
_SECONDS_MAX = 1.5


def _await_engine(receiver: Daemon) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while receiver.metric("dws_receiver_engine_ranks", 'state="attached"') != 1:
        if time.monotonic() > deadline:
            raise RuntimeError("the engine has not attached")
        time.sleep(0.05)


def _run(size_bytes: int, threads: int) -> list[Published]:
    """First contact, a delta, and a full version."""
    specs = model.specs(size_bytes)
    results = []
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster("bench"))
        # Over TCP, as between hosts.
        sender = cluster.start_sender(0, f"--threads={threads}", "--insecure")
        receiver = cluster.start_receiver("engine", f"--threads={threads - 1}", "--insecure")
        trainer = stack.enter_context(dws.Trainer(sender.socket, "bench"))
        views = trainer.register(specs, views="numpy")
        weights.fill(views)
        changes = model.RandomBits(views, 1.0)
        engine = EngineLoop(receiver.socket, specs, idle=True)
        _await_engine(receiver)
        for version in (1, 2, 3):
            if version > 1:
                changes.advance()
            begin = time.monotonic()
            stats = trainer.publish(version, full=version == 3)
            captured = time.monotonic()
            result = trainer.wait(version, 1, WAIT_SECONDS)
            seconds = time.monotonic() - begin
            if stats.full != (version != 2):
                raise RuntimeError(f"version {version}: full is {stats.full}")
            results.append(Published(seconds, captured - begin, result.wire_bytes, stats.full))
        engine.finish(views)
    return results


def bench_full_versions(size_bytes: int, rounds: int, threads: int, report: Report) -> None:
    """A round has daemons of its own: there is one first contact."""
    found = [_run(size_bytes, threads) for _ in range(rounds)]

    def median(version: int, of: str) -> float:
        return statistics.median(getattr(run[version - 1], of) for run in found)

    what = f"every element changed; {size_bytes / (1 << 30):g} GiB; {threads} threads"
    first, first_stall = median(1, "seconds"), median(1, "stall_seconds")
    transfer = statistics.median(run[0].seconds - run[0].stall_seconds for run in found)
    for name, version, bars in (("delta", 2, False), ("full", 3, True)):
        seconds, stall = median(version, "seconds"), median(version, "stall_seconds")
        report.add(
            "P27", f"{name}: publish against that of first contact; {what}", stall, first_stall,
            stall / first_stall, "s", _STALL_MAX if bars else None,
        )  # fmt: skip
        report.add(
            "P27", f"{name}: publish to COMMITTED against first contact; {what}", seconds, first,
            seconds / first, "s",
        )  # fmt: skip
        report.add(
            "P27", f"{name}: publish to COMMITTED against its transfer; {what}", seconds, transfer,
            seconds / transfer, "s", _SECONDS_MAX if bars else None,
        )  # fmt: skip
