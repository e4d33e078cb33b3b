"""A job of training on demand, whose senders, ranks and engines the cases of on_demand_faults.py disturb."""

from __future__ import annotations

import os
import queue
import signal
import sys
from typing import Any, Callable, Optional, Sequence

from tests.integration.cluster import Cluster
from tests.integration.fault_proxy import FaultProxy
from tools.demo.on_demand.processes import Process, Said, rank_environments

RANKS = 3
STEPS = 4
FAULT = 2  # the step in which something happens
SAY_SECONDS = 45.0
_HERE = os.path.dirname(os.path.abspath(__file__))


class Job:
    """Senders, ranks and engines. A context manager, whose end ends all of them.

    Attributes:
      results: step -> rank -> (loss, norm), as hexadecimal numbers.
      lost: who said that an attempt was abandoned, and what.
      casts: (incarnation, version) -> kind of engine -> SHA-256 that it has to have.
      seen: kind of engine -> (incarnation, version) -> its SHA-256, in the order in which it saw them.
    """

    def __init__(self, name: str, *flags: str, between_hosts: bool = False) -> None:
        """Args:
        flags: of the senders.
        between_hosts: senders say that they are on different hosts, and a proxy is in front of each.
        """
        self.cluster = Cluster(name)
        self.ranks: list[Process] = []
        self.results: dict[int, dict[int, tuple[str, str]]] = {}
        self.lost: list[tuple[int, Said]] = []
        self.casts: dict[tuple[int, int], dict[str, str]] = {}
        self.seen: dict[str, dict[tuple[int, int], str]] = {}
        self._done: set[int] = set()
        self._engines: list[Process] = []
        self._said: queue.Queue[tuple[str, Optional[Said]]] = queue.Queue()
        self._flags = flags
        self.proxies = [FaultProxy(0) for _ in range(RANKS)] if between_hosts else []

    def __enter__(self) -> Job:
        folder = self.cluster.folder
        addresses = [f"127.0.0.1:{proxy.port}" for proxy in self.proxies]
        peers = ",".join(addresses or [f"unix:{folder}/sender-{rank}/d.sock" for rank in range(RANKS)])
        try:
            for rank in range(RANKS):
                of_host = ["--insecure", f"--host-id=host-{rank}"] if self.proxies else []
                sender = self.cluster.start_sender(rank, f"--train-peers={peers}", *of_host, *self._flags)
                if self.proxies:
                    self.proxies[rank].lead_to(sender.ports["sync"])
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def __exit__(self, kind: Any, *unused: Any) -> None:
        self.end_ranks()
        while self._engines:
            self._engines.pop().end()
        if kind is not None:
            print(self.cluster.logs(), file=sys.stderr)
        for proxy in self.proxies:
            proxy.__exit__()
        self.cluster.stop()

    def start_engines(self, kinds: Sequence[str]) -> None:
        for kind in kinds:
            flags = ["--view=fp8-channel/vllm"] if kind == "fp8" else []
            receiver = self.cluster.start_receiver(kind, *flags)
            command = [sys.executable, os.path.join(_HERE, "on_demand_engine.py"), f"--receiver={receiver.socket}"]
            self.seen[kind] = {}
            self._engines.append(Process(kind, [*command, f"--kind={kind}"], dict(os.environ), self._said))

    def start_ranks(self, first: int = 0, version: int = 1, digests: bool = False, **holds: list[str]) -> None:
        """Args:
        first: the step that is next; it and later ones have no results then.
        digests: rank 0 says what engines have to have.
        holds: "rankN" -> its --hold options.
        """
        self.results = {step: of_ranks for step, of_ranks in self.results.items() if step < first}
        folder = self.cluster.folder
        command = [sys.executable, os.path.join(_HERE, "on_demand_fault_rank.py"), f"--job-id={self.cluster.job_id}"]
        command += [f"--sender={folder}/sender-{{rank}}/d.sock", *(["--digests"] if digests else [])]
        command += [f"--checkpoints={folder}/checkpoints", f"--first={first}", f"--steps={STEPS}", f"--version={version}"]
        self._done = set()
        for rank, environment in enumerate(rank_environments(RANKS, os.environ)):
            of_rank = [f"--hold={hold}" for hold in holds.get(f"rank{rank}", [])]
            self.ranks.append(Process(str(rank), [*command, *of_rank], environment, self._said))

    def end_ranks(self) -> None:
        for rank in self.ranks:
            rank.popen.send_signal(signal.SIGKILL)
        while self.ranks:
            self.ranks.pop().end()
        while not self._said.empty():  # that ranks have ended is no error
            name, line = self._said.get()
            if line is not None:
                self._note(name, line)

    def next(self, seconds: float = SAY_SECONDS, may_end: Optional[int] = None) -> tuple[str, Said]:
        """The next line of any process, after it was noted.

        Raises:
          AssertionError: nobody said anything in time, or a process other than rank `may_end` has ended.
        """
        while True:
            try:
                name, line = self._said.get(timeout=seconds)
            except queue.Empty:
                raise AssertionError(f"no process said anything for {seconds:g} s") from None
            if line is not None:
                self._note(name, line)
                return name, line
            assert name == str(may_end), f"rank or engine {name} has ended"

    def _note(self, name: str, line: Said) -> None:
        if "sees" in line:
            self.seen[name][line["stream"], line["sees"]] = line["sha256"]
        elif "casts" in line:
            self.casts[line["stream"], line["version"]] = line["casts"]
        elif "loss" in line:
            assert line["exact"], line
            self.results.setdefault(line["step"], {})[int(name)] = (line["loss"], line["norm"])
        elif "lost" in line:
            self.lost.append((int(name), line))
        elif "done" in line:
            self._done.add(int(name))

    def until(self, what: Callable[[str, Said], bool], may_end: Optional[int] = None) -> Said:
        while True:
            name, line = self.next(may_end=may_end)
            if what(name, line):
                return line

    def at(self, victim: int, point: str) -> None:
        """Until that rank is there."""
        self.until(lambda name, line: name == str(victim) and line.get("at") == point)

    def go_on(self, rank: int) -> None:
        stdin = self.ranks[rank].popen.stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()

    def finish(self) -> dict[int, dict[int, tuple[str, str]]]:
        while len(self._done) < RANKS:
            self.next()
        assert set(self.results) == set(range(STEPS)), self.results
        return self.results

    def waits_for(self, rank: int) -> str:
        """What the status page of that rank's sender says it waits for."""
        return self.cluster.senders[rank].page("/status")


def undisturbed() -> dict[int, dict[int, tuple[str, str]]]:
    """The results of a job that nothing happens to."""
    with Job("undisturbed") as job:
        job.start_ranks()
        return job.finish()
