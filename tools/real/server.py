"""An engine's HTTP server, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Mapping, Optional, Sequence

# 15 to 30 on an idle machine; more where others compute too.
START_SECONDS = 600.0
REQUEST_SECONDS = 120.0
STOP_SECONDS = 20.0


def free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        return port


# The servers that have a process group of their own.
_listening: set["Server"] = set()


def kill_all() -> None:
    """Kills this process's servers, including those that other threads are starting."""
    for server in list(_listening):
        server.kill()


class Server:
    """Lifecycle: made listening; end. A Server that could not be made has left no process."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        ready: str,
        python: str = sys.executable,
        log: Optional[str] = None,
        port: int = 0,
    ) -> None:
        """Args:
        command: arguments of `python`, which take --host and --port too.
        variables: environment variables of the server, in addition to this process's.
        ready: a path that answers once it listens.
        log: a file for its output. With it the server has a process group of its own, which `end` ends.
        port: 0: a free one.

        Raises:
          RuntimeError: it does not listen.
        """
        self.port = port or free_port()
        self._log = log
        with open(log or os.devnull, "ab") as out:
            self._process = subprocess.Popen(
                [python, *command, "--host", "127.0.0.1", "--port", str(self.port)],
                env={**os.environ, **variables},
                stdout=out if log else None,
                stderr=out if log else None,
                start_new_session=log is not None,
            )
        if log is not None:
            _listening.add(self)
        try:
            self._await_ready(ready)
        except BaseException:
            self.kill()
            raise

    def _await_ready(self, path: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.get(path) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"the server does not listen, status {self._process.poll()}{self.log_tail()}"
                )
            time.sleep(0.3)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def log_tail(self, lines: int = 30) -> str:
        if self._log is None:
            return ""
        with open(self._log, errors="replace") as log:
            return ":\n" + "".join(log.readlines()[-lines:])

    def get(self, path: str) -> Optional[Any]:
        """Returns None if the server does not listen, or answers with an error."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def post(self, path: str, body: Mapping[str, Any], timeout: float = REQUEST_SECONDS) -> Any:
        """Returns None if the answer is empty, or is text.

        Raises:
          RuntimeError: it answered with an error, which the message has.
          OSError: it did not answer.
        """
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                content = answer.read()
                is_json = "json" in (answer.headers["Content-Type"] or "")
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"POST {path}: {error.code}: {error.read()[:500]!r}") from error
        return json.loads(content) if content and is_json else None

    def end(self) -> None:
        """Ends the server by SIGTERM, then like `kill`."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def kill(self) -> None:
        """kill -9, with the processes it has started if it has a group of its own. Idempotent."""
        if self._log is None:
            self._process.kill()
        else:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            _listening.discard(self)
        self._process.wait()
