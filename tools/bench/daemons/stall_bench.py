"""P6 and P7: what a publish costs the trainer and a commit the engine, measured in their processes."""

from __future__ import annotations

import statistics

from tools.bench.daemons.probe import Probe
from tools.bench.daemons.report import Report
from tools.bench.daemons.resident_run import ResidentRun

THREADS = 2
DENSITY = 0.01
_STALL_MAX = 1.2
_PAUSE_MAX = 1.5
_PAUSE_ALLOWANCE_SECONDS = 0.002


def bench_stall_and_pause(size_bytes: int, rounds: int, report: Report) -> None:
    """A round: change, publish, wait for the commit, then the two references."""
    stalls, pauses, captures, commits = [], [], [], []
    with Probe(size_bytes) as probe, ResidentRun(
        size_bytes, DENSITY, f"--threads={THREADS}", f"--threads={THREADS - 1}"
    ) as run:
        for turn in range(rounds + 1):
            stall, pause = run.advance()
            capture = probe.capture_seconds(THREADS)
            commit = probe.commit_seconds(THREADS)
            if turn == 0:
                continue  # warm-up
            stalls.append(stall)
            pauses.append(pause)
            captures.append(capture)
            commits.append(commit)
        run.finish()
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
