"""A rank of training on demand that on_demand_faults.py disturbs. Says on stdout, in lines of JSON, what has happened. With
--hold=POINT@STEP it says so when it comes to that point, and waits there for a line on stdin.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from typing import Any, Callable

import torch
import torch.distributed as dist

import dws
from dws.on_demand.member import Member
from dws.on_demand.traffic import Traffic
from tools.demo.on_demand.processes import say
from tools.real.trainers import on_demand_engine
from tools.real.trainers.on_demand_run import Run, batch, lb_mini, load, save


class Holds:
    """Where this rank waits; `reach` does so once."""

    def __init__(self, texts: list[str]) -> None:
        self._armed = set(texts)
        self.step = 0

    def reach(self, point: str) -> None:
        name = f"{point}@{self.step}"
        if name not in self._armed:
            return
        self._armed.remove(name)
        say(at=point, step=self.step, when=time.time())
        sys.stdin.readline()

    def around(self, owner: type, method: str, before: str = "", after: str = "") -> None:
        """Makes each call of the method reach these points."""
        plain: Callable[..., Any] = getattr(owner, method)

        def call(*arguments: Any, **named: Any) -> Any:
            self.reach(before)
            result = plain(*arguments, **named)
            self.reach(after)
            return result

        setattr(owner, method, call)


def step(run: Run, holds: Holds, number: int) -> None:
    holds.step = number
    minibatch = batch(number)
    losses: list[float] = []
    for attempt in run.od.minibatch(lb_mini(minibatch)):
        mine = []
        with attempt:
            for samples in attempt.microbatches:
                mine.append(run.microbatch(minibatch, samples))
            holds.reach("finish")
            decision = attempt.finish()
        losses = mine or losses  # none: the step was decided while the sender was away
    holds.reach("decided")
    run.step()
    say(step=number, loss=math.fsum(losses).hex(), norm=decision.norm.hex(), exact=decision.exact, version=run.od.version)


def say_casts(run: Run) -> None:
    """A collective call."""
    weights = {name: each.full_tensor() for name, each in run.model.named_parameters()}
    if dist.get_rank() == 0:
        stream = run.od.publisher.trainer.stream.incarnation
        say(casts=on_demand_engine.digests(weights), version=run.od.version, stream=stream)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "job-id", "checkpoints"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("first", "steps", "version"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--digests", action="store_true", help="what engines have to have of each version")
    parser.add_argument("--hold", action="append", default=[])
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    holds = Holds(options.hold)
    holds.around(Member, "settle", before="gather")
    holds.around(Traffic, "push", after="push")

    def abandoned(error: dws.MinibatchAbandonedError) -> None:
        say(lost=getattr(error, "rank", None), when=time.time(), reason=str(error), step=holds.step)

    run = Run(options, start=False, exact=True, on_abandoned=abandoned)
    if options.first:
        load(run.model, run.optimizer, os.path.join(options.checkpoints, f"before-{options.first}"))
    run.od.start(options.version)
    if options.digests:
        say_casts(run)
    for number in range(options.first, options.steps):
        step(run, holds, number)
        if options.digests:
            say_casts(run)
        save(run.model, run.optimizer, os.path.join(options.checkpoints, f"before-{number + 1}"))
    say(done=True)
    sys.stdin.readline()
    os._exit(0)  # without the end of the process group, for which ranks would wait in turn


if __name__ == "__main__":
    main()
