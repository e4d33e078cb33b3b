"""A daemon of this process that the other daemons of its job find through Ray, and that is restarted when it has ended."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import logging
import os
import threading
import time
from typing import Any, Optional

from dws.daemons.daemon import Daemon
from dws.errors import DaemonFailedError, DaemonUnavailableError, DeadlineError, DwsError, StateError
from dws.ray.link import Link, OtherJobError
from dws.ray.table import POLL_SECONDS, Dialling, Entry, Reply, to_dial

_log = logging.getLogger("dws.ray")
_running: set["RayDaemon"] = set()

# After a daemon has ended by itself: the first wait, doubled each time, and how often in a row it is started again.
_RESTART_SECONDS = 1.0
_RESTART_SECONDS_MAX = 30.0
_RESTARTS_MAX = 8
# Having served for so long, it counts as sound again.
_SOUND_SECONDS = 60.0
# Exit statuses that another start does not change: mistakes in the configuration, damaged files.
_FINAL = (2, 3)
_JOIN_SECONDS = 15.0
_LISTEN = "--listen="


class RayDaemon:
    """A dws-sender or dws-receiver beside this process, which other daemons of the job find through Ray.

    A thread of this process looks once a second (less often in jobs of hundreds of daemons) after three things. It starts
    the daemon again, on the same socket and with the same state, when it has ended by itself: at most 8 times in a row,
    and not when its configuration is wrong or its files are damaged. It tells the job where the daemon is. And it restarts
    a receiver when senders have moved to other addresses: its engine goes on with the version that it has, and attaches
    again by itself.

    The daemon ends with this process, however that ends. A context manager: its end closes the daemon.

    Threads: any.

    Attributes:
      job_id: for dws.Trainer.
      name: "receiver 'rollout-0' of job 'run7'".
    """

    def __init__(self, job_id: str, daemon: Daemon, entry: Entry, link: Link, listen: str) -> None:
        """dws.ray.sender and dws.ray.receiver make it.

        Args:
          daemon: not started.
          listen: its --listen, "" without; port 0 picks one, which is kept while it is free.
        """
        self.job_id = job_id
        self.name = daemon.name
        self._daemon = daemon
        self._command = [flag for flag in daemon.command if not flag.startswith(_LISTEN)]
        self._entry = entry
        self._link = link
        self._listen = listen
        self._owner = os.getpid()
        self._known = ""
        self._dialled: tuple[Entry, ...] = ()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._ended = False  # closed, or given up
        self._error: Optional[DwsError] = None
        self._missing = "it has not been started yet"
        self._flags: Optional[tuple[str, ...]] = None  # those it was started with
        self._wanted: Optional[tuple[str, ...]] = None
        self._failures = 0
        self._started_at = self._restart_at = 0.0
        self._thread = threading.Thread(target=self._look_after, name=f"dws.ray: {self.name}", daemon=True)

    @property
    def socket(self) -> str:
        """The path of its unix socket: for dws.Trainer or dws.Engine, in any process of this node. It stays the same."""
        return self._daemon.socket

    @property
    def log_path(self) -> str:
        """The file that its log is appended to."""
        return self._daemon.log_path

    @property
    def pid(self) -> Optional[int]:
        """Its process; None while it does not run."""
        return self._daemon.pid if self._serves() else None

    def check(self) -> None:
        """Raises:
        DaemonUnavailableError: it does not run; the message says why, and what it waits for. DaemonFailedError if it
          has ended by itself.
        StateError: another process has taken its place, its job's name is another Ray job's, or this process is a fork.
        """
        self._require_owner()
        with self._lock:
            if self._error is not None:
                raise self._error
            if not self._serves():
                if self._daemon.process is not None:
                    self._daemon.check()
                raise DaemonUnavailableError(f"{self.name} does not run: {self._missing}")

    def wait_serving(self, timeout: float) -> None:
        """Waits until it serves.

        Args:
          timeout: seconds.

        Raises:
          DeadlineError: it does not serve yet; the message says what it waits for.
          DaemonFailedError, StateError: it never will.
        """
        self._require_owner()
        deadline = time.monotonic() + timeout
        with self._lock:
            while not self._serves():
                if self._ended:
                    raise self._error or StateError(f"{self.name} was closed by this process")
                if time.monotonic() > deadline:
                    raise DeadlineError(f"{self.name} does not serve after {timeout:g} s: {self._error or self._missing}")
                self._changed.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Stops it for good. Its folder is removed if it has ended as it should.

        Raises:
          DaemonFailedError, StateError: as dws.daemons.Daemon.close.
        """
        self._require_owner()
        self._leave()
        self._daemon.close()

    def __enter__(self) -> "RayDaemon":
        return self

    def __exit__(self, kind: Any, *unused: Any) -> None:
        if os.getpid() == self._owner:
            self._leave()
            self._daemon.__exit__(kind, *unused)

    def _leave(self) -> None:
        _running.discard(self)
        with self._lock:
            self._ended = True
            self._changed.notify_all()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
        self._link.close(self._entry)  # does nothing the second time

    def _require_owner(self) -> None:
        if os.getpid() != self._owner:
            raise StateError(f"{self.name} belongs to process {self._owner}, which has made it; this is process {os.getpid()}")

    def _serves(self) -> bool:
        process = self._daemon.process
        return process is not None and process.poll() is None and self._flags is not None

    def _begin(self, now: bool) -> None:
        """Called once, by what makes it.

        Args:
          now: starts the daemon before it returns: it dials nobody.

        Raises:
          DaemonFailedError, StateError: it could not be started. Then it has left the job.
        """
        try:
            if now:
                with self._lock:
                    self._start(())
                with contextlib.suppress(DaemonUnavailableError, OtherJobError):
                    self._exchange()
        except BaseException:
            self._leave()
            raise
        _running.add(self)
        self._thread.start()

    def _look_after(self) -> None:
        seconds = 0.0
        while not self._wake.wait(seconds) and not self._ended:
            try:
                seconds = self._step()
            except Exception as error:  # what Ray raises while it shuts down is in no document
                _log.warning("%s: looking after it failed, and is tried again: %r", self.name, error)
                seconds = POLL_SECONDS

    def _step(self) -> float:
        """Returns the seconds until the next one."""
        seconds = POLL_SECONDS
        dialling = Dialling(())
        try:
            reply = self._exchange()
            if reply.later:
                self._give_up(StateError(f"{self.name} was stopped: a later one has taken its place, {reply.later}"))
                return seconds
            seconds = reply.poll_seconds
        except OtherJobError as error:
            with self._lock:
                self._error = error
            dialling = Dialling(self._flags, str(error))
        except DaemonUnavailableError as error:
            dialling = Dialling(self._flags, str(error))
        else:
            if not self._entry.world_size:
                dialling = to_dial(self._dialled, self._entry)
        if self._entry.world_size:
            dialling = Dialling(())
        return 0.0 if self._bring_to(dialling) else seconds

    def _exchange(self) -> Reply:
        address = self._daemon.address if self._listen and self._serves() else ""
        self._entry = dataclasses.replace(self._entry, address=address)
        reply = self._link.exchange(self._entry, self._known)
        if isinstance(self._error, OtherJobError):
            self._error = None
        if reply.dialled is not None:
            self._known, self._dialled = reply.state, reply.dialled
        return reply

    def _bring_to(self, dialling: Dialling) -> bool:
        """Returns whether the daemon was started."""
        with self._lock:
            if self._ended:
                return False
            if dialling.missing not in ("", self._missing) and not self._serves():
                _log.warning("%s waits: %s", self.name, dialling.missing)
            self._missing = dialling.missing
            flags = dialling.flags if dialling.flags is not None else self._flags
            if flags is None:
                return False
            if self._serves():
                if time.monotonic() - self._started_at > _SOUND_SECONDS:
                    self._failures = 0
                stable, self._wanted = flags == self._wanted, flags
                if flags == self._flags or not stable:  # ranks that move together move at slightly different times
                    return False
                _log.info("%s is restarted, as senders have moved: %s", self.name, " ".join(flags))
                with _logged(self.name):
                    self._daemon.stop()
            elif self._flags is not None or self._failures:
                if not self._may_restart():
                    return False
            return self._try_start(flags)

    def _may_restart(self) -> bool:
        """Returns whether a daemon that has ended by itself, or could not be started, is to be started now."""
        if self._error is None:
            try:
                self._daemon.check()
            except DaemonFailedError as error:
                self._failed(error)
        return not self._ended and time.monotonic() >= self._restart_at

    def _failed(self, error: DwsError) -> None:
        self._failures += 1
        final = isinstance(error, DaemonFailedError) and error.status in _FINAL
        if final or self._failures > _RESTARTS_MAX:
            self._give_up(error)
            return
        self._error = error
        delay = min(_RESTART_SECONDS * 2 ** (self._failures - 1), _RESTART_SECONDS_MAX)
        self._restart_at = time.monotonic() + delay
        _log.error("%s is started again in %g s: %s", self.name, delay, str(error).splitlines()[0])

    def _try_start(self, flags: tuple[str, ...]) -> bool:
        try:
            self._start(flags)
        except (DaemonFailedError, StateError) as error:
            self._failed(error)
            return False
        return True

    def _start(self, flags: tuple[str, ...]) -> None:
        listens = self._listens()
        for listen in listens:
            self._daemon.command = [*self._command, *flags, *listen]
            try:
                self._daemon.start()
                break
            except DaemonFailedError as error:
                if listen is listens[-1] or error.status in _FINAL:
                    raise
        self._flags = self._wanted = flags
        self._error = None
        self._started_at = time.monotonic()
        self._changed.notify_all()

    def _listens(self) -> list[list[str]]:
        """The flags to try: on the port that it had before, so that nobody has to be told, then on any."""
        if not self._listen:
            return [[]]
        host, _, port = self._listen.rpartition(":")
        if port != "0":
            return [[_LISTEN + self._listen]]
        ports = dict(self._daemon.ports)
        if not ports:  # perhaps a daemon had this folder whose owner was killed
            with contextlib.suppress(OSError, ValueError), open(os.path.join(self._daemon.folder, "ports.json")) as file:
                ports = json.load(file)
        kept = ports.get("sync") or ports.get("admin")
        return [[f"{_LISTEN}{host}:{port}"] for port in (kept, 0) if port is not None]

    def _give_up(self, error: DwsError) -> None:
        """Ends it, for a reason that does not pass."""
        with self._lock:
            _log.error("%s: %s", self.name, error)
            self._ended, self._error = True, error
            with _logged(self.name):
                self._daemon.stop()
            self._changed.notify_all()


@contextlib.contextmanager
def _logged(name: str) -> Any:
    """Logs that a daemon did not end as it should."""
    try:
        yield
    except DaemonFailedError as error:
        _log.error("%s: %s", name, error)


@atexit.register
def _close_all() -> None:
    for daemon in list(_running):
        daemon._leave()  # dws.daemons ends the processes


# A process that is forked owns none of them.
os.register_at_fork(after_in_child=_running.clear)
