"""Starts DWS daemons in their own folder, with HTTP pages on free ports, and stops them
by pid. They connect over unix sockets, or over TCP if their flags have certificates or
--insecure: then as if they were on different hosts."""

from __future__ import annotations

import os
import shutil
import socket as sockets
import tempfile
import urllib.request
from typing import Any, Optional
from unittest import mock

from dws.daemons.process import START_SECONDS, DaemonProcess
from dws.errors import DaemonFailedError as DaemonFailed

# Paths in the runfiles.
SENDER = "sender_daemon/dws-sender"
RECEIVER = "receiver_daemon/dws-receiver"

# The protocol between daemons, as in common/service/protocol_version.h.
PROTOCOL_MAJOR = 2


class Daemon(DaemonProcess):
    """One daemon process; `start` and the stops may alternate. Its folder and log are kept.

    Attributes:
      host: the address it listens on for other hosts, if any.
      pages: whether it has an HTTP port.
    """

    def __init__(
        self, name: str, folder: str, command: list[str], host: str = "127.0.0.1", pages: bool = True
    ) -> None:
        super().__init__(name, folder, command)
        self.host = host
        self.pages = pages
        self._reserved: list[sockets.socket] = []

    @property
    def speaks_tcp(self) -> bool:
        return any(flag == "--insecure" or flag.startswith("--tls-ca=") for flag in self.command)

    @property
    def address(self) -> str:
        """Where it accepts other daemons: its port or its unix socket."""
        if not self.speaks_tcp:
            return f"unix:{self.socket}"
        return f"{self.host}:{self.ports.get('sync') or self.ports['admin']}"

    def logged(self, event: str) -> int:
        """How many lines of its log, as text, are of `event`. tools/tidy holds that there is such an event."""
        with open(self.log_path, errors="replace") as log:
            return sum(line.split(maxsplit=4)[3:4] == [event] for line in log)

    def flags(self) -> list[str]:
        flags = super().flags()
        if self.pages:
            flags.append(f"--http=127.0.0.1:{self.ports.get('http', 0)}")
        if self.speaks_tcp:
            port = self.ports.get("sync", self.ports.get("admin", 0))
            flags.append(f"--listen={self.host}:{port}")
        return flags

    def start(self, timeout: float = START_SECONDS) -> None:
        """See DaemonProcess.start. A restart keeps its ports."""
        if self.host == "127.0.0.1" and not self._reserved:
            self.reserve_ports()
        super().start(timeout)

    def start_armed(self, **environment: str) -> None:
        """Starts it this once as the program with failpoints, which `environment` arms (DWS_FAILPOINT)."""
        with mock.patch.dict(os.environ, environment), mock.patch.object(
            self, "command", [f"{self.command[0]}-failpoints", *self.command[1:]]
        ):
            self.start()

    def reserve_ports(self) -> None:
        """Reserves the ports while the daemon is down. Bound sockets that do not listen: a daemon,
        which sets SO_REUSEADDR too, may listen beside them."""
        for name in ("http", "sync"):
            self._reserved.append(sockets.socket())
            self._reserved[-1].setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
            self._reserved[-1].bind(("127.0.0.1", 0))
            self.ports[name] = self._reserved[-1].getsockname()[1]

    def release_ports(self) -> None:
        while self._reserved:
            self._reserved.pop().close()

    def page(self, path: str) -> str:
        """Returns the current page of its HTTP port.

        Raises:
          urllib.error.HTTPError: for a code other than 200.
        """
        url = f"http://127.0.0.1:{self.ports['http']}{path}"
        with urllib.request.urlopen(url, timeout=10) as page:
            text: str = page.read().decode()
        return text

    def readyz(self) -> tuple[int, str]:
        """Code and text of the page."""
        try:
            return 200, self.page("/readyz")
        except urllib.error.HTTPError as reply:
            with reply:
                return reply.code, reply.read().decode()

    def metric(self, name: str, label: str = "") -> float:
        """The one sample of that name whose labels contain `label`, from /metrics.

        Raises:
          KeyError: there is none, or there are several.
        """
        lines = self.page("/metrics").splitlines()
        found = [
            line for line in lines if line.startswith((name + "{", name + " ")) and label in line
        ]
        if len(found) != 1:
            raise KeyError(f"{self.name} has {len(found)} samples of {name} with {label!r}")
        return float(found[0].rsplit(" ", 1)[1])

    def own_bytes(self) -> int:
        """The memory of the running process alone: without what it shares, as regions of trainers and engines are."""
        assert self.process is not None
        with open(f"/proc/{self.process.pid}/status") as status:
            (line,) = (line for line in status if line.startswith("RssAnon:"))
        return int(line.split()[1]) << 10  # kB


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
        # How the next daemons run: a command prefix, and the address they have there;
        # and whether they have HTTP pages.
        self.prefix: list[str] = []
        self.host = "127.0.0.1"
        self.pages = True
        self.senders: list[Daemon] = []
        self.receivers: list[Daemon] = []

    def start_sender(self, rank: int = 0, *flags: str, name: str = "") -> Daemon:
        """A sender for one trainer rank; `name`: its folder, if the rank has several senders."""
        daemon = self.add_sender(rank, *flags, name=name)
        daemon.start()
        return daemon

    def add_sender(self, rank: int = 0, *flags: str, name: str = "") -> Daemon:
        """As start_sender, for the caller to start, who may first set its ports and add flags that need them."""
        command = [SENDER, f"--job-id={self.job_id}", f"--trainer-rank={rank}", *flags]
        return self._add(name or f"sender-{rank}", command, self.senders)

    def start_receiver(
        self, receiver_id: str, *flags: str, senders: bool = True, name: str = ""
    ) -> Daemon:
        """A receiver of all senders started so far, or of those that `flags` name. The scrub is off
        unless `flags` enable it, because it would find drift before a test does. `name`: its
        folder, if several receivers have the id."""
        command = [RECEIVER, f"--job-id={self.job_id}", f"--receiver-id={receiver_id}", *flags]
        if not any(flag.startswith("--scrub-rate") for flag in flags):
            command.append("--scrub-rate=0")
        for sender in self.senders if senders else []:
            command.append(f"--sender={sender.address}")
        # Over TCP full tensors come as from another host, unless `flags` say how.
        tcp = any(flag == "--insecure" or flag.startswith("--tls-ca=") for flag in flags)
        if tcp and not any(flag.startswith("--full-way") for flag in flags):
            command.append("--full-way=grpc")
        daemon = self._add(name or receiver_id, command, self.receivers)
        daemon.start()
        return daemon

    def _add(self, name: str, command: list[str], daemons: list[Daemon]) -> Daemon:
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        daemons.append(Daemon(name, folder, [*self.prefix, *command], self.host, self.pages))
        daemons[-1].outlives_owner = self.keep
        return daemons[-1]

    @property
    def daemons(self) -> list[Daemon]:
        return [*self.receivers, *self.senders]

    def logs(self, lines: int = 15) -> str:
        """The last lines of all logs, for a failed test's message."""
        return "\n".join(f"--- {d.name}\n{d.log_tail(lines)}" for d in self.daemons)

    def stop(self) -> None:
        """Stops all daemons, then raises the first failure."""
        failures = []
        for daemon in self.daemons:
            try:
                daemon.stop()
            except DaemonFailed as failure:
                failures.append(failure)
            daemon.release_ports()
        shutil.rmtree(self.folder, ignore_errors=True)
        if failures:
            raise failures[0]

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *unused: Any) -> None:
        if not self.keep:
            self.stop()
