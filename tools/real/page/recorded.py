"""Serves a daemon's page with statuses that are given to it: the size of a large job, and names that are markup."""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import threading
import urllib.request
from typing import Any, Iterator

# Names and messages come from other machines. If one of these became markup, the title or the table would say so.
MARKUP = "<img src=x onerror=\"document.title='broken'\"><b>&lt;"
LONG = "model.layers.11.mlp.experts.up_proj.weight" * 12


class Recorded:
    """The server. `status` is what it serves next at /status."""

    def __init__(self, url: str, status: dict[str, Any]) -> None:
        self.url = url
        self.status = status


@contextlib.contextmanager
def serve(daemon_url: str, status: dict[str, Any]) -> Iterator[Recorded]:
    """The page of the daemon, with its headers, until the end."""
    with urllib.request.urlopen(daemon_url, timeout=10) as reply:
        page, headers = reply.read(), dict(reply.headers)

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page if self.path == "/" else json.dumps(recorded.status).encode()
            self.send_response(200 if self.path in ("/", "/status") else 404)
            for name in ("Content-Type", "Content-Security-Policy"):
                self.send_header(name, headers[name] if self.path == "/" else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *unused: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        recorded = Recorded(f"http://127.0.0.1:{server.server_port}/", status)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield recorded
        server.shutdown()


def of_many(status: dict[str, Any], receivers: int) -> dict[str, Any]:
    """The sender's status `status`, as it would be with so many receivers, four of them in trouble."""
    told = copy.deepcopy(status)
    sender = told["sender"]
    one = sender["receivers"][0]
    newest = int(sender["newest_version"])
    sender["receivers"] = [{**one, "receiver_id": f"rollout-{i:04d}.rack-{i % 20:02d}", "lag_versions": str(i % 5 // 4),
                            "committed_version": str(newest - i % 5 // 4)} for i in range(receivers)]  # fmt: skip
    sender["receivers"][-1].update(receiver_id=MARKUP, last_error=f"DATA_LOSS: {MARKUP}", nacks="17")
    sender["receivers"][-2].update(left_out=True, lag_versions="9", committed_version=str(newest - 9))
    sender["receivers"][-3].update(receiver_id="x" * 255, last_error=f"RESOURCE_EXHAUSTED: {LONG}")
    sender["receivers"].append({**one, "receiver_id": "gone", "present": False, "awaited": True})
    sender.update(receivers_present=receivers, receivers_absent=1)
    for i, row in enumerate(reversed(sender["versions"])):
        row["committed"] = receivers - (receivers // 5 if i == 0 else 1)
    return told


def hostile(status: dict[str, Any]) -> dict[str, Any]:
    """The status with markup in each of its texts, which keeps the page from knowing any name."""

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoil(one) for key, one in value.items()}
        if isinstance(value, list):
            return [spoil(one) for one in value]
        return MARKUP if isinstance(value, str) and not value.isdigit() else value

    spoiled: dict[str, Any] = spoil(status)
    return spoiled
