"""Starts daemons as children of this process, for jobs on machines where nobody runs them as services.

with dws.daemons.sender("run7") as sender, dws.daemons.receiver("rollout-0", [sender], "run7") as receiver:
    trainer = dws.Trainer(sender.socket, job_id="run7")   # in this process or in another one of this machine
    engine = dws.Engine(receiver.socket)

A daemon ends with the process that started it. Sockets, logs and state are in a folder of this user's, in which each
daemon of each job has its own. Every option of the daemons (`dws-sender --help`) is a keyword argument:
retain_bytes="16GiB" is --retain-bytes=16GiB. Variables DWS_* of the environment are options too.
"""

from __future__ import annotations

import os
from typing import Mapping, Optional, Sequence, Union

from dws.daemons.daemon import Daemon
from dws.daemons.options import Option, flags_of
from dws.daemons.process import START_SECONDS, STOP_SECONDS
from dws.daemons.programs import find_program
from dws.daemons.run_folder import RunFolder

__all__ = ["Daemon", "find_program", "receiver", "sender"]

_Path = Union[str, "os.PathLike[str]"]


def sender(
    job_id: str = "default",
    trainer_rank: int = 0,
    *,
    state_dir: Optional[_Path] = None,
    run_dir: Optional[_Path] = None,
    program: Optional[_Path] = None,
    prefix: Sequence[str] = (),
    start_timeout: float = START_SECONDS,
    stop_timeout: int = int(STOP_SECONDS),
    start: bool = True,
    **options: Option,
) -> Daemon:
    """Starts a dws-sender for one trainer rank, and returns when it serves.

    Args:
      job_id: the job that trainer, senders and receivers share.
      trainer_rank: the rank beside it.
      state_dir: the folder of its version ledger; by default in `Daemon.folder`, which `close` removes.
      run_dir: the folder in which the jobs have theirs; by default one of this user's alone below $TMPDIR or /tmp.
        Short: the path of a socket in it has at most 107 bytes.
      program: the file; by default the dws-sender that was installed with this package, else the one on PATH.
      prefix: a command that runs the daemon, and becomes it: ["taskset", "--cpu-list", "0-3"].
      start_timeout: seconds until it serves.
      stop_timeout: seconds that work under way may take at the end; SIGKILL comes 10 s after them.
      start: False: it is only made; `Daemon.start` starts it.
      options: flags, by their names with underscores. True is the flag alone, a list is the flag for each of its
        values, None leaves it out. For receivers of other hosts: listen="10.0.0.5:0" with tls_ca=, tls_cert= and
        tls_key=. For pages and metrics: http="127.0.0.1:0".

    Raises:
      DaemonFailedError: it did not serve: the message ends with its log, which names an option that is unknown or wrong.
      DaemonUnavailableError: there is no dws-sender.
      StateError: the sender of this rank of a job of this name already runs in `run_dir`.
      InvalidArgumentError: an option or `run_dir` cannot be used.
    """
    identity = [f"--job-id={job_id}", f"--trainer-rank={trainer_rank}"]
    command = _command("dws-sender", program, prefix, identity, stop_timeout, options)
    place = RunFolder(job_id, f"sender-{trainer_rank}", f"sender of rank {trainer_rank} of job '{job_id}'", _text(run_dir))
    return _made(place, command, options, _text(state_dir), stop_timeout, start_timeout if start else None)


def receiver(
    receiver_id: str,
    senders: Union[str, Daemon, Sequence[Union[str, Daemon]]] = (),
    job_id: str = "default",
    *,
    state_dir: Optional[_Path] = None,
    run_dir: Optional[_Path] = None,
    program: Optional[_Path] = None,
    prefix: Sequence[str] = (),
    start_timeout: float = START_SECONDS,
    stop_timeout: int = int(STOP_SECONDS),
    start: bool = True,
    **options: Option,
) -> Daemon:
    """Starts a dws-receiver for one engine, and returns when it serves. That is before it has a version: engines wait.

    Args:
      receiver_id: unique in the job.
      senders: those of all trainer ranks: what `sender` returned, or "HOST:PORT", or "unix:PATH". None for a receiver
        that takes versions from a directory (shared_dir=, slime_dir=).
      job_id: the senders'.
      state_dir: the folder of its ledger and of what it spools, for which it needs room for a version in full; by
        default in `Daemon.folder`.
      run_dir, program, prefix, start_timeout, stop_timeout, start, options: as for `sender`.

    Raises:
      DaemonFailedError, DaemonUnavailableError, StateError, InvalidArgumentError: as `sender`.
    """
    if isinstance(senders, (str, Daemon)):
        senders = [senders]
    addresses = [each.address if isinstance(each, Daemon) else each for each in senders]
    identity = [f"--job-id={job_id}", f"--receiver-id={receiver_id}", *(f"--sender={each}" for each in addresses)]
    command = _command("dws-receiver", program, prefix, identity, stop_timeout, options)
    place = RunFolder(job_id, f"receiver-{receiver_id}", f"receiver '{receiver_id}' of job '{job_id}'", _text(run_dir))
    return _made(place, command, options, _text(state_dir), stop_timeout, start_timeout if start else None)


def _command(
    name: str,
    program: Optional[_Path],
    prefix: Sequence[str],
    identity: Sequence[str],
    stop_timeout: int,
    options: Mapping[str, Option],
) -> list[str]:
    return [
        *prefix,
        find_program(name, _text(program)),
        *identity,
        f"--stop-timeout={stop_timeout}",
        *flags_of(options),
    ]


def _made(
    place: RunFolder,
    command: Sequence[str],
    options: Mapping[str, Option],
    state_dir: Optional[str],
    stop_timeout: int,
    start_timeout: Optional[float],
) -> Daemon:
    daemon = Daemon(place, command, str(options.get("listen") or ""), state_dir, stop_timeout)
    if start_timeout is not None:
        daemon.start(start_timeout)
    return daemon


def _text(path: Optional[_Path]) -> Optional[str]:
    return None if path is None else os.path.abspath(path)
