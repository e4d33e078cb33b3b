"""Starts DWS daemons in a folder of their own, on ports the system picks, and stops them by their
pid."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, Optional

# Paths in the runfiles.
SENDER = "sender_daemon/dws-sender"
RECEIVER = "receiver_daemon/dws-receiver"

START_SECONDS = 30.0
STOP_SECONDS = 20.0


class DaemonFailed(RuntimeError):
    """A daemon did not start, or did not stop; the message ends with its log's last lines."""


@dataclasses.dataclass
class Daemon:
    """One daemon process; `start` and the stops may alternate. Its folder and log live on."""

    name: str
    folder: str
    command: list[str]
    process: Optional[subprocess.Popen[bytes]] = None
    ports: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def socket(self) -> str:
        return os.path.join(self.folder, "d.sock")

    @property
    def log_path(self) -> str:
        return os.path.join(self.folder, "log")

    def log_tail(self, lines: int = 20) -> str:
        with open(self.log_path, errors="replace") as log:
            return "".join(log.readlines()[-lines:])

    def start(self) -> None:
        """Runs it and waits until it has bound its ports. A restart keeps the ports of before.

        Raises:
          DaemonFailed: it ended, or was not up in time.
        """
        ports_file = os.path.join(self.folder, "ports.json")
        if os.path.exists(ports_file):
            os.unlink(ports_file)
        command = [
            *self.command,
            f"--socket={self.socket}",
            f"--ports-file={ports_file}",
            f"--http=127.0.0.1:{self.ports.get('http', 0)}",
            f"--listen=127.0.0.1:{self.ports.get('sync', self.ports.get('admin', 0))}",
            f"--state-dir={os.path.join(self.folder, 'state')}",
        ]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while not os.path.exists(ports_file):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DaemonFailed(f"{self.name} did not start:\n{self.log_tail()}")
            time.sleep(0.01)
        with open(ports_file) as file:
            self.ports = json.load(file)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM; kill -9 for one that does not listen, and then it raises.

        Raises:
          DaemonFailed: it did not end in time, or with an error.
        """
        if self.process is None:
            return
        code = self._end(signal.SIGTERM)
        if code != 0:
            raise DaemonFailed(f"{self.name} ended with status {code}:\n{self.log_tail()}")

    def _end(self, number: int) -> Optional[int]:
        assert self.process is not None
        self.process.send_signal(number)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        self.process = None
        return code


class Cluster:
    """The daemons of one job. A context manager: its end stops them and removes their folder."""

    def __init__(
        self, job_id: str = "test", folder: Optional[str] = None, keep: bool = False
    ) -> None:
        """Args:
        folder: for sockets (keep it short), state and logs; by default a temporary one.
        keep: leave daemons and folder at the end.
        """
        self.job_id = job_id
        # Not the test's own folder: a unix socket's path has at most 107 bytes.
        self.folder = folder or tempfile.mkdtemp(prefix="dws-", dir="/tmp")
        self.keep = keep
        self.senders: list[Daemon] = []
        self.receivers: list[Daemon] = []

    def start_sender(self, rank: int = 0, *flags: str) -> Daemon:
        """A sender for one trainer rank."""
        command = [SENDER, f"--job-id={self.job_id}", f"--trainer-rank={rank}", *flags]
        self.senders.append(self._start(f"sender-{rank}", command))
        return self.senders[-1]

    def start_receiver(self, name: str, *flags: str, senders: bool = True) -> Daemon:
        """A receiver of all senders started so far, or of those that `flags` name."""
        command = [RECEIVER, f"--job-id={self.job_id}", f"--receiver-id={name}", *flags]
        for sender in self.senders if senders else []:
            command.append(f"--sender=127.0.0.1:{sender.ports['sync']}")
        self.receivers.append(self._start(name, command))
        return self.receivers[-1]

    def _start(self, name: str, command: list[str]) -> Daemon:
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        daemon = Daemon(name, folder, command)
        daemon.start()
        return daemon

    @property
    def daemons(self) -> list[Daemon]:
        return [*self.receivers, *self.senders]

    def logs(self, lines: int = 15) -> str:
        """The ends of all logs, for a failed test's message."""
        return "\n".join(f"--- {d.name}\n{d.log_tail(lines)}" for d in self.daemons)

    def stop(self) -> None:
        """Stops all, then raises what the first one failed with."""
        failures = []
        for daemon in self.daemons:
            try:
                daemon.stop()
            except DaemonFailed as failure:
                failures.append(failure)
        shutil.rmtree(self.folder, ignore_errors=True)
        if failures:
            raise failures[0]

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *unused: Any) -> None:
        if not self.keep:
            self.stop()
