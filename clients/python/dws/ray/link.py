"""How the owner of a daemon reaches the table of its job: an actor whose name Ray knows in the whole cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from typing import Any, Optional

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dws.errors import DaemonUnavailableError, StateError
from dws.ray.table import Entry, Reply, Table

_NAMESPACE = "dws"
_CALL_SECONDS = 10.0
_LEAVE_SECONDS = 2.0
_RETRY_SECONDS = 0.5


class OtherJobError(StateError):
    """The job's name is that of another Ray job, which may be about to end."""


class Here:
    """Which process of Ray this is. Lifecycle: one for each daemon that it starts."""

    def __init__(self) -> None:
        """Raises:
        StateError: this process does not belong to a Ray job.
        """
        if not ray.is_initialized():
            raise StateError("this process has not joined Ray: call ray.init(), or call this in an actor")
        context = ray.get_runtime_context()
        self.ray_job: str = context.get_job_id()
        self.node: str = context.get_node_id()
        self.host: str = ray.util.get_node_ip_address()
        self.where = f"node {self.host}, process {os.getpid()}"
        self.claim = (time.time_ns(), secrets.randbits(64))


class Link:
    """The connection of one daemon's owner to its job's table.

    Lifecycle: `make` for the owner of rank 0's sender; `exchange` again and again; `close`. Threads: one at a time.
    """

    def __init__(self, job_id: str, here: Here, makes: bool) -> None:
        """Args:
        makes: this process makes the table, and makes another one if it ends.
        """
        self._job_id = job_id
        self._here = here
        self._makes = makes
        self._table: Optional[Any] = None
        self._made: Optional[Any] = None  # the last one that was made here

    def make(self, timeout: float) -> None:
        """Makes the table, of which there is one for each job in the cluster.

        Args:
          timeout: seconds for the one of a process that is about to end.

        Raises:
          StateError: another process has it.
        """
        deadline = time.monotonic() + timeout
        while not self._try_make():
            if time.monotonic() > deadline:
                raise StateError(
                    f"the sender of rank 0 of job '{self._job_id}' runs already in this cluster, for another process that lives: "
                    f"end it, or give this job another job_id{self._whose()}"
                )
            time.sleep(_RETRY_SECONDS)

    def _try_make(self) -> bool:
        actor = ray.remote(Table).options(
            name=self._job_id, namespace=_NAMESPACE, num_cpus=0, get_if_exists=False,
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._here.node, soft=False))  # fmt: skip
        try:
            self._table = self._made = actor.remote(self._job_id, self._here.ray_job)
        except ValueError:  # its name is taken
            return False
        return True

    def _whose(self) -> str:
        with contextlib.suppress(Exception):
            table = ray.get_actor(self._job_id, namespace=_NAMESPACE)
            return f" ({ray.get(table.whose.remote(), timeout=_LEAVE_SECONDS)}; this is Ray job {self._here.ray_job})"
        return ""

    def exchange(self, entry: Entry, known: str) -> Reply:
        """See Table.exchange.

        Raises:
          OtherJobError: the table is of another Ray job.
          DaemonUnavailableError: there is no table at the moment; the message says what makes one.
        """
        if not ray.is_initialized():  # every other call would start a cluster
            raise DaemonUnavailableError("this process has left Ray")
        try:
            if self._table is None:
                self._find()
            reply: Reply = ray.get(self._table.exchange.remote(entry, known), timeout=_CALL_SECONDS)  # type: ignore[union-attr]
        except ray.exceptions.GetTimeoutError as error:
            raise DaemonUnavailableError(
                f"the actor '{self._job_id}' in Ray's namespace '{_NAMESPACE}', made by rank 0's sender, does not answer"
            ) from error
        except (ray.exceptions.RayError, ValueError) as error:
            self._table = None
            raise DaemonUnavailableError(
                f"job '{self._job_id}' is not known in this Ray cluster: expected that trainer rank 0 calls "
                f"dws.ray.sender('{self._job_id}'), found {type(error).__name__}"
            ) from error
        if reply.other_job:
            self._table = None
            raise OtherJobError(f"{reply.other_job}: end that one, or give this job another job_id")
        return reply

    def _find(self) -> None:
        if not self._makes or not self._try_make():
            self._table = ray.get_actor(self._job_id, namespace=_NAMESPACE)

    def close(self, entry: Entry) -> None:
        """Takes the daemon out of the table; ends the table, if it was made here."""
        table, made, self._table, self._made = self._table, self._made, None, None
        if not ray.is_initialized():
            return
        with contextlib.suppress(ray.exceptions.RayError):
            if table is not None and table is not made:  # of a later rank 0
                ray.get(table.leave.remote(entry.name, entry.claim), timeout=_LEAVE_SECONDS)
        with contextlib.suppress(ray.exceptions.RayError):
            if made is not None:
                ray.kill(made)
