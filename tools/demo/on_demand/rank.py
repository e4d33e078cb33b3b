"""One rank of the demo: trains in all ways, a step of each in turn, and saves a checkpoint after each step. Says on stdout, in
lines of JSON, what has happened.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tools.demo.on_demand.model import Minibatch
from tools.demo.on_demand.processes import say
from tools.demo.on_demand.settings import AGAIN, FSDP2, LOCKSTEP, ON_DEMAND
from tools.demo.on_demand.ways import Fsdp2, OnDemand, Way
from tools.demo.weights_hash import weights_sha256

_KILL_SECONDS = 120.0  # until a rank that is to be killed gives up


class Rank:
    """This process: all ways, from step `first` on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        common = (self.ranks, self.rank, options.seed)
        self.on_demand = OnDemand(ON_DEMAND, *common, options.sender, options.job_id)
        lockstep = OnDemand(LOCKSTEP, *common, options.lockstep_sender, options.lockstep_job_id)
        self.ways: list[Way] = [Fsdp2(FSDP2, *common), Fsdp2(AGAIN, *common), lockstep, self.on_demand]
        if options.first > 1:
            self._load()
        for way in self.ways:
            way.start(options.version)
        self._say_cast()

    def _path(self, step: int) -> str:
        return os.path.join(self.options.checkpoints, f"step-{step}")

    def _state(self) -> dict[str, Any]:
        found = {}
        for way in self.ways:
            weights, optimizer = get_state_dict(way.model, way.optimizer)
            found[way.name] = {"model": weights, "optimizer": optimizer}
        return found

    def _load(self) -> None:
        state = self._state()
        checkpoints.load(state, checkpoint_id=self._path(self.options.first - 1))
        for way in self.ways:
            of_way = state[way.name]
            set_state_dict(
                way.model, way.optimizer, model_state_dict=of_way["model"], optim_state_dict=of_way["optimizer"]
            )

    def _say_cast(self) -> None:
        """The digest of the weights that were published last, of this side's own cast."""
        named: Any = self.on_demand.model.named_parameters()
        cast = [(name, each.full_tensor().detach().to(torch.bfloat16)) for name, each in named]
        if self.rank == 0:
            say(version=self.on_demand.od.version, sha256=weights_sha256(cast))

    def _in_minibatch(self) -> None:
        """The victim waits here for its end."""
        if self.rank == self.options.victim:
            say(middle=True)
            time.sleep(_KILL_SECONDS)

    def step(self, step: int) -> None:
        minibatch = Minibatch(step, self.ranks, self.options.seed)
        to_kill = step == self.options.kill_step
        self.on_demand.in_minibatch = self._in_minibatch if to_kill else lambda: None
        losses = {}
        for way in self.ways:
            dist.barrier()
            mine = way.train(minibatch)
            if to_kill and way is self.on_demand:
                self._say_lost()
            of_ranks: list[Any] = [None] * self.ranks
            dist.all_gather_object(of_ranks, mine)
            by_sample = {sample: loss for each in of_ranks for sample, loss in each.items()}
            assert len(by_sample) == len(minibatch.lengths), by_sample
            losses[way.name] = sum(by_sample[sample] for sample in sorted(by_sample))
        shares: list[Any] = [None] * self.ranks
        waited = {way.name: way.waited / way.seconds for way in self.ways if way.waited is not None}
        dist.all_gather_object(shares, waited)
        self._say_cast()
        checkpoints.save(self._state(), checkpoint_id=self._path(step))
        if self.rank == 0:
            seconds = {way.name: way.seconds for way in self.ways}
            say(step=step, losses=losses, seconds=seconds, waited=shares, version=self.on_demand.od.version)

    def _say_lost(self) -> None:
        """Names the rank that was killed. Then this process waits for its own end."""
        lost = self.on_demand.lost
        say(lost=getattr(lost, "rank", None), when=time.time(), reason=str(lost))
        time.sleep(_KILL_SECONDS)
        sys.exit("nobody has ended this process")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "job-id", "lockstep-sender", "lockstep-job-id", "checkpoints"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("steps", "first", "version", "seed", "kill-step", "victim"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = Rank(options)
    for step in range(options.first, options.steps + 1):
        rank.step(step)
    dist.barrier()
    say(done=True)
    sys.stdin.read()  # weights stay with the senders until the engine has them
    for way in rank.ways:
        way.close()
    os._exit(0)  # without the process group's end, for which ranks would wait in turn


if __name__ == "__main__":
    main()
