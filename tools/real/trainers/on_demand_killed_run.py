"""A rank of training on demand is killed in the middle of a minibatch: the others name it within 2 s and keep their weights.
Then the whole job starts again, beside the same senders.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from typing import Sequence

import torch
import torch.distributed as dist

import dws
from tools.demo.on_demand.processes import rank_environments
from tools.real.trainers import on_demand_run
from tools.real.trainers.on_demand_run import Run, batch, one_rank_idle, whole

RANKS = 3
LOST = 2
SECONDS_MAX = 2.0
_WAIT_SECONDS = 120.0


def rank_main(options: argparse.Namespace) -> None:
    """One rank: two steps, then the minibatch in which rank LOST is killed."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    lost: list[tuple[float, dws.MinibatchAbandonedError]] = []
    run = Run(options, on_abandoned=lambda error: lost.append((time.time(), error)))
    run.steps(2, on_demand_run.lb_mini)
    before, version = whole(run.model), run.od.version
    if options.ends:
        print(f"trained to version {version}", flush=True)
        run.close()
        return
    minibatch = batch(2)
    for attempt in run.od.minibatch(one_rank_idle(minibatch)):
        if lost:
            break  # it would wait for the rank that is gone
        with attempt:
            for samples in attempt.microbatches:
                run.microbatch(minibatch, samples)
                if dist.get_rank() == LOST:
                    print("in the middle", flush=True)
                    time.sleep(_WAIT_SECONDS)
            attempt.finish()
    when, error = lost[0]
    assert isinstance(error, dws.RankLostError) and error.rank == LOST, repr(error)
    assert run.od.version == version
    for name, each in run.model.state_dict().items():
        assert torch.equal(each.to_local(), before[name][_rows(each)]), name
        assert each.grad is None
    print(f"lost {when} {error}", flush=True)


def _rows(cut: torch.Tensor) -> slice:
    """The rows that this rank has of a DTensor."""
    each = -(-cut.shape[0] // dist.get_world_size())
    return slice(each * dist.get_rank(), min(each * (dist.get_rank() + 1), cut.shape[0]))


class Ranks:
    """The processes of all ranks."""

    def __init__(self, arguments: Sequence[str]) -> None:
        command = [sys.executable, os.path.abspath(__file__), *arguments]
        self.processes = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            for environment in rank_environments(RANKS, os.environ)
        ]

    def line(self, rank: int, begin: str) -> str:
        """The rest of the rank's line with that begin."""
        output = self.processes[rank].stdout
        assert output is not None
        for line in output:
            if line.startswith(begin):
                return line[len(begin) :].strip()
        raise AssertionError(f"rank {rank} ended without '{begin}'")

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "job-id"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("receiver", "seen", "dtype"):  # other cases need them
        parser.add_argument(f"--{name}")
    parser.add_argument("--ends", action="store_true")
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options)
        return
    arguments = [f"--sender={options.sender}", f"--job-id={options.job_id}"]
    ranks = Ranks(arguments)
    try:
        ranks.line(LOST, "in the middle")
        time.sleep(0.5)
        killed = time.time()
        os.kill(ranks.processes[LOST].pid, signal.SIGKILL)
        slowest, reason = 0.0, ""
        for rank in range(RANKS):
            if rank != LOST:
                when, reason = ranks.line(rank, "lost ").split(maxsplit=1)
                slowest = max(slowest, float(when) - killed)
        assert 0 < slowest <= SECONDS_MAX, slowest
    finally:
        ranks.end()
    ranks = Ranks([*arguments, "--ends"])
    try:
        version = {ranks.line(rank, "trained to version ") for rank in range(RANKS)}
    finally:
        ranks.end()
    assert version == {"3"}, version
    print(f"ok: the others told after {slowest:.3f} s: {reason}; the job started again")


if __name__ == "__main__":
    main()
