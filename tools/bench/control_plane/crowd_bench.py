"""What receivers cost that are not as the others: the trainer's stall while three join, and nine fast ones'
commits beside one whose link takes 1 MB/s."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

import dws
from tests.integration.cluster import Cluster, Daemon
from tests.integration.fault_proxy import FaultProxy
from tools.bench.daemons import weights
from tools.bench.daemons.engine_loop import WAIT_SECONDS, EngineLoop
from tools.bench.daemons.report import Report

JOINERS = 3
FAST = 9
SLOW_BYTES_PER_SECOND = 1_000_000
DENSITY = 0.01
_JOIN_VERSIONS_MAX = 100_000
_TURNS = 4  # rounds with the link at full speed, and slow


class _Publisher:
    """A trainer with synthetic weights. A context manager."""

    def __init__(self, sender: Daemon, size_bytes: int) -> None:
        self.specs = weights.specs(size_bytes)
        self.trainer = dws.Trainer(sender.socket, "bench")
        self.views = self.trainer.register(self.specs, views="numpy")
        weights.fill(self.views)
        self._changes = weights.Changes(self.views, DENSITY)
        self.version = 0

    def publish(self) -> float:
        """The next version. Returns how many seconds the trainer stalled."""
        self.version += 1
        self._changes.flip()
        return float(self.trainer.publish(self.version).stall_seconds)

    def commit(self, receivers: int) -> float:
        """Publishes the next version. Returns the seconds until so many receivers have committed
        it."""
        self.publish()
        begin = time.monotonic()
        self.trainer.wait(self.version, receivers, WAIT_SECONDS)
        return time.monotonic() - begin

    def __enter__(self) -> "_Publisher":
        return self

    def __exit__(self, *unused: object) -> None:
        self.trainer.close()


def _full_bytes(sender: Daemon) -> float:
    """Full tensors that the sender has served."""
    kinds = ('kind="full"', 'kind="full_copied"')
    return sum(sender.metric("dws_sender_served_bytes_total", kind) for kind in kinds)


def _joined(receivers: list[Daemon]) -> bool:
    return all(r.metric("dws_receiver_committed_version") > 0 for r in receivers)


def bench_joiners(size_bytes: int, rounds: int, report: Report) -> None:
    """Publishes versions back to back: `rounds` of them with one engine, then all that fit while
    three more engines take the weights in full. Only those of the latter count during which the
    sender served full tensors."""
    with Cluster("bench") as cluster:
        sender = cluster.start_sender(0)
        receivers = [cluster.start_receiver("engine")]
        with _Publisher(sender, size_bytes) as publisher:
            publisher.publish()
            engines = [EngineLoop(receivers[0].socket, publisher.specs, idle=True)]
            publisher.trainer.wait(1, 1, WAIT_SECONDS)
            alone = [publisher.publish() for _ in range(rounds)]
            served = _full_bytes(sender)
            for i in range(JOINERS):
                # Fetches as from another host: on this host they would take nothing from the
                # sender.
                receivers.append(cluster.start_receiver(f"joiner-{i}", "--full-way=grpc"))
                engines.append(EngineLoop(receivers[-1].socket, publisher.specs, idle=True))
            beside = []
            while not _joined(receivers):
                if publisher.version > _JOIN_VERSIONS_MAX:
                    raise RuntimeError(f"not joined after {publisher.version} versions")
                stall = publisher.publish()
                before, served = served, _full_bytes(sender)
                if served > before:
                    beside.append(stall)
            publisher.trainer.wait(publisher.version, 1 + JOINERS, WAIT_SECONDS)
            for engine in engines:
                engine.finish(publisher.views)
    mine, limit = statistics.median(beside), statistics.median(alone)
    what = f"trainer stall while {JOINERS} receivers join; without ({len(beside)} and {rounds} versions)"
    report.add("joiners", what, mine * 1e3, limit * 1e3, mine / limit, "ms")


def bench_slow(size_bytes: int, rounds: int, report: Report) -> None:
    """Publish to commit of nine receivers, in turns with the tenth's link fast and slow."""
    with Cluster("bench") as cluster, ExitStack() as stack:
        sender = cluster.start_sender(0, "--insecure")  # the proxy is between TCP ports
        proxy = stack.enter_context(FaultProxy(sender.ports["sync"]))
        publisher = stack.enter_context(_Publisher(sender, size_bytes))
        publisher.publish()
        receivers = [cluster.start_receiver(f"fast-{i}", "--insecure") for i in range(FAST)]
        slow = ("--insecure", f"--sender=127.0.0.1:{proxy.port}")
        receivers.append(cluster.start_receiver("slow", *slow, senders=False))
        engines = [EngineLoop(r.socket, publisher.specs, idle=True) for r in receivers]
        publisher.trainer.wait(1, FAST + 1, WAIT_SECONDS)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        lag = 0.0
        for turn in range(2 * _TURNS):
            limited = turn % 2 == 1
            proxy.limit(SLOW_BYTES_PER_SECOND if limited else None)
            for _ in range(rounds // _TURNS):
                seconds[limited].append(publisher.commit(FAST))
            reached = receivers[-1].metric("dws_receiver_committed_version")
            lag = max(lag, publisher.version - reached)
            proxy.limit(None)
            publisher.trainer.wait(publisher.version, FAST + 1, WAIT_SECONDS)
        for engine in engines:
            engine.finish(publisher.views)
    mine, limit = statistics.median(seconds[True]), statistics.median(seconds[False])
    what = f"commit of {FAST} receivers beside one at 1 MB/s ({lag:.0f} versions behind); at full speed"
    report.add("slow", what, mine * 1e3, limit * 1e3, mine / limit, "ms")
