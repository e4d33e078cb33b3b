"""A daemon of this process: it ends with it, and its folder is removed at the end."""

from __future__ import annotations

import atexit
import logging
import os
import socket as sockets
import subprocess
import threading
from typing import Any, Optional, Sequence

from dws.daemons.ending import how_it_ended
from dws.daemons.process import START_SECONDS, STOP_MARGIN_SECONDS, DaemonProcess
from dws.daemons.run_folder import RunFolder
from dws.errors import DaemonFailedError, StateError

_log = logging.getLogger("dws.daemons")
_running: set["Daemon"] = set()

# Variables by which systemd speaks to one service: to this process, not to its daemons.
_OF_SYSTEMD = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID")


class Daemon(DaemonProcess):
    """A dws-sender or dws-receiver that this process has started and that ends with it, however that ends.

    A context manager: its end stops the daemon. Without `with`, call `close`, or leave it to the end of the process.
    After a SIGKILL of this process the daemon notices within a second that its owner has ended, and stops as after a
    SIGTERM. It does not depend on the thread that started it. Processes that this one forks cannot stop it. If the
    daemon ends by itself, an error with the reason goes to the logger "dws.daemons" at once.

    Threads: one at a time.

    Attributes:
      name: "sender of rank 0 of job 'x'".
      folder: has the socket, the log and, unless state_dir= names another place, the state. `close` removes it if the
        daemon has ended as it should.
      ports: the TCP ports that it listens on, by name: "http" if http= was given; with listen= "sync" of a sender,
        "admin" of a receiver.
    """

    def __init__(
        self, place: RunFolder, command: Sequence[str], listen: str, state_dir: Optional[str], stop_timeout: int
    ) -> None:
        """dws.daemons.sender and dws.daemons.receiver make it.

        Args:
          listen: --listen, "" without.
          stop_timeout: --stop-timeout, seconds.
        """
        super().__init__(place.what, place.path, command)
        self._place = place
        self._listen = listen
        self._state_dir = state_dir
        self._stop_timeout = stop_timeout
        self._owner = os.getpid()
        self._failed = False
        self._stopping = threading.Event()  # of the process that runs now
        self._lock = -1

    @property
    def state_dir(self) -> str:
        """The folder of its ledger, and of what a receiver spools."""
        return self._state_dir or super().state_dir

    @property
    def address(self) -> str:
        """Where other daemons reach it: "unix:PATH" or, with listen=, "HOST:PORT". One that listens on all addresses is
        reached by the name of this machine."""
        if not self._listen:
            return f"unix:{self.socket}"
        host = self._listen.rpartition(":")[0]
        if host in ("", "0.0.0.0", "[::]"):
            host = sockets.gethostname()
        return f"{host}:{self.ports.get('sync') or self.ports['admin']}"

    @property
    def pid(self) -> Optional[int]:
        """Its process; None after `stop`."""
        return self.process.pid if self.process is not None else None

    def check(self) -> None:
        """Raises:
        DaemonFailedError: it does not run; the message says why.
        StateError: this process is not its owner.
        """
        self._require_owner()
        code = self.process.poll() if self.process is not None else None
        if self.process is None:
            raise DaemonFailedError(f"{self.name} was stopped by this process")
        if code is not None:
            raise self._ended(code)

    def start(self, timeout: float = START_SECONDS) -> None:
        """Starts it again after `stop`, on the same socket and with the same state; TCP ports that were picked change.

        Args:
          timeout: seconds until it serves.

        Raises:
          DaemonFailedError: it cannot be run, has ended, or does not serve in time; the message says why.
          StateError: it runs, here or for another process; or this process is not its owner.
        """
        self._require_owner()
        if self.process is not None and self.process.poll() is None:
            raise StateError(f"{self.name} runs already, as process {self.process.pid}")
        lock = self._place.lock(timeout)
        try:
            self._stopping = threading.Event()
            self._failed = True
            self.environment = {name: value for name, value in os.environ.items() if name not in _OF_SYSTEMD}
            self._lock = lock
            self._run(timeout, (lock,))
        finally:
            os.close(lock)  # the daemon has it
        self._failed = False
        _running.add(self)
        threading.Thread(
            target=self._watch, args=(self.process, self._stopping), name=self.name, daemon=True
        ).start()

    def _started(self, process: int) -> None:
        self._place.write_holder(self._lock, process)

    def _watch(self, process: "subprocess.Popen[bytes]", stopping: threading.Event) -> None:
        code = process.wait()
        if not stopping.is_set():
            self._failed = True
            _log.error("%s", self._ended(code))

    def _ended(self, code: int) -> DaemonFailedError:
        return DaemonFailedError(
            f"{self.name} has ended by itself: {how_it_ended(code)}. The end of its log, {self.log_path}",
            self.log_tail(), code)  # fmt: skip

    def kill(self) -> None:
        """Ends it with SIGKILL. Does nothing if it was stopped.

        Raises:
          StateError: this process is not its owner.
        """
        self._require_owner()
        self._stopping.set()
        super().kill()

    def stop(self, timeout: Optional[float] = None) -> None:
        """Ends it with SIGTERM, and with SIGKILL if it has not ended in time. Its folder stays. Does nothing if it was
        stopped.

        Args:
          timeout: seconds; by default its stop_timeout= and 10 s more.

        Raises:
          DaemonFailedError: it did not end in time, or with an error.
          StateError: this process is not its owner.
        """
        self._require_owner()
        _running.discard(self)
        self._stopping.set()
        try:
            super().stop(self._stop_timeout + STOP_MARGIN_SECONDS if timeout is None else timeout)
        except DaemonFailedError:
            self._failed = True
            raise

    def close(self) -> None:
        """Stops it, and removes its folder if it has ended as it should.

        Raises:
          DaemonFailedError, StateError: as `stop`. Then the folder stays.
        """
        self.stop()
        if not self._failed:
            self._place.remove()

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, kind: Any, *unused: Any) -> None:
        if os.getpid() != self._owner:
            return
        if kind is None:
            self.close()
        else:
            self._close_or_log()  # the exception that is under way is the first one

    def _close_or_log(self) -> None:
        try:
            self.close()
        except DaemonFailedError as error:
            _log.error("%s", error)

    def _require_owner(self) -> None:
        if os.getpid() != self._owner:
            raise StateError(
                f"{self.name} belongs to process {self._owner}, which has started it; this is process {os.getpid()}"
            )


@atexit.register
def _close_all() -> None:
    for daemon in list(_running):
        daemon._close_or_log()


# A process that is forked owns none of them.
os.register_at_fork(after_in_child=_running.clear)
