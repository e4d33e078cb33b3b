"""P24: samples a second of training on demand with the plans of lb_mini, beside the same in lock-step and plain FSDP2 over
gloo, both with those of lb_micro, and beside what the plans would take without communication.

Compute is a sleep of a s^2 + b s for each microbatch, so that ranks can outnumber cores; parameters, gradients, FSDP2, daemons
and transfers are real. The ways take turns within each minibatch. CSV on stdout and nothing else, the same as a table with the
bars on stderr. Without torch 2.9 it is skipped, and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from typing import Iterator, Sequence

from dws.balance import Outcome
from tests.integration.cluster import Cluster
from tools.bench.daemons.report import Report
from tools.bench.training.cells import Cell
from tools.real.environment import Interpreter
from tools.real.torch_python import NoTorch, training_python

_RANKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_ranks.py")
_END_SECONDS = 60.0
_BAR_SAMPLES = 4  # a rank, of the cells with bars
_SPAN_BAR, _FSDP2_BAR, _BALANCED_BAR = 0.95, 1.3, 1.0
_NAMES = {"on_demand": "on demand", "lockstep": "lock-step", "fsdp2": "FSDP2/gloo", "alone": "no communication"}
Found = dict[str, dict[str, float]]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench.sh on_demand training", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--ranks", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--samples", default="1,2,4,8", help="a rank in a minibatch (%(default)s)")
    parser.add_argument("--minibatches", type=int, default=12, help="of each cell (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a minibatch by the plan (%(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--width", type=int, default=384, help="a layer has 4 width^2 weights (%(default)s)")
    parser.add_argument("--python", default="", help="with torch 2.9; by default that of $DWS_ENGINES/vllm")
    options = parser.parse_args(arguments)
    try:
        options.samples = [int(each) for each in options.samples.split(",")]
    except ValueError:
        parser.error(f"--samples={options.samples}: expected numbers with commas between them")
    ranges = {"ranks": (2, 256), "minibatches": (1, 1000), "layers": (1, 1000), "width": (16, 16_384)}
    for name, (least, most) in ranges.items():
        if not least <= getattr(options, name) <= most:
            parser.error(f"--{name} must be {least} to {most}")
    if not all(1 <= each <= 256 for each in options.samples) or not 0 < options.seconds <= 60:
        parser.error("expected 1 to 256 samples a rank, and minibatches of at most 60 seconds")
    return options


def _cells(options: argparse.Namespace) -> list[Cell]:
    kinds = [(samples, False) for samples in options.samples] + [(_BAR_SAMPLES, True)]
    return [Cell(options.ranks, samples, balanced, options.minibatches, options.seconds) for samples, balanced in kinds]


def _start_senders(cluster: Cluster, ranks: int) -> list[int]:
    """Their process ids."""
    sockets = ",".join(f"unix:{cluster.folder}/sender-{rank}/d.sock" for rank in range(ranks))
    pids = []
    for rank in range(ranks):
        daemon = cluster.start_sender(rank, f"--train-peers={sockets}")
        assert daemon.process is not None
        pids.append(daemon.process.pid)
    return pids


def _run(options: argparse.Namespace, python: Interpreter, cells: Sequence[Cell]) -> Iterator[Found]:
    """What came of each cell, as soon as it is known."""
    modules = os.environ["PYTHONPATH"].split(os.pathsep)
    environment = {**python.variables(modules), "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(Cluster(job)) for job in ("on-demand", "lockstep")]
        pids = [_start_senders(cluster, options.ranks) for cluster in clusters]
        command = [python.path, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}", _RANKS]
        command += [f"--layers={options.layers}", f"--width={options.width}"]
        command += [f"--cells={json.dumps([dataclasses.asdict(cell) for cell in cells])}"]
        for prefix, cluster, of_cluster in zip(("", "lockstep-"), clusters, pids):
            command += [f"--{prefix}sender={cluster.folder}/sender-{{rank}}/d.sock", f"--{prefix}job-id={cluster.job_id}"]
            command += [f"--{prefix}senders={json.dumps(of_cluster)}"]
        trainer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        stack.callback(_end, trainer)
        assert trainer.stdout is not None
        for _ in cells:
            line = trainer.stdout.readline()
            if not line:
                print("".join(cluster.logs() for cluster in clusters), file=sys.stderr)
                sys.exit(f"the trainers ended with status {trainer.wait()}")
            yield json.loads(line)
        if trainer.wait(60) != 0:
            sys.exit(f"the trainers ended with status {trainer.returncode}")


def _end(launcher: subprocess.Popen[str]) -> None:
    """Ends torchrun, which ends its ranks: they have sessions of their own."""
    launcher.terminate()
    try:
        launcher.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()


def _add(report: Report, cell: Cell, found: Found) -> None:
    """The figures of a cell."""
    micro, mini = cell.outcomes()
    samples = cell.count * cell.ranks * cell.samples
    rates = {name: samples / of_way["seconds"] for name, of_way in found.items()}
    ours = rates["on_demand"]
    barred = cell.samples == _BAR_SAMPLES
    uneven = barred and not cell.balanced

    def add(number: str, what: str, rate: float, reference: float, bar: float | None) -> None:
        report.add(number, f"{cell.name}; {what}", rate, reference, rate / reference, "samples/s", at_least=bar)

    add("P24a" if uneven else "span", "on demand; the plan's span", ours, samples / mini.span, _SPAN_BAR if uneven else None)
    plans = micro.span / mini.span
    number = "P24c" if cell.balanced else "P24b" if barred else "rate"
    bars = {"lockstep": plans, "fsdp2": _FSDP2_BAR} if uneven else dict.fromkeys(("lockstep", "fsdp2"), _BALANCED_BAR)
    for name, bar in bars.items():
        add(number, f"on demand; {_NAMES[name]}", ours, rates[name], bar if barred else None)
    _add_context(report, cell, found, (micro, mini))


def _add_context(report: Report, cell: Cell, found: Found, outcomes: tuple[Outcome, Outcome]) -> None:
    """What has no bar: the other ways beside their plan, and CPU time."""
    micro, mini = outcomes
    samples = cell.count * cell.ranks * cell.samples
    rates = {name: samples / of_way["seconds"] for name, of_way in found.items()}
    at_mini, at_micro = samples / mini.span, samples / micro.span
    report.add("plans", f"{cell.name}; lb_mini on demand; lb_micro", at_mini, at_micro, at_mini / at_micro, "samples/s")
    for name in ("lockstep", "fsdp2"):
        case = f"{cell.name}; {_NAMES[name]}; its plan's span"
        report.add("span", case, rates[name], at_micro, rates[name] / at_micro, "samples/s")
    case = f"{cell.name}; {_NAMES['alone']}; the plan's span of lb_mini"
    report.add("span", case, rates["alone"], at_mini, rates["alone"] / at_mini, "samples/s")
    for name, of_way in found.items():
        for who in ("trainers", "daemons") if name in ("on_demand", "lockstep") else ("trainers",):
            used, reference = (each / cell.count for each in (of_way[who], found["fsdp2"]["trainers"]))
            case = f"{cell.name}; {_NAMES[name]}; {who}; FSDP2's trainers"
            report.add("cpu", case, used, reference, used / reference, "CPU s each")
    for name in ("on_demand", "lockstep"):
        for part in ("gather", "push", "barrier", "decision", "optimizer", "publish"):
            seconds, of = found[name][part] / cell.count, found[name]["seconds"] / cell.count
            report.add("part", f"{cell.name}; {_NAMES[name]}; {part}; the minibatch", seconds, of, seconds / of, "s a rank")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    try:
        python = training_python(options.python)
    except NoTorch as error:
        if options.python:
            sys.exit(f"P24: {error}")
        print(f"P24: skipped: {error}", file=sys.stderr)
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    report = Report()
    cells = _cells(options)
    for cell, found in zip(cells, _run(options, python, cells)):
        _add(report, cell, found)
        print(f"{cell.name}: load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    report.print_table()


if __name__ == "__main__":
    main()
