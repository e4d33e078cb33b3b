"""The part of gpu_check that is a real job: a Llama-shaped model is trained on the GPU (AdamW, FP32 masters, BF16
weights), an engine on the same GPU never stops computing, and dws-sender and dws-receiver are between them.

Prints a JSON line a check, as gpu_check does: what trainer and engine wait for versions, where that time goes, and
whether all weights are equal at both ends. Each size of the model is a process of its own.

    python3 job_check.py --bin=bin                   # dws-sender, dws-receiver
    python3 job_check.py --bin=bin --section=fsdp    # the same with FSDP2, one process

It needs what torch_check.py needs.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from typing import Any, NamedTuple, Optional, Sequence

from tools.gpu_check.job import job_figures
from tools.gpu_check.job.job_engine import JobEngine
from tools.gpu_check.job.job_figures import Histogram, Pass, Span
from tools.gpu_check.result_lines import Limit, Lines, why_failed
from tools.gpu_check.torch_model import why_not

SIZES = {
    ("job", "cuda"): "0.9,2.8",
    ("job", "cpu"): "0.004",
    ("fsdp", "cuda"): "0.9",
    ("fsdp", "cpu"): "0.002",
}
DELTAS = {"job": 8, "fsdp": 4}
SIZE_SECONDS = 150  # of one size; it is ended then
VERSION_SECONDS = 60.0
GIB = 1 << 30
# What a parameter takes of the GPU's memory: the trainer's weights, masters, both moments and gradients in both types,
# the engine's weights, the sender's snapshot. And what contexts and buffers take.
PARAMETER_BYTES = 2 + 4 + 8 + 4 + 2 + 2 + 2
OTHER_BYTES = 12 * GIB
IDLE_SECONDS = 0.25  # after a version, in which the engine has the GPU for itself
SETTLE_SECONDS = 0.05  # until the engine has it for itself

# Limits are for models of at most so many parameters, on these devices with so many cores.
LIMIT_BILLIONS = 2.9
LIMIT_DEVICES = ("H100", "H200")
LIMIT_CORES = 16
STALL_MS = 20.0
PUBLISH_MS = 150.0
WAIT_MS = 4.2
FIRST_MS = 800.0
FULL_MS = 30.0
LISTED_STALL_MS = 5.0
LISTING_STEP_RATIO = 1.15
LISTED = 3  # steps and versions of each kind


class Published(NamedTuple):
    """A version that the receiver has committed. `span`: from the call of publish until the commit;
    `idle`: after it."""

    version: int
    span: Span
    idle: Span
    stall: float
    changed: float
    full: bool
    wire_bytes: int


class Daemons:
    """What both daemons have used so far."""

    def __init__(self, cluster: Any) -> None:
        self.processor = {d.name: _processor_seconds(d.process.pid) for d in cluster.daemons}
        self.stages: dict[str, Histogram] = {}
        for daemon in cluster.daemons:
            self.stages.update(job_figures.histograms(daemon.page("/metrics")))


def _processor_seconds(pid: int) -> float:
    """The CPU seconds of all threads, user and system."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def why_no_limits(lines: Lines, billions: float) -> str:
    """Returns why the figures of this run are not compared with their limits, which are in
    milliseconds; "": they are."""
    if lines.fake:
        return ""  # it skips the limits itself
    if lines.section != "job":
        return "its limit is for the section job"
    import torch

    name = torch.cuda.get_device_name()
    cores = len(os.sched_getaffinity(0))
    if not any(known in name for known in LIMIT_DEVICES) or cores < LIMIT_CORES:
        return f"its limit is for {' or '.join(LIMIT_DEVICES)} and {LIMIT_CORES} cores"
    if billions > LIMIT_BILLIONS:
        return f"its limit is for {LIMIT_BILLIONS} billion parameters or fewer"
    return ""


def free_bytes(device: str) -> Optional[int]:
    """Returns the size of the GPU's memory; None: there is no GPU."""
    if device == "cpu":
        return None
    import torch

    return int(torch.cuda.mem_get_info()[0])


class Job:
    """Trainer, engine and daemons. Lifecycle: made; started and run once; closed in any case."""

    def __init__(self, lines: Lines, programs: str) -> None:
        """Args:
        lines: of the section job or fsdp.
        """
        from tests.integration import cluster

        cluster.SENDER = os.path.join(programs, "dws-sender")
        cluster.RECEIVER = os.path.join(programs, "dws-receiver")
        self._lines = lines
        self._free = ""
        self._no_limits = ""
        self.cluster = cluster.Cluster("gpu-check")
        self.engine: Optional[JobEngine] = None
        self.training: Any = None

    def start(self, billions: float, device: str) -> None:
        from tools.gpu_check.job.llama_model import shape_of

        self._no_limits = why_no_limits(self._lines, billions)
        self.cluster.start_sender()
        receiver = self.cluster.start_receiver("receiver-0")
        self.engine = JobEngine(receiver.socket, billions, device)
        if self._lines.section == "fsdp":
            from tools.gpu_check.job.fsdp_training import FsdpTraining

            self.training = FsdpTraining(shape_of(billions), device)
        else:
            from tools.gpu_check.job.plain_training import PlainTraining

            self.training = PlainTraining(shape_of(billions), device)
        self.label = f"{self.training.parameters / 1e9:.3g} billion parameters"
        socket = self.cluster.senders[0].socket
        self.register_seconds = self.training.register(socket, "gpu-check")
        self.attach_seconds = self.engine.attached()
        if self._lines.section == "fsdp":
            self._report_share(device)
        free = free_bytes(device)
        self._free = "" if free is None else f"{free / GIB:.1f} GiB of the GPU were free before"

    def close(self, failed: bool) -> None:
        if failed:
            print(self.cluster.logs(15), file=sys.stderr)
        if self.engine is not None:
            self.engine.close()
        if self.training is not None:
            self.training.close()
        self.cluster.stop()

    def run(self, delta_count: int) -> None:
        """Every part is reported as soon as it has been measured."""
        begin = Daemons(self.cluster)
        self.training.step()
        first = self._publish(1)
        started = Daemons(self.cluster)
        self._report_first(first)
        self._report_stages("the first version", 1, begin, started)
        self._compare(1)

        started = Daemons(self.cluster)
        deltas = []
        for version in range(2, 2 + delta_count):
            self.training.step()
            deltas.append(self._publish(version))
            if version == 1 + delta_count // 2:
                self._compare(version)
        followed = Daemons(self.cluster)
        self._report_deltas(deltas)
        self._report_engine(deltas)
        self._report_stages("a delta", delta_count, started, followed)
        self._compare(deltas[-1].version)

        self.training.scale()
        scaled = self._change("all weights x 1.5", deltas[-1].version + 1)
        self.training.replace()
        replaced = self._change("other weights, full=True", scaled.version + 1, full=True)

        self.training.step()
        last = self._publish(replaced.version + 1)
        self._compare(last.version)
        if self._lines.section == "job":
            self._list_changes(last.version + 1)

    def _list_changes(self, version: int) -> None:
        """Steps whose cast lists what it changes, in turn with plain ones; then versions published with such lists."""
        self.training.listing_step()  # compiles the kernel, and lists for no version
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(2 * LISTED):
            listing = turn % 2 == 1
            step = self.training.listing_step if listing else self.training.step
            begin = time.monotonic()
            step()
            seconds[listing].append(time.monotonic() - begin)
        self._publish(version)
        stalls = []
        for version in range(version + 1, version + 1 + LISTED):
            stalls.append(self._publish(version, changes=self.training.listing_step()).stall)
        self._compare(version)
        plain, listed = (statistics.median(seconds[listing]) for listing in (False, True))
        note = f"{1e3 * listed:.2f} ms, a plain one {1e3 * plain:.2f} ms"
        limit = Limit(LISTING_STEP_RATIO, "the most that it may take", self._no_limits)
        name = f"P38 step whose cast lists what it changes, {self.label}"
        self._lines.measured(name, listed / plain, "of a plain step", limit, (), note)
        blocks = self.cluster.senders[0].metric("dws_sender_listed_blocks_total")
        note = f"{blocks / LISTED:.0f} blocks a version were taken from lists"
        self._measured("P38 trainer's stall for a listed delta", stalls, LISTED_STALL_MS, note)

    def _change(self, what: str, version: int, full: bool = False) -> Published:
        """Publishes a version in which every weight has changed, and reports it."""
        before = Daemons(self.cluster)
        changed = self._publish(version, full)
        after = Daemons(self.cluster)
        self._report_changed(what, changed)
        self._report_stages(what, 1, before, after)
        self._compare(version)
        return changed

    def _publish(self, version: int, full: bool = False, changes: Any = None) -> Published:
        begin = time.monotonic()
        options = {} if changes is None else {"changes": changes}
        stats = self.training.publisher.publish(
            version, timeout=VERSION_SECONDS, full=full, **options
        )
        returned = time.monotonic()
        waited = self.training.publisher.wait(version, policy="all", timeout=VERSION_SECONDS)
        end = time.monotonic()
        time.sleep(IDLE_SECONDS)
        return Published(
            version,
            Span(begin, end),
            Span(end + SETTLE_SECONDS, time.monotonic()),
            returned - begin,
            stats.changed_elements / max(1, stats.total_elements),
            stats.full,
            waited.wire_bytes,
        )

    def _compare(self, version: int) -> None:
        """All weights of both ends, while the trainer stands still."""
        from tools.gpu_check.job.llama_model import digest

        assert self.engine is not None
        held, of_engine = self.engine.digest()
        of_trainer = digest(self.training.weights())
        why = ""
        if held != version:
            why = f"the engine has version {held}"
        elif of_engine != of_trainer:
            why = f"SHA-256 of the engine's weights is {of_engine}, of the trainer's {of_trainer}"
        self._lines.checked(f"equal weights at both ends, version {version}, {self.label}", why)

    def _measured(
        self,
        name: str,
        seconds: Sequence[float],
        most_ms: Optional[float] = None,
        note: str = "",
    ) -> None:
        limit = None
        if most_ms is not None:
            limit = Limit(most_ms, "the most that it may take", self._no_limits)
        values = [1e3 * each for each in seconds]
        self._lines.measured(
            f"{name}, {self.label}",
            statistics.median(values),
            "ms",
            limit,
            values if len(values) > 1 else (),
            note,
        )

    def _report_share(self, device: str) -> None:
        name = f"no weight is copied to the host, {self.label}"
        if device == "cpu":
            self._lines.skipped(name, "the weights are on the host")
        else:
            self._lines.checked(name, self.training.why_on_host())

    def _report_first(self, first: Published) -> None:
        self._measured("registering the trainer's weights", [self.register_seconds])
        self._measured("attaching the engine's weights", [self.attach_seconds])
        whole = first.span.end - first.span.begin
        self._measured("P33 first version, publish to COMMITTED", [whole], FIRST_MS, self._free)
        self._measured("the first version: the trainer's stall", [first.stall])

    def _report_deltas(self, deltas: Sequence[Published]) -> None:
        changed = 100 * statistics.median(delta.changed for delta in deltas)
        size = statistics.median(delta.wire_bytes for delta in deltas)
        full = [delta.version for delta in deltas if delta.full]
        note = f"{changed:.2f} % changed, {size / 1e6:.1f} MB on the wire"
        if full:
            note += f"; full, not deltas: versions {full}"
        self._measured(
            "P30 trainer's stall for a delta", [delta.stall for delta in deltas], STALL_MS, note
        )
        self._measured(
            "P31 delta, publish to COMMITTED",
            [delta.span.end - delta.span.begin for delta in deltas],
            PUBLISH_MS,
        )

    def _report_engine(self, deltas: Sequence[Published]) -> None:
        """What the deltas took of the engine's time."""
        passes = self._engine_passes()
        waits = [job_figures.wait_for(passes, delta.version) for delta in deltas]
        seen = [wait for wait in waits if wait is not None]
        name = "P32 engine's wait at a commit of a delta"
        if seen:
            self._measured(name, seen, WAIT_MS)
        else:
            self._lines.checked(f"{name}, {self.label}", "the engine has seen no delta")
        name = "P35 engine's time lost to a delta, its wait included"
        usual = job_figures.usual_seconds(passes, [delta.idle for delta in deltas])
        if usual is None:
            why = f"no forward pass took less than {IDLE_SECONDS - SETTLE_SECONDS:.2f} s"
            self._lines.skipped(f"{name}, {self.label}", why)
            return
        lost = [job_figures.lost_seconds(passes, delta.span, usual) for delta in deltas]
        self._measured(name, lost, note=f"without, a forward pass takes {1e3 * usual:.2f} ms")

    def _report_changed(self, what: str, changed: Published) -> None:
        self._measured(
            f"P34 {what}: publish to COMMITTED",
            [changed.span.end - changed.span.begin],
            FULL_MS,
            f"published as {'whole tensors' if changed.full else 'a delta'}",
        )
        self._measured(f"{what}: the trainer's stall", [changed.stall])
        wait = job_figures.wait_for(self._engine_passes(), changed.version)
        if wait is not None:
            self._measured(f"{what}: the engine's wait", [wait])

    def _engine_passes(self) -> list[Pass]:
        assert self.engine is not None
        return self.engine.passes()

    def _report_stages(self, what: str, versions: int, before: Daemons, after: Daemons) -> None:
        """Processor time and what the daemons say of their stages, for each of so many versions."""
        for name, seconds in after.processor.items():
            used = (seconds - before.processor[name]) / versions
            daemon = "dws-sender" if name.startswith("sender") else "dws-receiver"
            self._measured(f"{what}: processor time of {daemon}", [used])
        for name, added in sorted(job_figures.since(before.stages, after.stages).items()):
            note = f"{added.observations:.0f} observations"
            self._measured(f"{what}: {name}", [added.seconds / versions], note=note)


def run_one(lines: Lines, programs: str, billions: float, device: str, delta_count: int) -> int:
    """One size, in its own process. Returns its exit status: 1 if it broke off; checks that failed are in its lines."""

    def too_late(*_: Any) -> None:
        raise TimeoutError(f"not done after {SIZE_SECONDS} s")

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(SIZE_SECONDS)
    free, needed = free_bytes(device), billions * 1e9 * PARAMETER_BYTES + OTHER_BYTES
    if free is not None and free < needed:
        why = f"the GPU has {free / GIB:.0f} GiB free of {needed / GIB:.0f} that it takes"
        lines.skipped(name_of(lines, billions), why)
        return 0
    job = Job(lines, programs)
    failed = True
    try:
        job.start(billions, device)
        job.run(delta_count)
        failed = False
        lines.passed(name_of(lines, billions))
    except Exception:  # any error is reported
        traceback.print_exc()
    finally:
        signal.alarm(0)
        job.close(failed)
    return 1 if failed else 0


def name_of(lines: Lines, billions: float) -> str:
    what = "the job with FSDP2" if lines.section == "fsdp" else "the job"
    return f"{what} of {billions:g} billion parameters, to its end"


def why_not_section(section: str, device: str) -> str:
    """Returns why none of it can run here; "": it can."""
    reason = why_not(device)
    if reason or section != "fsdp":
        return reason
    asking = "from torch.distributed.fsdp import fully_shard"
    asked = subprocess.run([sys.executable, "-c", asking], capture_output=True)
    return "this PyTorch has no fully_shard, which is in 2.6 and newer" if asked.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--bin", required=True, help="folder of dws-sender and dws-receiver")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--sizes", default="", help="billions of parameters, with commas between")
    parser.add_argument("--deltas", type=int, default=0, help="deltas of each size")
    parser.add_argument("--section", default="job", choices=("job", "fsdp"))
    parser.add_argument("--one", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    section, device = options.section, options.device
    lines = Lines(section, device)
    deltas = options.deltas or DELTAS[section]
    if options.one is not None:
        return run_one(lines, options.bin, options.one, device, deltas)
    reason = why_not_section(section, device)
    for size in map(float, (options.sizes or SIZES[section, device]).split(",")):
        if reason:
            lines.skipped(name_of(lines, size), reason)
            continue
        print(f"{section}: {size:g} billion parameters ...", file=sys.stderr)
        command = [__file__, f"--section={section}", f"--one={size}", f"--bin={options.bin}"]
        command += [f"--device={device}", f"--deltas={deltas}"]
        native = {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}
        why = why_failed(command, SIZE_SECONDS + 30, native)
        if why:
            lines.checked(name_of(lines, size), why)
    return 1 if lines.failed else 0


if __name__ == "__main__":
    sys.exit(main())
