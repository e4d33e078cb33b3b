"""Daemons beside the actors of a Ray job: a dws-sender beside each trainer rank, a dws-receiver beside each engine.

# in the actor of each trainer rank
sender = dws.ray.sender("run7", rank, world_size, insecure=True)
trainer = dws.Trainer(sender.socket, "run7", rank, world_size, stream)

# in the actor of each engine
receiver = dws.ray.receiver("run7", "rollout-0", insecure=True)
engine = dws.Engine(receiver.socket)

Each daemon is a child of the process that calls, so on its node, with its GPUs, and ends with it, however that ends:
killed, or with its node or driver. Receivers learn through Ray where the senders are, also when a sender's actor comes
back elsewhere. The name of a job is one job's in the whole cluster: another Ray job with that name is refused.

Needs Ray (`pip install ray`); `import dws` does not import this module. docs/ray.md says where the calls go in slime,
verl and others.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Optional, Union

try:
    import ray
except ImportError as error:
    raise ModuleNotFoundError("dws.ray needs Ray, which is not installed: pip install ray", name="ray") from error

from dws import daemons
from dws.daemons.options import Option
from dws.daemons.process import START_SECONDS
from dws.errors import InvalidArgumentError
from dws.ray.daemon import RayDaemon
from dws.ray.link import Here, Link
from dws.ray.table import Entry

__all__ = ["RayDaemon", "beside", "receiver", "sender"]

SENDERS_SECONDS = 300.0
# With one of these a daemon speaks TCP.
_SPEAKS_TCP = ("insecure", "tls_ca", "config")
# What is found through Ray.
_FOUND = {"sender": "senders are", "group_leader": "the leader of the group is"}

_Path = Union[str, "os.PathLike[str]"]


def sender(
    job_id: str,
    rank: int = 0,
    world_size: int = 1,
    *,
    start_timeout: float = START_SECONDS,
    **options: Any,
) -> RayDaemon:
    """Starts a dws-sender in this process, for its trainer rank, and returns when it serves.

    Args:
      job_id: the name of the job, of which there is one at a time in the cluster.
      rank, world_size: of the trainer.
      start_timeout: seconds that rank 0 waits for the process of an earlier rank 0 to end.
      options: those of dws.daemons.sender: run_dir=, state_dir=, program=, prefix=, stop_timeout=, and the daemon's
        flags. With tls_ca=, tls_cert= and tls_key=, or insecure=True, it listens on this node's address, on a port of
        its own, for receivers of other nodes: or where listen= says. Without, only receivers of this node reach it.

    Raises:
      StateError: this process has not joined Ray; or the rank's sender runs already here, or rank 0's for another Ray job.
        Other ranks start, and `check` says so.
      DaemonFailedError, DaemonUnavailableError, InvalidArgumentError: as dws.daemons.sender.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise InvalidArgumentError(f"rank {rank} of world size {world_size}: expected 0 <= rank < size")
    here = Here()
    listen = _listen(options, here)
    daemon = daemons.sender(job_id, rank, start=False, listen=listen or None, **options)
    entry = Entry(
        f"sender of rank {rank}", here.claim, here.ray_job, here.node, here.where, daemon.socket, rank=rank, world_size=world_size
    )
    link = Link(job_id, here, makes=rank == 0)
    if rank == 0:
        link.make(start_timeout)
    made = RayDaemon(job_id, daemon, entry, link, listen)
    made._begin(now=True)
    return made


def receiver(
    job_id: str,
    receiver_id: str,
    *,
    start_timeout: float = SENDERS_SECONDS,
    **options: Any,
) -> RayDaemon:
    """Starts a dws-receiver in this process, for its engine, when the senders of all trainer ranks are known.

    Args:
      job_id: the senders'.
      receiver_id: unique in the job, and the same when the engine's actor comes back.
      start_timeout: seconds until it serves. 0: returns at once, for engines that are made before the trainers; the
        socket's path is known, and `wait_serving` waits.
      options: those of dws.daemons.receiver but for the senders, and the daemon's flags. For other nodes as for
        `sender`. For an engine over several nodes, in the actor of each node: group_id=, group_index= (from 0, the
        node's rank) and group_members=.

    Raises:
      StateError: this process has not joined Ray; or the receiver runs already on this node.
      DeadlineError: senders are missing, or the job's name is another Ray job's; the message says which.
      DaemonFailedError, DaemonUnavailableError, InvalidArgumentError: as dws.daemons.receiver.
    """
    for name, what in _FOUND.items():
        if name in options:
            raise InvalidArgumentError(f"{name}=: where {what} is found through Ray; dws.daemons.receiver takes addresses")
    here = Here()
    group, index = str(options.get("group_id") or ""), int(options.get("group_index") or 0)
    leads = bool(group) and index == 0
    listen = _listen(options, here) if leads else str(options.pop("listen", None) or "")
    daemon = daemons.receiver(receiver_id, (), job_id, start=False, listen=listen or None, **options)
    entry = Entry(
        f"receiver '{receiver_id}'", here.claim, here.ray_job, here.node, here.where, daemon.socket, group=group, group_index=index
    )
    made = RayDaemon(job_id, daemon, entry, Link(job_id, here, makes=False), listen)
    made._begin(now=False)
    if start_timeout > 0:
        try:
            made.wait_serving(start_timeout)
        except BaseException:
            made.__exit__(BaseException)
            raise
    return made


def beside(
    actor: Any,
    start: Callable[..., RayDaemon],
    *arguments: Any,
    timeout: float = SENDERS_SECONDS + START_SECONDS,
    **options: Any,
) -> str:
    """Starts a daemon beside another actor, in its process: for a driver whose actors' classes are somebody else's.

        socket = dws.ray.beside(engine_actor, dws.ray.receiver, "run7", "rollout-0", insecure=True)

    The actor runs it between two of its methods. Call it again for an actor that Ray has restarted.

    Args:
      start: dws.ray.sender or dws.ray.receiver.
      arguments, options: for `start`.
      timeout: seconds.

    Returns:
      The path of the daemon's socket, on the actor's node.

    Raises:
      ray.exceptions.GetTimeoutError: the actor was busy for so long.
      The errors of `start`.
    """
    call = actor.__ray_call__.remote(_start_in_actor, start, arguments, options)
    socket: str = ray.get(call, timeout=timeout)
    return socket


def _start_in_actor(_actor: Any, start: Callable[..., RayDaemon], arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    return start(*arguments, **options).socket


def _listen(options: dict[str, Option], here: Here) -> str:
    """Takes listen= out of `options`. Returns where the daemon listens; "": nowhere."""
    given = options.pop("listen", None)
    if given is not None:
        return str(given)
    if any(options.get(name) or _in_environment(name, os.environ) for name in _SPEAKS_TCP):
        return f"[{here.host}]:0" if ":" in here.host else f"{here.host}:0"
    return ""


def _in_environment(name: str, variables: Mapping[str, str]) -> Optional[str]:
    return variables.get(f"DWS_{name.upper()}")
