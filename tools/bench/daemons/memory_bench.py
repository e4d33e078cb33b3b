"""P13: what the daemons' memory grows to, as the kernel counts it."""

from __future__ import annotations

import re
import urllib.request

import grpc
import numpy as np

import dws
from dws._proto import admin_pb2, admin_pb2_grpc
from tests.integration.cluster import Cluster, Daemon
from tools.bench.daemons import weights
from tools.bench.daemons.engine_loop import WAIT_SECONDS, EngineLoop
from tools.bench.daemons.report import Report

_MIB = 1 << 20
_SENDER_ALLOWANCE = 256 * _MIB
_VERSIONS = 4
_DENSITY = 0.03
# The cap is for staged writes and for transfers, each; the rest is the process itself.
_STAGING_PARTS = 2
_PROCESS_BYTES = 128 * _MIB


def staging_cap(size_bytes: int) -> int:
    """An eighth of the weights: 256 MiB for 2 GiB."""
    return max(size_bytes // 8, _MIB)


def _peak_bytes(daemon: Daemon) -> int:
    """The most that was ever resident, shared memory included."""
    assert daemon.process is not None
    with open(f"/proc/{daemon.process.pid}/status") as status:
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read())
    assert found is not None
    return int(found[1]) * 1024


def _metric(daemon: Daemon, name: str) -> float:
    url = f"http://127.0.0.1:{daemon.ports['http']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page.read().decode(), re.M)
    if found is None:
        raise RuntimeError(f"{url} has no {name}")
    return float(found[1])


def _repair(receiver: Daemon) -> None:
    """Every tensor in full, whatever its digest; returns when it is committed."""
    with grpc.insecure_channel(f"unix:{receiver.socket}") as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.ResyncRequest(full=True)
        progress = list(admin.Resync(request, timeout=WAIT_SECONDS))
    if not progress or not progress[-1].finished:
        raise RuntimeError("the receiver did not finish its repair")


def _add_sender(sender: Daemon, what: str, foreign_bytes: int, size_bytes: int, report: Report) -> None:
    retained = _metric(sender, "dws_sender_retained_bytes")
    used = _peak_bytes(sender) - foreign_bytes
    allowed = size_bytes + 2 * retained + _SENDER_ALLOWANCE
    report.add(
        "P13", f"sender; {what}; snapshot + 2 x retained + 256 MiB", used / _MIB, allowed / _MIB,
        used / allowed, "MiB", 1.0,
    )  # fmt: skip


def bench_resident_memory(size_bytes: int, report: Report) -> None:
    """A sender of resident weights (which are the trainer's own memory and not counted), and a
    receiver under a cap: a whole model, a delta of 3 %, and the whole model again."""
    specs = weights.specs(size_bytes)
    cap = staging_cap(size_bytes)
    with Cluster("bench") as cluster:
        sender = cluster.start_sender(0)
        receiver = cluster.start_receiver("engine", f"--staging-bytes={cap}")
        with dws.Trainer(sender.socket, "bench") as trainer:
            views = trainer.register(specs, views="numpy")
            weights.fill(views)
            changes = weights.Changes(views, _DENSITY)
            trainer.publish(1)
            engine = EngineLoop(receiver.socket, specs)
            engine.pause_of(1)
            for version in range(2, _VERSIONS + 2):
                changes.flip()
                trainer.publish(version)
                trainer.wait(version, timeout=WAIT_SECONDS)
                engine.pause_of(version)
            _repair(receiver)
            engine.finish(views)
            used = _peak_bytes(receiver) - size_bytes
            allowed = _STAGING_PARTS * cap + _PROCESS_BYTES
            report.add(
                "P13", "receiver; whole model; 3% delta; repair; 2 x staging cap + 128 MiB",
                used / _MIB, allowed / _MIB, used / allowed, "MiB", 1.0,
            )  # fmt: skip
            _add_sender(sender, "resident weights", size_bytes, size_bytes, report)


def bench_ring_memory(size_bytes: int, report: Report) -> None:
    """A sender that weights are handed to through a ring of the default size, which counts."""
    specs = weights.specs(size_bytes)
    with Cluster("bench") as cluster:
        sender = cluster.start_sender(0)
        own = {spec.name: np.zeros(spec.shape, np.uint16) for spec in specs}
        weights.fill(own)
        changes = weights.Changes(own, _DENSITY)
        with dws.Trainer(sender.socket, "bench") as trainer:
            trainer.register_ring(specs)
            for version in range(1, _VERSIONS + 2):
                with trainer.version(version) as writer:
                    for name, array in own.items():
                        writer.put(name, array)
                changes.flip()
            _add_sender(sender, "ring of 256 MiB", 0, size_bytes, report)

