"""The demo's processes, whose lines of JSON it reads as they come."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Mapping, Optional, Sequence

from tools.real.environment import Interpreter

Said = dict[str, Any]


def say(**what: Any) -> None:
    """Such a line, by one of the processes."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def rank_environments(count: int, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """What each rank of a process group has in its environment, besides what it is given here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    return [{**group, "RANK": str(rank)} for rank in range(count)]


class Ended(RuntimeError):
    """A process ended, or said nothing in time."""


class Process:
    """One process. Lifecycle: started when made; `end`. Threads: one of its own reads lines."""

    def __init__(
        self, name: str, command: Sequence[str], environment: dict[str, str], said: queue.Queue[tuple[str, Optional[Said]]]
    ) -> None:
        """Args:
        said: gets (name, line) for each line, and (name, None) at the end.
        """
        self.name = name
        self.popen = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._said = said
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith("{"):
                self._said.put((self.name, json.loads(line)))
        self._said.put((self.name, None))

    def end(self) -> None:
        """kill -9."""
        self.popen.kill()
        self.popen.wait()
        self._reader.join()


class Processes:
    """The trainer's ranks, started and ended together, and the engine."""

    def __init__(self, python: Interpreter, modules: list[str]) -> None:
        self._python = python
        self._environment = {**python.variables(modules), "OMP_NUM_THREADS": "1"}
        self._said: queue.Queue[tuple[str, Optional[Said]]] = queue.Queue()
        self.ranks: list[Process] = []
        self.engine: Optional[Process] = None

    def start_engine(self, arguments: Sequence[str]) -> None:
        command = [self._python.path, "-m", "tools.demo.on_demand.engine", *arguments]
        self.engine = Process("engine", command, self._environment, self._said)

    def start_ranks(self, count: int, arguments: Sequence[str]) -> None:
        command = [self._python.path, "-m", "tools.demo.on_demand.rank", *arguments]
        for rank, environment in enumerate(rank_environments(count, self._environment)):
            self.ranks.append(Process(str(rank), command, environment, self._said))

    def end_ranks(self) -> None:
        """Ends all; what they said and nobody has read is dropped, but not what the engine said."""
        while self.ranks:
            self.ranks.pop().end()
        kept = []
        while not self._said.empty():
            kept.append(self._said.get())
        for name, line in kept:
            if name == "engine":
                self._said.put((name, line))

    def next(self, seconds: float, may_end: str = "") -> tuple[str, Said]:
        """The next line of any process, and who said it: a rank, or "engine".

        Args:
          may_end: a process whose end is no error.

        Raises:
          Ended: another has ended, or nobody said anything for so long.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                name, line = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Ended(f"no process said anything for {seconds:g} s") from None
            if line is not None:
                return name, line
            if name != may_end:
                raise Ended(f"{'the engine' if name == 'engine' else f'rank {name}'} has ended")

    def end(self) -> None:
        self.end_ranks()
        if self.engine is not None:
            self.engine.end()
