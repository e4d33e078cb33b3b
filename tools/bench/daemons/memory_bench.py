"""P13: what the daemons' memory grows to, as the kernel counts it."""

from __future__ import annotations

import re

import grpc
import numpy as np

import dws
from dws._proto import admin_pb2, admin_pb2_grpc
from tests.integration.cluster import Cluster, Daemon
from tools.bench.daemons import weights
from tools.bench.daemons.engine_loop import WAIT_SECONDS
from tools.bench.daemons.report import Report
from tools.bench.daemons.resident_run import ResidentRun

_MIB = 1 << 20
_SENDER_ALLOWANCE = 256 * _MIB
_VERSIONS = 4
_DENSITY = 0.03
# Memory of the process itself, beside the capped transfers and staged writes.
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


def _repair(receiver: Daemon) -> None:
    """Every tensor in full, whatever its digest; returns when it is committed."""
    with grpc.insecure_channel(f"unix:{receiver.socket}") as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.ResyncRequest(full=True)
        progress = list(admin.Resync(request, timeout=WAIT_SECONDS))
    if not progress or not progress[-1].finished:
        raise RuntimeError("the receiver did not finish its repair")


def _add_sender(sender: Daemon, what: str, foreign_bytes: int, size_bytes: int, report: Report) -> None:
    retained = sender.metric("dws_sender_retained_bytes")
    used = _peak_bytes(sender) - foreign_bytes
    allowed = size_bytes + 2 * retained + _SENDER_ALLOWANCE
    report.add(
        "P13", f"sender; {what}; snapshot + 2 x retained + 256 MiB", used / _MIB, allowed / _MIB,
        used / allowed, "MiB", 1.0,
    )  # fmt: skip


def bench_resident_memory(size_bytes: int, report: Report) -> None:
    """A sender of resident weights (which are the trainer's own memory and not counted), and a
    receiver under a cap: a whole model, a delta of 3 %, and the whole model again."""
    cap = staging_cap(size_bytes)
    with ResidentRun(size_bytes, _DENSITY, "", f"--staging-bytes={cap}") as run:
        for _ in range(_VERSIONS):
            run.advance()
        _repair(run.receiver)
        run.finish()
        used = _peak_bytes(run.receiver) - size_bytes
        allowed = cap + _PROCESS_BYTES
        report.add(
            "P13", "receiver; whole model; 3% delta; repair; staging cap + 128 MiB",
            used / _MIB, allowed / _MIB, used / allowed, "MiB", 1.0,
        )  # fmt: skip
        _add_sender(run.sender, "resident weights", size_bytes, size_bytes, report)


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
            _add_sender(sender, "ring of 192 MiB", 0, size_bytes, report)

