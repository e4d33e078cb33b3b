"""P12: one sender and up to a thousand receivers that speak the real protocol: CPU time for each GiB
sent, the time to commit, memory for each receiver, and a restart of the sender."""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from typing import Optional

import dws
from tests.integration.cluster import Cluster, Daemon
from tools.bench.daemons import weights
from tools.bench.daemons.report import Report
from tools.bench.receivers.light_receivers import LightReceivers, raise_descriptors

_WAIT_SECONDS = 300.0
_COUNTS = (10, 100, 1000)
_WEIGHT_BYTES = 64 << 20
_DENSITY = 0.03  # about 1 MiB for each version
_ROUNDS_MIN = 5
_ALONE_ROUNDS = 10
_SETTLE_SECONDS = 0.5
_KIB, _GIB = 1 << 10, 1 << 30
_CPU_RATIO_MAX, _TAIL_RATIO_MAX, _MEMORY_MAX, _STORM_SECONDS_MAX = 1.5, 1.5, 64, 10


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Peak:
    """The most memory that a process has had since `reset`, without what it maps from files."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def reset(self) -> None:
        with open(f"/proc/{self._pid}/clear_refs", "w") as file:
            file.write("5")

    def bytes(self) -> int:
        with open(f"/proc/{self._pid}/status") as status:
            (line,) = (line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * _KIB


class Figures:
    """What was measured with one number of receivers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.cpu_seconds_per_gib = 0.0
        self.delta_bytes = 0.0
        self.medians: list[float] = []
        self.tails: list[float] = []  # p99
        self.connected_bytes = 0.0  # for each receiver
        self.peak_bytes = 0.0  # for each receiver, while deltas are sent
        self.storm_seconds = 0.0  # until all have connected again
        self.storm_commit_seconds = 0.0  # until all have committed the version published then
        self.page_bytes: dict[str, int] = {}


class _Job:
    """A sender with a trainer, and light receivers."""

    def __init__(self, cluster: Cluster, flags: list[str]) -> None:
        # Few versions are retained, so that memory does not grow with each of them.
        self.sender = cluster.start_sender(0, "--insecure", "--retain-versions=4", *flags)
        self.trainer = dws.Trainer(self.sender.socket, "bench")
        self.views = self.trainer.register(weights.specs(_WEIGHT_BYTES), views="numpy")
        weights.fill(self.views)
        self._changes = weights.Changes(self.views, _DENSITY)
        self.version = 0

    @property
    def pid(self) -> int:
        assert self.sender.process is not None
        return self.sender.process.pid

    def publish(self) -> float:
        """Returns when (time.monotonic) the publish returned."""
        self.version += 1
        self._changes.flip()
        self.trainer.publish(self.version)
        return time.monotonic()

    def served_bytes(self) -> float:
        return self.sender.metric("dws_sender_served_bytes_total", 'kind="delta"')


def _percentile(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, math.ceil(share * len(times)) - 1)]


def _serve(job: _Job, receivers: LightReceivers, rounds: int, alone: float, found: Figures) -> None:
    served, cpu = job.served_bytes(), _cpu_seconds(job.pid)
    for _ in range(rounds):
        published = job.publish()
        job.trainer.wait(job.version, receivers.count, _WAIT_SECONDS)
        times = [at - published for at in receivers.wait(job.version, _WAIT_SECONDS)["times"]]
        if len(times) != receivers.count:
            raise RuntimeError(
                f"{len(times)} of {receivers.count} receivers have committed version {job.version}"
            )
        found.medians.append(statistics.median(times))
        found.tails.append(_percentile(times, 0.99))
    cpu = _cpu_seconds(job.pid) - cpu - rounds * alone
    served = job.served_bytes() - served
    found.delta_bytes = served / rounds / receivers.count
    found.cpu_seconds_per_gib = cpu / (served / _GIB)


def _present(sender: Daemon) -> int:
    return int(sender.metric("dws_sender_receivers", 'state="present"'))


def _storm(job: _Job, receivers: LightReceivers, found: Figures) -> None:
    job.sender.kill()
    job.sender.start()
    listening = time.monotonic()
    job.trainer.reconnect()
    while _present(job.sender) < receivers.count:
        if time.monotonic() > listening + _WAIT_SECONDS:
            raise RuntimeError(f"{_present(job.sender)} of {receivers.count} receivers came back")
        time.sleep(0.05)
    found.storm_seconds = time.monotonic() - listening
    job.publish()
    job.trainer.wait(job.version, receivers.count, _WAIT_SECONDS)
    receivers.wait(job.version, _WAIT_SECONDS)
    found.storm_commit_seconds = time.monotonic() - listening


def measure(count: int, rounds: Optional[int] = None, flags: Optional[list[str]] = None) -> Figures:
    """Raises RuntimeError if a receiver misses a version."""
    raise_descriptors(4 * count + 256)
    found = Figures(count)
    with Cluster("bench") as cluster:
        job = _Job(cluster, flags or [])
        with job.trainer:
            job.publish()
            job.publish()
            time.sleep(_SETTLE_SECONDS)
            peak = _Peak(job.pid)
            peak.reset()
            cpu = _cpu_seconds(job.pid)
            for _ in range(_ALONE_ROUNDS):
                job.publish()
                time.sleep(0.05)
            time.sleep(_SETTLE_SECONDS)
            alone = (_cpu_seconds(job.pid) - cpu) / _ALONE_ROUNDS
            peak_alone = peak.bytes()
            peak.reset()
            idle_alone = peak.bytes()
            with LightReceivers(job.sender.address, count, "bench") as receivers:
                receivers.wait(job.version, _WAIT_SECONDS)
                time.sleep(_SETTLE_SECONDS)
                peak.reset()
                found.connected_bytes = (peak.bytes() - idle_alone) / count
                _serve(job, receivers, rounds or max(_ROUNDS_MIN, 1000 // count), alone, found)
                found.peak_bytes = (peak.bytes() - peak_alone) / count
                found.page_bytes = {p: len(job.sender.page(p)) for p in ("/status", "/metrics")}
                _storm(job, receivers, found)
    return found


def _add(found: Figures, base: Figures, report: Report) -> None:
    number, last = found.count, found.count == _COUNTS[-1]
    report.add(
        "P12", f"sender's CPU seconds a GiB at {number} receivers ({found.delta_bytes / 2**20:.2f} MiB each); {base.count}",
        found.cpu_seconds_per_gib, base.cpu_seconds_per_gib,
        found.cpu_seconds_per_gib / base.cpu_seconds_per_gib, "s/GiB", _CPU_RATIO_MAX if last else None,
    )  # fmt: skip
    tail, median = statistics.median(found.tails), statistics.median(found.medians)
    report.add(
        "P12", f"publish to COMMITTED of {number} receivers: 99th percentile; median",
        tail * 1e3, median * 1e3, tail / median, "ms", _TAIL_RATIO_MAX if last else None,
    )  # fmt: skip
    for what, value in (("connected", found.connected_bytes), ("at most while sending", found.peak_bytes)):
        report.add(
            "P12", f"sender's memory for each of {number} receivers: {what}; bar",
            value / _KIB, _MEMORY_MAX, value / _KIB / _MEMORY_MAX, "KiB", 1 if last else None,
        )  # fmt: skip
    report.add(
        "P12", f"restart: {number} receivers connected again; all had committed the next version",
        found.storm_seconds, found.storm_commit_seconds,
        found.storm_commit_seconds / _STORM_SECONDS_MAX, "s (of 10)", 1 if last else None,
    )  # fmt: skip
    pages = found.page_bytes
    report.add(
        "P12", f"status with {number} receivers; metrics",
        pages["/status"] / _KIB, pages["/metrics"] / _KIB, pages["/status"] / pages["/metrics"], "KiB",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tools/bench.sh wide --only=receivers", description=__doc__
    )
    parser.add_argument("--counts", default=",".join(map(str, _COUNTS)), help="of receivers")
    parser.add_argument("--rounds", type=int, help="versions that are timed, for each count")
    parser.add_argument("--sender", action="append", help="a flag of the sender")
    options = parser.parse_args()
    report = Report()
    base = None
    for count in map(int, options.counts.split(",")):
        found = measure(count, options.rounds, options.sender)
        base = base or found
        _add(found, base, report)
    report.print_table()


if __name__ == "__main__":
    main()
