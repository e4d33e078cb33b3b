"""One daemon process in a folder of its own: how it is started, watched while it starts, and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from typing import Mapping, Optional, Sequence

from dws.daemons.ending import how_it_ended, why_not_run
from dws.errors import DaemonFailedError

START_SECONDS = 60.0
# The daemons' own --stop-timeout, and how much longer they may take before SIGKILL.
STOP_SECONDS = 20.0
STOP_MARGIN_SECONDS = 10.0
# After SIGKILL: longer only for a process that the kernel itself cannot end.
KILL_SECONDS = 30.0
_POLL_SECONDS = 0.01
_LOG_LINE_BYTES = 4096


class DaemonProcess:
    """A daemon with its socket, its log and its state in one folder. `start` and `stop` may alternate.

    Threads: one at a time.

    Attributes:
      name: for messages.
      folder: exists, and stays.
      command: the program and its flags, without those that `flags` adds.
      environment: all variables that it gets; None: those of this process.
      outlives_owner: whether it goes on when this process has ended.
      process: None before `start` and after `stop`.
      ports: the TCP ports that it listens on, by name: "http"; "sync" of a sender, "admin" of a receiver.
    """

    def __init__(self, name: str, folder: str, command: Sequence[str]) -> None:
        self.name = name
        self.folder = folder
        self.command = list(command)
        self.environment: Optional[Mapping[str, str]] = None
        self.outlives_owner = False
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.ports: dict[str, int] = {}

    @property
    def socket(self) -> str:
        """The path of its unix socket."""
        return os.path.join(self.folder, "d.sock")

    @property
    def log_path(self) -> str:
        """The file that its log is appended to."""
        return os.path.join(self.folder, "log")

    @property
    def state_dir(self) -> str:
        return os.path.join(self.folder, "state")

    def flags(self) -> list[str]:
        """What is added to the command at each start."""
        owner = [] if self.outlives_owner else [f"--owner-pid={os.getpid()}"]
        return [f"--socket={self.socket}", f"--state-dir={self.state_dir}", *owner]

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log; "" before its first start."""
        with contextlib.suppress(FileNotFoundError), open(self.log_path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - lines * _LOG_LINE_BYTES))
            return b"".join(log.readlines()[-lines:]).decode(errors="replace")
        return ""

    def start(self, timeout: float = START_SECONDS) -> None:
        """Runs it, and returns when it serves.

        Args:
          timeout: seconds.

        Raises:
          DaemonFailedError: it cannot be run, has ended, or does not serve in time: then it is killed.
        """
        self._run(timeout)

    def _started(self, process: int) -> None:
        """Called when it runs, before it serves."""

    def _run(self, timeout: float, pass_fds: Sequence[int] = ()) -> None:
        """Args:
        pass_fds: descriptors that the daemon inherits.
        """
        ports_file = os.path.join(self.folder, "ports.json")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(ports_file)
        command = [*self.command, *self.flags(), f"--ports-file={ports_file}"]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self.log_path, flags, 0o644), "ab") as log:
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                    pass_fds=pass_fds, start_new_session=True)  # fmt: skip
            except OSError as error:
                raise DaemonFailedError(f"{self.name}: {why_not_run(command[0], error)}") from error
        try:
            self._started(self.process.pid)
            self._await_file(ports_file, timeout)
            with open(ports_file) as file:
                self.ports = json.load(file)
        except BaseException:  # Ctrl-C, too: nobody else could stop it
            if self.process is not None:
                self._end(signal.SIGKILL, KILL_SECONDS)
            raise

    def _await_file(self, ports_file: str, timeout: float) -> None:
        """A daemon writes the file, as a whole, when it serves."""
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while not os.path.exists(ports_file):
            code = self.process.poll()
            if code is not None:
                self.process = None
                raise DaemonFailedError(
                    f"{self.name} ended before it served: {how_it_ended(code)}. The end of its log, {self.log_path}",
                    self.log_tail(), code)  # fmt: skip
            if time.monotonic() > deadline:
                self._end(signal.SIGKILL, KILL_SECONDS)
                raise DaemonFailedError(
                    f"{self.name} did not serve within {timeout:g} s and was killed: look at what it waits for, or "
                    f"give it more time. The end of its log, {self.log_path}", self.log_tail())  # fmt: skip
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Ends it with SIGKILL. Does nothing if it does not run."""
        if self.process is None:
            return
        self._end(signal.SIGKILL, KILL_SECONDS)

    def stop(self, timeout: float = STOP_SECONDS + STOP_MARGIN_SECONDS) -> None:
        """Ends it with SIGTERM, and with SIGKILL if it has not ended in time. Does nothing if it does not run.

        Args:
          timeout: seconds; more than its --stop-timeout, for which work under way may take.

        Raises:
          DaemonFailedError: it did not end in time, or with an error.
        """
        if self.process is None:
            return
        code = self._end(signal.SIGTERM, timeout)
        if code is None:
            raise DaemonFailedError(
                f"{self.name} did not end within {timeout:g} s of SIGTERM and was killed. The end of its log, "
                f"{self.log_path}", self.log_tail())  # fmt: skip
        if code != 0:
            raise DaemonFailedError(
                f"{self.name}: {how_it_ended(code)}. The end of its log, {self.log_path}", self.log_tail(), code
            )

    def _end(self, number: int, timeout: float) -> Optional[int]:
        """Returns its exit status; None if it had to be killed."""
        assert self.process is not None
        process = self.process
        process.send_signal(number)  # does nothing if it has ended
        code: Optional[int] = None
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)
        self.process = None
        return code
