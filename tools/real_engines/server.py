"""An engine's HTTP server, in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Mapping, Optional, Sequence

START_SECONDS = 180.0


def free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        return port


class Server:
    """Lifecycle: made listening; end."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], ready: str) -> None:
        """Args:
        command: arguments of this Python, which take --host and --port too.
        variables: of its environment, beside this process's own.
        ready: a path that answers once it listens.
        """
        self.port = free_port()
        self._process = subprocess.Popen(
            [sys.executable, *command, "--host", "127.0.0.1", "--port", str(self.port)],
            env={**os.environ, **variables},
        )
        deadline = time.monotonic() + START_SECONDS
        while self.get(ready) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not listen, status {self._process.poll()}")
            time.sleep(0.5)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Optional[Any]:
        """None: it does not listen."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            return None

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Raises:
        RuntimeError: it answered with an error, which the message has.
        """
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"POST {path}: {error.code}: {error.read()[:500]!r}") from error

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(60)
