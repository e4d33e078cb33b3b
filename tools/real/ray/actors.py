"""The actors of the check's job: trainer ranks and engines as slime and verl have them, small and without a framework."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from typing import Any, Optional

import numpy as np
import ray

import dws
import dws.daemons.process
import dws.ray
from tests.integration.cluster import RECEIVER, SENDER

ELEMENTS = 100_003
# A new actor takes a second, and a minute or two where many others compute.
WAIT_SECONDS = 240.0


@dataclasses.dataclass(frozen=True)
class Job:
    """One job of the check.

    Attributes:
      name: its job_id.
      folder: has a run folder for each node.
      seed: of its weights.
      ranks: its trainer's.
      start_timeout: of its senders.
      without_watch: daemons do not look whether their owner lives.
    """

    name: str
    folder: str
    seed: int = 1
    ranks: int = 2
    start_timeout: float = 60.0
    without_watch: bool = False

    def options(self, program: str) -> dict[str, Any]:
        if self.without_watch:
            dws.daemons.process.DaemonProcess.flags = lambda daemon: [  # type: ignore[method-assign]
                f"--socket={daemon.socket}", f"--state-dir={daemon.state_dir}"]
        node = ray.get_runtime_context().get_node_id()[:8]  # nodes here have one file system, elsewhere one each
        return {"program": os.path.abspath(program), "run_dir": f"{self.folder}/{node}", "insecure": True, "stop_timeout": 5}


def _digests(arrays: dict[str, Any]) -> dict[str, str]:
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}


@dataclasses.dataclass(frozen=True)
class Where:
    """A daemon and its owner, of which the driver has no handle."""

    pid: int
    owner: int
    node: str
    socket: str
    flags: tuple[str, ...]


class _Owner:
    """What both kinds of actor have."""

    daemon: dws.ray.RayDaemon

    def owner(self) -> int:
        return os.getpid()

    def where(self) -> Where:
        self.daemon.check()
        pid = self.daemon.pid
        with open(f"/proc/{pid}/cmdline") as file:
            flags = tuple(file.read().split("\0"))
        return Where(pid or 0, os.getpid(), ray.get_runtime_context().get_node_id(), self.daemon.socket, flags)

    def await_daemon(self) -> Where:
        """Waits until it serves, also again."""
        self.daemon.wait_serving(WAIT_SECONDS)
        return self.where()

    def error(self) -> str:
        """Waits until the daemon is told to have failed. Returns the error."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            try:
                self.daemon.check()
            except dws.DwsError as error:
                return str(error)
            time.sleep(0.05)
        raise TimeoutError(f"{self.daemon.name} was not told to have failed")


class TrainerRank(_Owner):
    """One trainer rank, with its own tensors."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.daemon = dws.ray.sender(job.name, rank, job.ranks, start_timeout=job.start_timeout, **job.options(SENDER))
        self.trainer: Optional[dws.Trainer] = None

    def start(self, stream: str = "") -> str:
        """Registers in a new stream, rank 0's, whose name it returns."""
        if self.trainer is not None:
            self.trainer.close()
        given = dws.Stream.parse(stream) if stream else None
        self.trainer = dws.Trainer(self.daemon.socket, self.job.name, self.rank, self.job.ranks, given)
        random = np.random.default_rng([self.job.seed, self.rank, time.time_ns()])
        self.views = self.trainer.register({f"r{self.rank}": random.standard_normal(ELEMENTS, np.float32)})
        self.random = random
        return str(self.trainer.stream)

    def reconnect(self) -> None:
        assert self.trainer is not None
        self.trainer.reconnect(WAIT_SECONDS)

    def publish(self, version: int) -> dict[str, str]:
        """Returns the SHA-256 of each tensor of this rank."""
        assert self.trainer is not None
        for view in self.views.values():
            view[self.random.integers(0, view.size, 500)] += 0.5
        self.trainer.publish(version)
        return _digests(self.views)


class EngineActor(_Owner):
    """One engine. It waits for the trainers' senders after it was made, as slime makes engines first."""

    def __init__(self, job: Job, name: str, **options: Any) -> None:
        self.job = job
        self.daemon = dws.ray.receiver(job.name, name, start_timeout=0, scrub_rate=0, **job.options(RECEIVER), **options)
        self.engine: Optional[dws.Engine] = None

    def attach(self) -> None:
        self.daemon.wait_serving(WAIT_SECONDS)
        self.engine = dws.Engine(self.daemon.socket)
        self.views = self.engine.attach(
            {f"r{rank}": np.zeros(ELEMENTS, np.float32) for rank in range(self.job.ranks)}, timeout=WAIT_SECONDS)

    def digests(self, stream: str, version: int) -> dict[str, str]:
        """Waits for the version. Returns the SHA-256 of each tensor."""
        assert self.engine is not None
        deadline = time.monotonic() + WAIT_SECONDS
        found = ""
        while time.monotonic() < deadline:
            with self.engine.running(WAIT_SECONDS) as grant:
                found = f"version {grant.version} of stream {grant.stream}"
                if (str(grant.stream), grant.version) == (stream, version):
                    return _digests(self.views)
            time.sleep(0.02)
        raise TimeoutError(f"expected version {version} of stream {stream}, found {found}")


class Bare:
    """An actor whose class knows nothing of DWS."""

    def __init__(self) -> None:
        self.calls = 0
