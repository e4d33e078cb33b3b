"""A Ray cluster of several nodes on this machine, and a job in it: what the cases share."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Optional, TypeVar

import ray

from tools.real.ray.actors import WAIT_SECONDS, EngineActor, Job, TrainerRank, Where

_CALL_SECONDS = 2 * WAIT_SECONDS
# A daemon looks for its owner once a second, and may then take its --stop-timeout of 5 s.
END_SECONDS = 30.0
_OBJECT_STORE_BYTES = 80 << 20

_T = TypeVar("_T")


def get(call: Any) -> Any:
    return ray.get(call, timeout=_CALL_SECONDS)


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def eventually(look: Callable[[], _T], what: str, seconds: float = WAIT_SECONDS) -> _T:
    """Returns the first result of `look` that counts as true."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        expect(time.monotonic() < deadline, f"not within {seconds:g} s: {what}")
        time.sleep(0.1)


def runs(pid: int) -> bool:
    """Returns whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def daemons_below(folder: str) -> list[int]:
    """The daemons, of all owners, whose socket is in the folder."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", errors="replace") as file:
                if f"--socket={folder}/" in file.read() and runs(int(name)):
                    found.append(int(name))
        except OSError:
            continue
    return found


class Nodes:
    """The cluster: a head for drivers, and nodes with a resource of their name. A context manager."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        quiet = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        self._quiet = quiet
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **quiet})
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, name: str) -> None:
        self._nodes[name] = self._cluster.add_node(num_cpus=0, resources={name: 100.0}, **self._quiet)

    def lose(self, name: str) -> None:
        """Kills all processes of the node that belong to Ray: its actors see that their raylet is gone."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *unused: Any) -> None:
        ray.shutdown()
        self._cluster.shutdown()


class Running:
    """A job's trainer ranks and engines.

    Attributes:
      trainers: by rank.
      engines: by name.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.trainers: dict[int, Any] = {}
        self.engines: dict[str, Any] = {}
        self.stream = ""
        self.version = 0

    def trainer(self, rank: int, place: str) -> None:
        """Makes a rank on a node, where it comes back if it dies."""
        made = ray.remote(TrainerRank).options(num_cpus=0, resources={place: 1}, max_restarts=-1)
        self.trainers[rank] = made.remote(self.job, rank)

    def engine(self, name: str, place: str, **options: Any) -> None:
        made = ray.remote(EngineActor).options(num_cpus=0, resources={place: 1}, max_restarts=-1)
        self.engines[name] = made.remote(self.job, name, **options)

    def start(self) -> None:
        """All ranks register, in a new stream; the next version is 1."""
        self.stream = get(self.trainers[0].start.remote())
        get([actor.start.remote(self.stream) for rank, actor in self.trainers.items() if rank])
        self.version = 0

    def attach(self, *names: str) -> None:
        get([self.engines[name].attach.remote() for name in names or self.engines])

    def follow(self, versions: int = 1, names: Optional[list[str]] = None) -> None:
        """Publishes versions; the engines have the bits of each."""
        for _ in range(versions):
            self.version += 1
            published: dict[str, str] = {}
            for digests in get([actor.publish.remote(self.version) for actor in self.trainers.values()]):
                published.update(digests)
            for name in names or list(self.engines):
                there = get(self.engines[name].digests.remote(self.stream, self.version))
                expect(there == published, f"engine {name} differs at version {self.version}: {there}, expected {published}")

    def where(self, actor: Any) -> Where:
        found: Where = get(actor.await_daemon.remote())
        return found

    def receivers(self) -> dict[str, int]:
        return {name: self.where(actor).pid for name, actor in self.engines.items()}

    def kill_owner(self, actor: Any) -> Where:
        """SIGKILL for the process of the actor, whose daemon has to end; Ray makes the actor again. Returns where it was."""
        before = self.where(actor)
        os.kill(before.owner, signal.SIGKILL)
        eventually(lambda: not runs(before.pid), f"daemon {before.pid} ends after its owner {before.owner} was killed", END_SECONDS)
        self.await_again(actor, before)
        return before

    def await_again(self, actor: Any, before: Where) -> None:
        """Waits until Ray has made the actor again."""

        def is_new() -> bool:
            try:
                return bool(get(actor.owner.remote()) != before.owner)
            except ray.exceptions.RayActorError:  # it is not there yet
                return False

        eventually(is_new, "the actor comes back")
