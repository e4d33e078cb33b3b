"""Training on demand: four ranks train a small transformer on sequences of very different lengths, with FSDP2 over gloo, in
lock-step, and on demand; a rollout engine follows the run on demand; and a rank is killed on the way.

The ways take turns, step by step, with the same samples. Another run of FSDP2, with other microbatches, says how far two runs
of the same training drift apart. The killed rank's gloo group is lost with it, so all ranks start again from the checkpoint of
the step before, beside the same senders. Prints a line for each step, the plans, and a verdict; the exit status is 0 only when
every claim holds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Any, Optional, Sequence

from dws.balance import Outcome as PlanOutcome
from dws.balance import collectives, on_demand
from tests.integration.cluster import Cluster, Daemon
from tools.demo.on_demand.processes import Ended, Processes
from tools.demo.on_demand.settings import COST, FSDP2, LOCKSTEP, ON_DEMAND, SAMPLES, WAYS, lengths_of, plan_of
from tools.demo.on_demand.verdict import Findings, Lost, judge
from tools.demo.verdict import report
from tools.real.environment import Interpreter
from tools.real.torch_python import NoTorch, training_python

_SAY_SECONDS = 60.0
_LAST_SECONDS = 20.0  # until the engine has the last version


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/demo_on_demand.sh", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=24, help="(%(default)s)")
    parser.add_argument("--kill-step", type=int, help="the step in which a rank is killed (half of the steps)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (%(default)s)")
    parser.add_argument("--python", default="", help="with torch 2.9; by default that of $DWS_ENGINES/vllm")
    options = parser.parse_args(arguments)
    if not 2 <= options.ranks <= 16 or not 4 <= options.steps <= 1000:
        parser.error("expected 2 to 16 ranks, and 4 to 1000 steps")
    options.kill_step = options.kill_step or options.steps // 2
    if not 2 <= options.kill_step <= options.steps:
        parser.error(f"--kill-step must be 2 to {options.steps}: there has to be a checkpoint")
    return options


def _total(daemons: Sequence[Daemon], metric: str) -> float:
    """The sum of all samples of a metric on the pages of daemons."""
    total = 0.0
    for daemon in daemons:
        for line in daemon.page("/metrics").splitlines():
            if line.startswith((metric + "{", metric + " ")):
                total += float(line.rsplit(" ", 1)[1])
    return total


class Bytes:
    """What daemons have moved since it was asked last."""

    def __init__(self, senders: Sequence[Daemon], receiver: Daemon) -> None:
        self._metrics = {
            "gathered": (senders, "dws_sender_train_gathered_bytes_total"),
            "pulled": (senders, "dws_sender_train_pulled_bytes_total"),
            "to the engine": ([receiver], "dws_receiver_source_bytes_total"),
        }
        self._before = dict.fromkeys(self._metrics, 0.0)

    def since(self) -> str:
        found = []
        for name, (daemons, metric) in self._metrics.items():
            now = _total(daemons, metric)
            before, self._before[name] = self._before[name], now
            # A process that joins counts from 0.
            found.append(f"{(now - before if now >= before else now) / 1e6:.2f}")
        return " ".join(f"{each:>6}" for each in found)


class Demo:
    """One run; `run`, then `end`, also after a failure."""

    def __init__(self, options: argparse.Namespace, python: Interpreter, cluster: Cluster, lockstep: Cluster) -> None:
        self.options = options
        self._victim = options.ranks // 2
        self._folders = {"": cluster, "lockstep-": lockstep}
        for each in (cluster, lockstep):
            sockets = ",".join(f"unix:{each.folder}/sender-{rank}/d.sock" for rank in range(options.ranks))
            for rank in range(options.ranks):
                each.start_sender(rank, f"--train-peers={sockets}")
        receiver = cluster.start_receiver("engine")
        self._bytes = Bytes(cluster.senders, receiver)
        self.processes = Processes(python, os.environ["PYTHONPATH"].split(os.pathsep))
        self.processes.start_engine([f"--receiver={receiver.socket}"])
        self._checkpoints = os.path.join(cluster.folder, "checkpoints")
        self._losses: list[dict[str, float]] = []
        self._casts: dict[int, str] = {}
        self._seen: list[tuple[int, str]] = []

    def _start_ranks(self, first: int, version: int, kill_step: int) -> None:
        arguments = [f"--first={first}", f"--version={version}", f"--kill-step={kill_step}", f"--victim={self._victim}"]
        arguments += [f"--steps={self.options.steps}", f"--seed={self.options.seed}", f"--checkpoints={self._checkpoints}"]
        for prefix, cluster in self._folders.items():
            arguments += [f"--{prefix}sender={cluster.folder}/sender-{{rank}}/d.sock"]
            arguments += [f"--{prefix}job-id={cluster.job_id}"]
        self.processes.start_ranks(self.options.ranks, arguments)

    def _take(self, name: str, line: dict[str, Any]) -> None:
        """A line that is not about the end of something."""
        if "step" in line:
            self._losses.append(line["losses"])
            self._print_step(line)
        elif "sha256" in line and name == "engine":
            self._seen.append((line["version"], line["sha256"]))
        elif "sha256" in line:
            self._casts[line["version"]] = line["sha256"]

    def _print_step(self, line: dict[str, Any]) -> None:
        losses = " ".join(f"{line['losses'][way]:9.5f}" for way in WAYS)
        waited = [" ".join(f"{100 * each[way]:3.0f}" for each in line["waited"]) for way in (LOCKSTEP, ON_DEMAND)]
        seconds = line["seconds"]
        print(
            f"{line['step']:4} {line['version']:4} {losses}   {' | '.join(waited)}   "
            f"{' '.join(f'{seconds[way]:5.2f}' for way in (FSDP2, LOCKSTEP, ON_DEMAND))}   {self._bytes.since()}",
            flush=True,
        )

    def run(self) -> Findings:
        options = self.options
        print(f"{options.ranks} ranks, {SAMPLES} samples a rank and step; 'again' is FSDP2 with other microbatches")
        wide = 4 * options.ranks - 1
        print(
            f"{'step':>4} {'vers':>4} {' '.join(f'{way:>9}' for way in WAYS)}   "
            f"{'waited, %: in step':<{wide}} | {'on demand':<{wide}}   {'s: FSDP2, in step, od':<17}   MB: gathered, pulled, to the engine"
        )
        self._start_ranks(1, 1, options.kill_step)
        lost = self._until_killed()
        before = max(self._casts)
        print(f"rank {self._victim} is killed in step {options.kill_step}; all start again from the checkpoint before it", flush=True)
        self.processes.end_ranks()
        self._start_ranks(options.kill_step, before + 1, 0)
        done = 0
        while done < options.ranks:
            name, line = self.processes.next(_SAY_SECONDS)
            done += "done" in line
            self._take(name, line)
        self._until_engine_has(max(self._casts))
        return Findings(
            steps=options.steps,
            losses=self._losses,
            casts=self._casts,
            seen=self._seen,
            ranks=options.ranks,
            victim=self._victim,
            kill_step=options.kill_step,
            lost=lost,
            version_before=before,
            version_after=before + 1,
        )

    def _until_killed(self) -> dict[int, Lost]:
        """Kills the victim as soon as it is in the middle. Returns what the others said."""
        lost: dict[int, Lost] = {}
        killed = 0.0
        while len(lost) < self.options.ranks - 1:
            name, line = self.processes.next(_SAY_SECONDS, may_end=str(self._victim) if killed else "")
            if "middle" in line:
                time.sleep(0.5)  # the others are in it, too
                killed = time.time()
                self.processes.ranks[self._victim].popen.kill()
            elif "reason" in line:
                lost[int(name)] = Lost(line["lost"], line["when"] - killed, line["reason"])
            else:
                self._take(name, line)
        return lost

    def _until_engine_has(self, version: int) -> None:
        while all(seen != version for seen, _ in self._seen):
            self._take(*self.processes.next(_LAST_SECONDS))


def print_plans(options: argparse.Namespace) -> None:
    """What the plans would take by themselves, over all steps."""
    print("plan          bubble  beside lb_micro with collectives")
    minibatches = [lengths_of(step, options.ranks, options.seed) for step in range(1, options.steps + 1)]
    rows = {}
    for text, way, outcome in (
        ("lb_micro, collectives", FSDP2, collectives),
        ("lb_micro, on demand", FSDP2, on_demand),
        ("lb_mini, on demand", ON_DEMAND, on_demand),
    ):
        rows[text] = PlanOutcome.of_run(outcome(plan_of(way, each, options.ranks), each, COST) for each in minibatches)
    first = next(iter(rows.values()))
    for text, row in rows.items():
        print(f"{text:<22}{100 * row.bubble:6.1f} %{first.span / row.span:8.2f} x")


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        python = training_python(options.python)
    except NoTorch as error:
        sys.exit(f"tools/demo_on_demand.sh: {error}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    started = time.monotonic()
    demo: Optional[Demo] = None
    with Cluster("demo-on-demand") as cluster, Cluster("demo-lockstep") as lockstep:
        try:
            demo = Demo(options, python, cluster, lockstep)
            findings = demo.run()
        except Ended as error:
            print(cluster.logs() + lockstep.logs(), file=sys.stderr)
            print(f"FAILURE: {error}")
            return 1
        finally:
            if demo is not None:
                demo.processes.end()
    print_plans(options)
    success = report(judge(findings))
    print(f"{'SUCCESS' if success else 'FAILURE'}: the demo took {time.monotonic() - started:.0f} s")
    return 0 if success else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
