"""What publishing costs a step of training on demand: two ranks with 32 MiB of BF16 each, first alone, then with two engines that
follow every version. The engines have to have the trainer's bits at the end; times are printed, and judged by people.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import sys
import time
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import nn

import dws
from tests.integration.cluster import Cluster
from tools.demo.engine_versions import new_versions
from tools.demo.on_demand.processes import Process, Said, rank_environments, say
from tools.real.trainers import models

RANKS = 2
ENGINES = 2
WIDTH = 1024
LAYERS = 32  # 32 Mi weights
WARM_UP = 3
STEPS = 20
COMPUTE_SECONDS = 0.3
SAY_SECONDS = 120.0
BAR = 1.2  # P6
PARTS = ("step", "publish", "cast", "copy")


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


def _timed(what: Any) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


class Rank:
    def __init__(self, options: argparse.Namespace) -> None:
        self.model = make_model()
        self.od = dws.on_demand.Training(options.sender, options.job_id, timeout=60)
        self.od.fully_shard(self.model, units=list(self.model), param_dtype=torch.bfloat16)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        own = sum(each.to_local().numel() for each in self.model.parameters())  # type: ignore[attr-defined]
        self._weights = torch.zeros(own)
        self._cast, self._copied = (torch.zeros(own, dtype=torch.bfloat16) for _ in range(2))

    def step(self) -> dict[str, float]:
        """Seconds of the step, of its publish, and of casting and of copying as many weights."""
        began = time.perf_counter()
        for attempt in self.od.minibatch([[(rank,)] for rank in range(RANKS)]):
            with attempt:
                for _ in attempt.microbatches:
                    time.sleep(COMPUTE_SECONDS)
                    self.model(torch.ones(1, WIDTH, dtype=torch.bfloat16)).float().square().mean().backward()
                attempt.finish()
        self.od.clip(1.0)
        self.optimizer.step()
        publish = _timed(self.od.publish)
        step = time.perf_counter() - began
        cast = _timed(lambda: self._cast.copy_(self._weights))
        copy = _timed(lambda: self._copied.copy_(self._cast))
        return {"step": step, "publish": publish, "cast": cast, "copy": copy}

    def run(self) -> None:
        for _ in range(WARM_UP):
            self.step()
        for followed in (False, True):
            found = [self.step() for _ in range(STEPS)]
            say(followed=followed, version=self.od.version, **{part: [each[part] for each in found] for part in PARTS})
            sys.stdin.readline()  # until engines follow
        weights = {name: each.full_tensor().to(torch.bfloat16) for name, each in self.model.named_parameters()}  # type: ignore[attr-defined]
        say(sha256=models.digest(weights))
        sys.stdin.readline()


def follow(options: argparse.Namespace) -> None:
    """An engine: says each version, and the digest of the last one."""
    tensors: Any = {name: torch.zeros_like(each, dtype=torch.bfloat16) for name, each in make_model().named_parameters()}
    with dws.Engine(options.receiver) as engine:
        views = engine.attach(tensors, timeout=120)
        for grant in new_versions(engine):
            last = grant.version == options.last
            say(sees=grant.version, **({"sha256": models.digest(views)} if last else {}))


class Job:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._said: queue.Queue[tuple[str, Optional[Said]]] = queue.Queue()
        self._lines: list[Said] = []
        self.ranks: list[Process] = []
        self.engines: list[Process] = []

    def _command(self, role: str, *options: str) -> list[str]:
        return [sys.executable, os.path.abspath(__file__), f"--role={role}", f"--job-id={self._cluster.job_id}", *options]

    def start_ranks(self) -> None:
        peers = ",".join(f"unix:{self._cluster.folder}/sender-{rank}/d.sock" for rank in range(RANKS))
        for rank in range(RANKS):
            self._cluster.start_sender(rank, f"--train-peers={peers}")
        command = self._command("rank", f"--sender={self._cluster.folder}/sender-{{rank}}/d.sock")
        for rank, environment in enumerate(rank_environments(RANKS, os.environ)):
            self.ranks.append(Process(f"rank-{rank}", command, environment, self._said))

    def start_engines(self, last: int) -> None:
        for index in range(ENGINES):
            receiver = self._cluster.start_receiver(f"receiver-{index}")
            command = self._command("engine", f"--receiver={receiver.socket}", f"--last={last}")
            self.engines.append(Process(receiver.name, command, dict(os.environ), self._said))

    def hear(self, what: str, count: int, value: Any = None) -> list[Said]:
        """So many lines that have it. Others are kept for the next call."""
        while True:
            found = [line for line in self._lines if what in line and (value is None or line[what] == value)]
            if len(found) >= count:
                self._lines = [line for line in self._lines if line not in found]
                return found
            name, line = self._said.get(timeout=SAY_SECONDS)
            assert line is not None, f"{name} has ended"
            self._lines.append(line)

    def go_on(self) -> None:
        for rank in self.ranks:
            assert rank.popen.stdin is not None
            rank.popen.stdin.write("\n")
            rank.popen.stdin.flush()

    def end(self) -> None:
        for process in (*self.ranks, *self.engines):
            process.end()


def figures(lines: list[Said]) -> dict[str, tuple[float, float]]:
    """By part, the median of all steps and ranks and the least, in milliseconds."""
    found = {part: [each * 1e3 for line in lines for each in line[part]] for part in PARTS}
    return {part: (statistics.median(each), min(each)) for part, each in found.items()}


def check() -> str:
    with Cluster("publish") as cluster:
        job = Job(cluster)
        try:
            job.start_ranks()
            alone = job.hear("followed", RANKS)
            last = alone[0]["version"] + STEPS
            job.start_engines(last)
            job.hear("sees", ENGINES, alone[0]["version"])
            job.go_on()
            followed = job.hear("followed", RANKS)
            seen = job.hear("sha256", ENGINES)
            job.go_on()
            wanted = job.hear("sha256", RANKS)
            assert {line["sha256"] for line in seen} == {line["sha256"] for line in wanted}, (seen, wanted)
        except BaseException:
            print(cluster.logs(), file=sys.stderr)
            raise
        finally:
            job.end()
    texts, steps = [], []
    for name, lines in (("alone", alone), (f"with {ENGINES} engines", followed)):
        of = figures(lines)
        stall, least = ((of["publish"][i] - of["cast"][i]) / of["copy"][i] for i in (0, 1))
        steps.append(of["step"][0])
        parts = ", ".join(f"{part} {median:.1f} (least {low:.1f})" for part, (median, low) in of.items())
        verdict = "kept" if stall <= BAR else "missed"
        texts.append(f"{name}, ms: {parts}; publish without its cast is {stall:.2f} copies (least {least:.2f}), bar {BAR} {verdict}")
    return f"{'; '.join(texts)}; a step with engines is {steps[1] / steps[0]:.3f} of one without"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=("rank", "engine"))
    parser.add_argument("--last", type=int)
    for name in ("sender", "receiver", "job-id"):
        parser.add_argument(f"--{name}")
    options, _ = parser.parse_known_args()  # other cases need more
    torch.set_num_threads(1)
    if options.role == "rank":
        dist.init_process_group("gloo")
        Rank(options).run()
        os._exit(0)  # without the end of the process group, for which ranks would wait in turn
    elif options.role == "engine":
        follow(options)
    else:
        print(f"ok: {check()}")


if __name__ == "__main__":
    main()
