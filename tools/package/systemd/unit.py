"""A unit of systemd: its properties, what it logs, and orders to it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from report import until

# Above TimeoutStartSec and TimeoutStopSec of the units.
_CALL_SECONDS = 150


def run(*command: str, timeout: float = _CALL_SECONDS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, capture_output=True, timeout=timeout, check=False)


def systemctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("systemctl", "--no-pager", *arguments)


class Unit:
    """`socket` and `http` are its daemon's, as the shipped configuration says unless told otherwise."""

    def __init__(self, name: str, http: str) -> None:
        self.name = name
        daemon, _, instance = name.partition("@")
        self.program = daemon
        self.socket = f"/run/dws/{daemon.removeprefix('dws-')}-{instance}.sock"
        self.state_folder = Path(f"/var/lib/dws/{daemon.removeprefix('dws-')}-{instance}")
        self.environment = Path(f"/etc/dws/{daemon.removeprefix('dws-')}-{instance}.env")
        self.http = http

    def show(self, key: str) -> str:
        return systemctl("show", "--value", f"--property={key}", self.name).stdout.strip()

    @property
    def pid(self) -> int:
        return int(self.show("MainPID") or 0)

    @property
    def restarts(self) -> int:
        return int(self.show("NRestarts") or 0)

    @property
    def active(self) -> bool:
        return self.show("ActiveState") == "active"

    def order(self, verb: str) -> subprocess.CompletedProcess[str]:
        return systemctl(verb, self.name)

    def signal(self, name: str) -> None:
        """Sends it to its main process, as the drills of the documentation do."""
        systemctl("kill", "--kill-whom=main", f"--signal={name}", self.name)

    def restarted(self, old_pid: int, seconds: float) -> bool:
        """Returns whether another process of it is active in time."""
        return until(lambda: self.active and self.pid not in (0, old_pid), seconds)

    def drop_in(self, *lines: str) -> None:
        """Settings over those of the unit, from its next start on; none: the unit's own."""
        folder = Path(f"/run/systemd/system/{self.name}.service.d")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "test.conf"
        if lines:
            path.write_text("\n".join(["[Service]", *lines, ""]))
        else:
            path.unlink(missing_ok=True)
            folder.rmdir()
        systemctl("daemon-reload")

    def journal(self, since: float = 0.0) -> list[dict[str, Any]]:
        """What it logged, and what systemd logged about it, from a time of the wall clock on."""
        subprocess.run(["journalctl", "--sync"], check=False, timeout=_CALL_SECONDS)
        lines = run("journalctl", "--output=json", "--all", f"--unit={self.name}", f"--since=@{since:.6f}").stdout
        return [json.loads(line) for line in lines.splitlines()]

    def events(self, since: float = 0.0) -> list[dict[str, Any]]:
        """What the daemon itself logged."""
        return [line for line in self.journal(since) if line.get("SYSLOG_IDENTIFIER") == self.program]

    def logged(self, event: str, since: float, seconds: float = 10.0) -> bool:
        def found() -> bool:
            return any(str(line["MESSAGE"]).split(" ")[0] == event for line in self.events(since))

        return until(found, seconds, 0.3)

    def page(self, path: str) -> str:
        with urlopen(f"http://{self.http}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def status(self) -> dict[str, Any]:
        """Its /status: a StatusReply of proto/admin.proto."""
        return dict(json.loads(self.page("/status")))

