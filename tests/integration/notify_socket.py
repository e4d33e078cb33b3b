"""Receives what daemons send to systemd: a NOTIFY_SOCKET of the test."""

from __future__ import annotations

import os
import socket
import uuid
from typing import Optional


class NotifySocket:
    """Collects datagrams, each a dictionary. A context manager; processes started inside it
    find the socket, and a watchdog's interval, in their environment."""

    def __init__(self, folder: Optional[str] = None, watchdog_seconds: float = 0) -> None:
        """Args:
        folder: for the socket; without it the socket is abstract.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"notify-{uuid.uuid4().hex}"
        self.path = os.path.join(folder, name) if folder else f"@dws-{name}"
        self._socket.bind(self.path if folder else "\0" + self.path[1:])
        self._socket.setblocking(False)
        self._variables = {"NOTIFY_SOCKET": self.path}
        if watchdog_seconds:
            self._variables["WATCHDOG_USEC"] = str(int(watchdog_seconds * 1e6))
        self.messages: list[dict[str, str]] = []

    def __enter__(self) -> "NotifySocket":
        os.environ.update(self._variables)
        return self

    def __exit__(self, *unused: object) -> None:
        for name in self._variables:
            os.environ.pop(name, None)

    def close(self) -> None:
        self._socket.close()

    def count(self, name: str, value: str) -> int:
        """How many datagrams so far had this line."""
        self._receive()
        return sum(message.get(name) == value for message in self.messages)

    def last(self, name: str) -> str:
        """The last value of a name, empty before the first."""
        self._receive()
        return next((m[name] for m in reversed(self.messages) if name in m), "")

    def _receive(self) -> None:
        while True:
            try:
                text = self._socket.recv(65536).decode()
            except BlockingIOError:
                return
            self.messages.append(dict(line.split("=", 1) for line in text.split("\n") if line))
