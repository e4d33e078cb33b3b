"""One rank of P24, by torchrun: trains the minibatches of each cell in all ways, one way after the other within each
minibatch. Rank 0 prints a line of JSON for each cell.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Sequence

import torch
import torch.distributed as dist

from tools.bench.training.cells import Cell
from tools.bench.training.slept_model import SleptModel
from tools.bench.training.ways import Alone, Fsdp2, Training, Way

ON_DEMAND, LOCKSTEP, FSDP2, ALONE = WAYS = ("on_demand", "lockstep", "fsdp2", "alone")
_TICKS = os.sysconf("SC_CLK_TCK")


def _daemon_seconds(pids: Sequence[int]) -> float:
    """CPU seconds so far, in all threads."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])  # user and system: fields 14 and 15 of proc(5)
    return total / _TICKS


def _summed(value: float) -> float:
    """Over all ranks."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


class Ranks:
    """The ways, and what each has used."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._pids: dict[str, list[int]] = {ON_DEMAND: options.senders, LOCKSTEP: options.lockstep_senders}
        torch.manual_seed(5)

        def model() -> SleptModel:
            return SleptModel(options.layers, options.width)

        self.ways: dict[str, Way] = {
            ON_DEMAND: Training(model(), options.sender, options.job_id, False),
            LOCKSTEP: Training(model(), options.lockstep_sender, options.lockstep_job_id, True),
            FSDP2: Fsdp2(model()),
            ALONE: Alone(model()),
        }

    def cell(self, cell: Cell) -> dict[str, dict[str, float]]:
        """By way: seconds; CPU seconds of all trainers and of all daemons; and the parts of a rank's time, in the mean over
        ranks. The first minibatch is trained once more before, to warm up."""
        found = {name: dict.fromkeys(("seconds", "trainers", "daemons"), 0.0) for name in WAYS}
        minibatches = cell.minibatches()
        before: dict[str, dict[str, float]] = {}
        for number, minibatch in enumerate([minibatches[0], *minibatches]):
            for name in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                dist.barrier()
                daemons, cpu, began = _daemon_seconds(self._pids.get(name, [])), time.process_time(), time.perf_counter()
                self.ways[name].train(minibatch)
                dist.barrier()
                if number == 0:
                    before[name] = dict(self.ways[name].parts)
                else:
                    found[name]["seconds"] += time.perf_counter() - began
                    found[name]["trainers"] += time.process_time() - cpu
                    found[name]["daemons"] += _daemon_seconds(self._pids.get(name, [])) - daemons
        for name in WAYS:
            found[name]["trainers"] = _summed(found[name]["trainers"])
            for part, seconds in self.ways[name].parts.items():
                found[name][part] = _summed(seconds - before[name][part]) / cell.ranks
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "job-id", "lockstep-sender", "lockstep-job-id"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--senders", type=json.loads, required=True, help="their process ids")
    parser.add_argument("--lockstep-senders", type=json.loads, required=True)
    parser.add_argument("--cells", type=json.loads, required=True, help="arguments of each Cell")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ranks = Ranks(options)
    for arguments in options.cells:
        found = ranks.cell(Cell(**arguments))
        if dist.get_rank() == 0:
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    dist.barrier()
    for way in ranks.ways.values():
        way.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
