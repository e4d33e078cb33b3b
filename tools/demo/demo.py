"""The demo: a disaggregated RL loop whose weights travel through DWS only.

One trainer (this process), a dws-sender for each trainer rank, and for each rollout engine a
dws-receiver and a process, or one for each of its tensor-parallel ranks. The trainer learns to sort
digits by policy gradient; the engines sample with weights that DWS patches while they run; rollouts
come back over pipes. Prints a row for each version and a verdict; the exit status is 0 only when
every claim holds.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from typing import Any, Optional, Sequence

import torch

from tests.integration.cluster import Cluster, Daemon
from tools.demo import task
from tools.demo.inbox import Inbox, as_batch
from tools.demo.learner import LEARNING_RATE
from tools.demo.options import CONFIG, parse, run_with_fsdp2
from tools.demo.publisher import receiver_versions
from tools.demo.rollout_engine import EngineOptions, run_engine
from tools.demo.table import Table
from tools.demo.trainer import Trainer, TrainerOptions
from tools.demo.verdict import Findings, judge, report

JOB = "demo"
PROMPTS = 8
GROUP_SIZE = 8
ROLLOUTS_PER_STEP = 2
# Rollouts may be sampled with the weights of this many versions before the newest.
LAG_MAX = 1
ROLLOUT_SECONDS = 60.0
CHECKS = 4


class Demo:
    """One run, step by step; `finish` also after a failure."""

    def __init__(self, options: argparse.Namespace, cluster: Cluster) -> None:
        self.options = options
        self.cluster = cluster
        self.processes: list[Any] = []  # of all engines
        self.pipes: list[Any] = []  # to each engine's first rank
        torch.set_num_threads(1)  # several would spin at each other's barriers on a busy machine
        self.sockets = [cluster.start_sender(rank).socket for rank in range(options.ranks)]
        self.trainer = self._make_trainer()
        for index in range(options.engines):
            self._start_engine(index, cluster.start_receiver(f"engine-{index}"))
        self.inbox = Inbox(self.pipes, self.trainer.expected.tokens)

    def _make_trainer(self) -> Any:
        options = TrainerOptions(
            sockets=self.sockets,
            job_id=JOB,
            config=CONFIG,
            seed=self.options.seed,
            engine_ranks=self.options.engine_tp,
            store=os.path.join(self.cluster.folder, "ranks"),
        )
        if self.options.trainer == "plain":
            return Trainer(options)
        from tools.demo.fsdp2 import Fsdp2Trainer  # Debian's torch has no FSDP2

        return Fsdp2Trainer(options)

    def _start_engine(self, index: int, receiver: Daemon) -> None:
        flip = self.options.flip_bit and index == 0
        options = EngineOptions(
            name=receiver.name,
            socket=receiver.socket,
            config=CONFIG,
            seed=self.options.seed * 1000 + index,
            prompts=PROMPTS,
            group_size=GROUP_SIZE,
            check_every=max(1, self.options.steps // CHECKS),
            ranks=self.options.engine_tp,
            store=os.path.join(receiver.folder, "ranks"),
            flip_at=self.options.steps // 2 if flip else None,
        )
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        for rank in range(options.ranks):
            pipe = theirs if rank == 0 else None
            name = f"{receiver.name} rank {rank}"
            process = context.Process(target=run_engine, args=(options, rank, pipe), name=name)
            process.start()
            self.processes.append(process)
        theirs.close()
        self.pipes.append(ours)

    def warm_up(self) -> None:
        print(
            f"policy of {self.trainer.parameter_count / 1e6:.1f} M parameters; "
            f"{self.options.warm_up} supervised steps, then {self.options.steps} of policy "
            f"gradient at learning rate {LEARNING_RATE:g}"
        )
        started = time.monotonic()

        def report(step: int, loss: float) -> None:
            seconds = time.monotonic() - started
            print(f"  warm-up step {step}: loss {loss:.3f} after {seconds:.0f} s", flush=True)

        self.trainer.warm_up(self.options.warm_up, report)

    def train(self) -> Findings:
        """Publishes the warmed-up weights as version 1 and a version after each step."""
        table = Table(2 * self.trainer.parameter_count, self.inbox)  # BF16
        last = self.options.steps + 1
        published = self.trainer.publish(1)
        for version in range(2, last + 1):
            # Rollouts may be sampled with the version before the newest, so that nothing waits.
            oldest = max(1, version - 1 - LAG_MAX)
            rollouts = self.inbox.take(ROLLOUTS_PER_STEP, oldest, ROLLOUT_SECONDS)
            self.trainer.improve(*as_batch(rollouts), GROUP_SIZE)
            table.add(published, self.trainer.wait(version - 1))
            published = self.trainer.publish(version)
            table.show()
        table.add(published, self.trainer.wait(last))
        for pipe in self.pipes:
            pipe.send(last)
        self.inbox.wait_finished(len(self.pipes), ROLLOUT_SECONDS)
        table.show(everything=True)
        return Findings(
            engines=len(self.pipes),
            last_version=last,
            rewards=[self.inbox.reward(version) for version in range(1, last + 1)],
            hashes=self.trainer.expected.hashes,
            checks=self.inbox.checks,
            finished=self.inbox.finished,
            receiver_versions=receiver_versions(self.sockets),
            accepted=self.inbox.accepted,
            rejected=self.inbox.rejected,
        )

    def finish(self) -> None:
        """Ends the processes of engines and trainer, politely where they still listen."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self.trainer.close()


def run(options: argparse.Namespace, cluster: Cluster) -> bool:
    """Runs the demo. Returns whether every claim holds."""
    demo: Optional[Demo] = None
    try:
        demo = Demo(options, cluster)
        demo.warm_up()
        findings = demo.train()
    except Exception:  # not SystemExit: the daemons are not at fault
        print(cluster.logs(), file=sys.stderr)
        raise
    finally:
        if demo is not None:
            demo.finish()
    return report(judge(findings))


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments, __doc__.splitlines()[0])
    if options.trainer == "fsdp2":
        run_with_fsdp2(options.python, arguments)
    # Stopping the demo (timeout, a CI job) stops its daemons and engines, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    started = time.monotonic()
    with Cluster(JOB, keep=options.keep) as cluster:
        success = run(options, cluster)
        if options.keep:
            for daemon in cluster.daemons:
                assert daemon.process is not None
                print(f"kept {daemon.name}: pid {daemon.process.pid}, socket {daemon.socket}")
            dwsctl = os.environ.get("DWSCTL", "dwsctl")
            print(f"look at them with: {dwsctl} status --socket SOCKET; logs in {cluster.folder}")
    seconds = time.monotonic() - started
    print(f"{'SUCCESS' if success else 'FAILURE'}: the demo took {seconds:.0f} s")
    return 0 if success else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
