"""The cases, with a Python that has Ray: python -m tools.real.ray.run [--only=PATTERN,...] [--without-watch].

--driver is another driver of the same cluster, for the cases with two jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Callable, Iterator

import ray

import dws
import dws.ray
from tests.integration.cluster import RECEIVER
from tools.real.ray.actors import WAIT_SECONDS, Bare, Job
from tools.real.ray.scene import END_SECONDS, Nodes, Running, daemons_below, eventually, expect, get, runs
from tools.real.report import Report, matching

_SETUP = "follow"  # the case that the others continue, but for one
_ALONE = "driver_ends"


class Cases:
    """In this order, each in the state that the one before has left. Each returns what it found."""

    def __init__(self, nodes: Nodes, folder: str, without_watch: bool) -> None:
        self.nodes = nodes
        self.folder = folder
        self.job = Running(Job("rl", f"{folder}/a", without_watch=without_watch))

    def follow(self) -> str:
        job = self.job
        for name, place in (("e0", "n1"), ("e1", "n2"), ("e2", "n2")):
            job.engine(name, place)
        job.trainer(1, "n1")
        job.trainer(0, "n0")
        job.start()
        job.attach()
        job.follow(5)
        for actor in (*job.trainers.values(), *job.engines.values()):
            at = job.where(actor)
            expect(f"--owner-pid={at.owner}" in at.flags or job.job.without_watch, f"{at.flags} name the owner {at.owner}")
            expect(at.node[:8] in at.socket, f"{at.socket} is of the actor's node {at.node}")
        beside = [flag for flag in job.where(job.engines["e0"]).flags if flag.startswith("--sender=")]
        expect([flag.startswith("--sender=unix:") for flag in beside] == [False, True],
               f"{beside}: rank 0 is on another node, rank 1 on this one")  # fmt: skip
        return "2 trainer ranks and 3 engines on 3 nodes, 5 versions, each bit for bit at each engine"

    def engine_killed(self) -> str:
        before = self.job.kill_owner(self.job.engines["e1"])
        self.job.attach("e1")
        after = self.job.where(self.job.engines["e1"])
        expect(after.socket == before.socket and after.pid != before.pid, f"{after} is not another daemon in the place of {before}")
        self.job.follow(2)
        return "its daemon ended, it came back with another, and followed"

    def daemons_killed(self) -> str:
        job = self.job
        for actor in (job.engines["e2"], job.trainers[1]):
            before = job.where(actor)
            told = actor.error.remote()
            time.sleep(0.5)  # the call has to have begun; if not, it fails
            os.kill(before.pid, signal.SIGKILL)
            expect("SIGKILL" in get(told), "the owner is told why its daemon has ended")
            after = job.where(actor)
            expect(after.pid != before.pid and after.owner == before.owner, f"{after} is not another daemon of the owner of {before}")
        get(job.trainers[1].reconnect.remote())
        job.follow(2)
        return "a receiver and a sender: owners were told, both were started again, versions followed"

    def trainer_killed(self) -> str:
        job = self.job
        receivers = job.receivers()
        for rank in (1, 0):  # rank 0 has the job's table
            job.kill_owner(job.trainers[rank])
            job.start()
            job.follow(2)
        expect(job.receivers() == receivers, f"receivers {job.receivers()} were restarted, they were {receivers}")
        return "both ranks, one after the other: each came back on its port, and no receiver was restarted"

    def trainer_moved(self) -> str:
        job = self.job
        receivers = job.receivers()
        before = job.where(job.trainers[1])
        ray.kill(job.trainers[1])
        eventually(lambda: not runs(before.pid), f"sender {before.pid} ends with its actor", END_SECONDS)
        job.trainer(1, "n0")
        job.start()
        job.follow(3)
        after = job.receivers()
        expect(not set(after.values()) & set(receivers.values()), f"receivers {after} still dial the old address")
        return "rank 1 came back on another node: its address reached every receiver, engines went on"

    def node_lost(self) -> str:
        job = self.job
        lost = [job.where(job.engines[name]) for name in ("e1", "e2")]
        self.nodes.lose("n2")
        for at in lost:
            eventually(lambda at=at: not runs(at.pid), f"daemon {at.pid} ends with its node", END_SECONDS)  # type: ignore[misc]
        job.follow(1, ["e0"])
        self.nodes.add("n2")  # another node, which has what the engines ask for
        for at, name in zip(lost, ("e1", "e2")):
            job.await_again(job.engines[name], at)
        job.attach("e1", "e2")
        for at, name in zip(lost, ("e1", "e2")):
            expect(job.where(job.engines[name]).node != at.node, f"{name} is on the node that was lost")
        job.follow(2)
        return "its 2 receivers ended, its engines came up on another node and followed"

    def group(self) -> str:
        job = self.job
        for index, place in ((1, "n2"), (0, "n1")):
            job.engine(f"wide-{index}", place, group_id="wide", group_index=index, group_members=2)
        wide = ["wide-0", "wide-1"]
        job.attach(*wide)
        job.follow(3)
        leader = job.where(job.engines["wide-1"]).flags
        expect(any(flag.startswith("--group-leader=") for flag in leader), f"{leader} name no leader")
        for name in wide:
            ray.kill(job.engines.pop(name))
        return "an engine over 2 nodes found its leader and followed"

    def beside(self) -> str:
        actor = ray.remote(Bare).options(num_cpus=0, resources={"n1": 1}).remote()
        options = {**self.job.job.options(RECEIVER), "run_dir": f"{self.folder}/b"}
        socket = dws.ray.beside(actor, dws.ray.receiver, "rl", "bare", timeout=WAIT_SECONDS, **options)
        (pid,) = daemons_below(os.path.dirname(os.path.dirname(os.path.dirname(socket))))
        ray.kill(actor)
        eventually(lambda: not runs(pid), f"receiver {pid} ends with the actor that it was put beside", END_SECONDS)
        return "a driver put a receiver beside an actor of another class"

    def two_jobs(self) -> str:
        with self._driver("rl", "c", "stay") as refused:
            expect(refused.wait(WAIT_SECONDS) == 3, "another Ray job with the name of this one is refused")
        with self._driver("other", "c", "follow") as other:
            self.job.follow(3)
            expect(other.wait(2 * WAIT_SECONDS) == 0, "the other job's engine has its weights")
        self.job.follow(1)
        return "two jobs at once have their own weights; one with the name of the first was refused"

    def driver_ends(self) -> str:
        for how in ("exit", "kill"):
            with self._driver("other", "d", "stay") as other:
                eventually(lambda: len(daemons_below(f"{self.folder}/d")) == 2 or other.poll() is not None,
                           "the job has 2 daemons", 2 * WAIT_SECONDS)  # fmt: skip
                expect(other.poll() is None, f"the other driver has ended with status {other.poll()}")
                there = daemons_below(f"{self.folder}/d")
                other.send_signal(signal.SIGTERM if how == "exit" else signal.SIGKILL)
                other.wait(WAIT_SECONDS)
            eventually(lambda: not daemons_below(f"{self.folder}/d"), f"daemons {there} end with their driver ({how})", END_SECONDS)
        return "a driver that exits and one that is killed leave no daemon"

    @contextlib.contextmanager
    def _driver(self, name: str, folder: str, then: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Another driver of this cluster, which has ended at the end."""
        command = [sys.executable, "-B", "-m", "tools.real.ray.run", f"--driver={self.nodes.address}", f"--name={name}",
                   f"--folder={self.folder}/{folder}", f"--then={then}"]  # fmt: skip
        with subprocess.Popen(command + ["--without-watch"] * self.job.job.without_watch) as process:
            try:
                yield process
            finally:
                process.kill()

    def end(self) -> str:
        ray.shutdown()
        eventually(lambda: not daemons_below(self.folder), f"daemons {daemons_below(self.folder)} end with this driver", END_SECONDS)
        return "no daemon is left"


CASES: tuple[Callable[[Cases], str], ...] = (
    Cases.follow, Cases.engine_killed, Cases.daemons_killed, Cases.trainer_killed, Cases.trainer_moved, Cases.node_lost,
    Cases.group, Cases.beside, Cases.two_jobs, Cases.driver_ends, Cases.end)  # fmt: skip


def other_driver(options: argparse.Namespace) -> int:
    """A job of one rank and one engine. Status 3: its name is refused."""
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(0))
    ray.init(address=options.driver, log_to_driver=False)
    job = Running(Job(options.name, options.folder, seed=2, ranks=1, start_timeout=5.0, without_watch=options.without_watch))
    job.trainer(0, "n0")
    try:
        get(job.trainers[0].__ray_ready__.remote())
    except ray.exceptions.RayActorError as error:
        return 3 if "belongs to Ray job" in str(error) else 1
    job.engine("e0", "n1")
    job.start()
    job.attach()
    job.follow(4)
    while options.then == "stay":
        time.sleep(1)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", type=lambda text: text.split(","))
    for name in ("driver", "name", "folder", "then"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--without-watch", action="store_true")
    options = parser.parse_args()
    if options.driver:
        return other_driver(options)
    report = Report("cases")
    names = [case.__name__ for case in CASES]
    chosen = matching(names, options.only) if options.only else names
    folder = tempfile.mkdtemp(prefix="dws-", dir="/tmp")
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(1))
    try:
        with Nodes() as nodes:
            for name in ("n0", "n1", "n2"):
                nodes.add(name)
            ray.init(address=nodes.address, log_to_driver=False)
            setup = [] if chosen == [_ALONE] else [_SETUP]
            run_cases(Cases(nodes, folder, options.without_watch), [*setup, *chosen, "end"], report)
    finally:
        for pid in daemons_below(folder):  # those of a failed case
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    return report.end()


def run_cases(cases: Cases, chosen: list[str], report: Report) -> None:
    for case in CASES:
        if case.__name__ not in chosen:
            continue
        started = time.monotonic()
        try:
            report.ok(case.__name__, case(cases), time.monotonic() - started)
        except (AssertionError, ray.exceptions.RayError, dws.DwsError, TimeoutError, subprocess.TimeoutExpired) as error:
            report.failed(case.__name__, "".join(traceback.format_exception_only(error)).strip(), time.monotonic() - started)
            if case.__name__ == _SETUP:
                return


if __name__ == "__main__":
    sys.exit(main())
