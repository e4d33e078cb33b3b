"""P6 and P7: what a publish costs the trainer and a commit the engine, measured in their processes."""

from __future__ import annotations

import statistics

import dws
from tests.integration.cluster import Cluster
from tools.bench.daemons import weights
from tools.bench.daemons.engine_loop import WAIT_SECONDS, EngineLoop
from tools.bench.daemons.probe import Probe
from tools.bench.daemons.report import Report

THREADS = 2
DENSITY = 0.01
_STALL_MAX = 1.15
_PAUSE_MAX = 1.5
_PAUSE_ALLOWANCE_SECONDS = 0.002


def bench_stall_and_pause(size_bytes: int, rounds: int, report: Report) -> None:
    """A round: change, publish, wait for the commit, then the two references."""
    specs = weights.specs(size_bytes)
    stalls, pauses, captures, commits = [], [], [], []
    with Cluster("bench") as cluster, Probe(size_bytes) as probe:
        sender = cluster.start_sender(0, f"--threads={THREADS}")
        receiver = cluster.start_receiver("engine", f"--threads={THREADS - 1}")
        with dws.Trainer(sender.socket, "bench") as trainer:
            views = trainer.register(specs, views="numpy")
            weights.fill(views)
            changes = weights.Changes(views, DENSITY)
            trainer.publish(1)
            engine = EngineLoop(receiver.socket, specs)
            engine.pause_of(1)
            for version in range(2, rounds + 3):
                changes.flip()
                stall = trainer.publish(version).stall_seconds
                trainer.wait(version, timeout=WAIT_SECONDS)
                pause = engine.pause_of(version)
                capture = probe.capture_seconds(THREADS)
                commit = probe.commit_seconds(THREADS)
                if version == 2:
                    continue  # warm-up
                stalls.append(stall)
                pauses.append(pause)
                captures.append(capture)
                commits.append(commit)
            engine.finish(views)
    stall, capture = statistics.median(stalls), statistics.median(captures)
    pause, commit = statistics.median(pauses), statistics.median(commits)
    what = f"{DENSITY:.0%} changed; {THREADS} threads"
    report.add(
        "P6", f"trainer stall against P3's time; {what}", stall * 1e3, capture * 1e3,
        stall / capture, "ms", _STALL_MAX,
    )  # fmt: skip
    report.add(
        "P7", f"engine pause less 2 ms against P4c's time; {what}", pause * 1e3, commit * 1e3,
        (pause - _PAUSE_ALLOWANCE_SECONDS) / commit, "ms", _PAUSE_MAX,
    )  # fmt: skip
