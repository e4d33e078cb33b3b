"""A small HTTP server of files, as nginx with autoindex_format json, that misbehaves as a test says."""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import threading
import urllib.parse
from typing import Callable, Optional

# Gets the path that is asked for and the right status and body; returns those that are sent, or None to close the
# connection without an answer. A body that is shorter than its Content-Length is torn: see Torn.
Fault = Callable[[str, int, bytes], Optional[tuple[int, bytes]]]


class Torn(bytes):
    """A body of which only the first half is sent."""


class HttpFiles:
    """Serves `folder` at `url`. `asked` has what was asked for, in order: (method, path, headers)."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.fault: Optional[Fault] = None
        self.ranges = True
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.body_bytes = 0
        self.lock = threading.Lock()
        outer = self

        class Answers(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self, True)

            def do_HEAD(self) -> None:
                outer.answer(self, False)

            def log_message(self, *unused: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *unused: object) -> None:
                pass  # a client that has gone

        self._server = Server(("127.0.0.1", 0), Answers)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/dws"

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def paths(self, pattern: str) -> list[str]:
        with self.lock:
            return [path for _, path, _ in self.asked if re.search(pattern, path)]

    def _find(self, path: str) -> tuple[int, bytes, str]:
        at = os.path.join(self.folder, path[len("/dws/") :])
        if not path.startswith("/dws/") or not os.path.exists(at):
            return 404, b"none", ""
        if path.endswith("/"):
            entries = [{"name": e.name, "type": "directory" if e.is_dir() else "file"} for e in os.scandir(at)]
            return 200, json.dumps(entries).encode(), ""
        with open(at, "rb") as file:
            state = os.fstat(file.fileno())
            return 200, file.read(), f'"{state.st_mtime_ns:x}-{state.st_size:x}"'

    def answer(self, on: http.server.BaseHTTPRequestHandler, with_body: bool) -> None:
        path = urllib.parse.unquote(on.path)
        with self.lock:
            self.asked.append((on.command, path, dict(on.headers.items())))
        try:
            status, body, etag = self._find(path)
        except OSError:
            status, body, etag = 404, b"gone", ""
        size = len(body)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", on.headers.get("Range", ""))
        if asked and status == 200 and self.ranges:
            status, body = 206, body[int(asked[1]) : int(asked[2]) + 1]
        if self.fault is not None:
            changed = self.fault(path, status, body if with_body else b"")
            if changed is None:
                on.connection.shutdown(socket.SHUT_RDWR)
                on.close_connection = True
                return
            status, spoiled = changed
            body = spoiled if with_body or status >= 300 else body
        on.send_response(status)
        on.send_header("Content-Length", str(len(body) if with_body or status >= 300 else size))
        if etag and status < 300:
            on.send_header("ETag", etag)
        on.end_headers()
        if not with_body:
            return
        if isinstance(body, Torn):
            body = bytes(body[: len(body) // 2])
            on.close_connection = True
        with self.lock:
            self.body_bytes += len(body)
        on.wfile.write(body)
