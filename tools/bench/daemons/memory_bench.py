"""P13: the size to which the daemons' memory grows, as the kernel counts it."""

from __future__ import annotations

import re
import time

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
# Transfers go as between hosts: on one host a receiver maps the sender's snapshot, which counts for
# both.
_OVER_CONNECTION = "--full-way=grpc"
_VIEW = "fp8-block128/deepseek"
_COLUMNS = 1024
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
    with ResidentRun(size_bytes, _DENSITY, "", f"--staging-bytes={cap} {_OVER_CONNECTION}") as run:
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


def _view_of(specs: list[dws.TensorSpec]) -> dict[str, np.ndarray]:
    """What an engine of _VIEW holds in place of these tensors."""
    view: dict[str, np.ndarray] = {}
    for spec in specs:
        rows, columns = spec.shape
        view[spec.name] = np.zeros((rows, columns), np.uint8)
        view[spec.name + "_scale_inv"] = np.zeros((-(-rows // 128), -(-columns // 128)), np.float32)
    return view


def _await_version(engine: dws.Engine, version: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while engine.grant is None or engine.grant.version < version:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the engine has not reached version {version}")
        time.sleep(0.01)


def bench_view_memory(size_bytes: int, report: Report) -> None:
    """A sender of resident weights, of which a view is followed, and the receiver of the view under a cap:
    as bench_resident_memory. What the sender quantises a slice in is allowed, too (docs/views.md)."""
    specs = weights.specs(size_bytes, _COLUMNS)
    weights_bytes = sum(2 * int(np.prod(spec.shape)) for spec in specs)
    view = _view_of(specs)
    view_bytes = sum(tensor.nbytes for tensor in view.values())
    slice_bytes = view_bytes // len(specs)
    cap = staging_cap(view_bytes)
    with Cluster("bench") as cluster:
        sender = cluster.start_sender(0)
        receiver = cluster.start_receiver("engine", f"--view={_VIEW}", f"--staging-bytes={cap}", _OVER_CONNECTION)
        with dws.Trainer(sender.socket, "bench") as trainer, dws.Engine(receiver.socket) as engine:
            own = trainer.register(specs, views="numpy")
            weights.fill(own)
            changes = weights.Changes(own, _DENSITY)
            trainer.publish(1)
            engine.attach(view, timeout=WAIT_SECONDS)
            _await_version(engine, 1)
            for version in range(2, _VERSIONS + 2):
                changes.flip()
                trainer.publish(version)
                _await_version(engine, version)
            _repair(receiver)
            used = _peak_bytes(receiver) - view_bytes
            allowed = float(cap + _PROCESS_BYTES)
            report.add(
                "P13", "receiver of a view; the same; staging cap + 128 MiB",
                used / _MIB, allowed / _MIB, used / allowed, "MiB", 1.0,
            )  # fmt: skip
            retained = sender.metric("dws_sender_retained_bytes")
            retained += sender.metric("dws_sender_view_retained_bytes")
            used = _peak_bytes(sender) - weights_bytes
            allowed = weights_bytes + view_bytes + 2 * retained + slice_bytes + _SENDER_ALLOWANCE
            report.add(
                "P13", "sender; with a view; snapshots + 2 x retained of both + a slice + 256 MiB",
                used / _MIB, allowed / _MIB, used / allowed, "MiB", 1.0,
            )  # fmt: skip


def bench_ring_memory(size_bytes: int, report: Report) -> None:
    """A sender to which weights are handed through a ring of the default size; the ring counts."""
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

