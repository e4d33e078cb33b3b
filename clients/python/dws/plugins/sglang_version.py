"""Tells SGLang which version its weights have: its scheduler, and through it the answers of requests
(meta_info.weight_versions); its server, for GET /model_info and meta_info.weight_version."""

from __future__ import annotations

import json
import logging
import os
import ssl
import threading
import time
import urllib.request
from typing import Any, Callable, Optional

_LOG = logging.getLogger(__name__)
_TIMEOUT_SECONDS = 10.0
_RETRY_SECONDS = 0.2
_RETRY_SECONDS_MAX = 30.0


class VersionTeller:
    """Lifecycle: as long as the scheduler. Threads: `weights_are` from the scheduler's thread; a thread
    of its own talks to the server, which may not listen yet, or never (an engine without HTTP)."""

    def __init__(self, scheduler: Any, setting: Callable[[str], Any], first_rank: bool) -> None:
        """Args:
        scheduler: with record_weight_version_change.
        setting: the value in force of a setting, by name.
        first_rank: whether this rank tells the server.
        """
        self._scheduler = scheduler
        self._setting = setting
        self._first_rank = first_rank
        self._version: Optional[int] = None
        self._changed = threading.Condition()
        self._wanted: Optional[str] = None
        self._thread: Optional[threading.Thread] = None

    def weights_are(self, version: int) -> None:
        """A pass with `version` begins. Cheap if it is that of the pass before."""
        if version == self._version:
            return
        self._version = version
        self._scheduler.record_weight_version_change(new_version=str(version))
        if not self._first_rank:
            return
        with self._changed:
            self._wanted = str(version)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dws-version", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        told: Optional[str] = None
        wait = _RETRY_SECONDS
        while True:
            with self._changed:
                while self._wanted == told:
                    self._changed.wait()
                wanted = self._wanted
            try:
                if _server_listens(int(self._setting("port"))):
                    self._tell(str(wanted))
                    told, wait = wanted, _RETRY_SECONDS
                    continue
            except (OSError, ValueError) as error:
                if wait >= _RETRY_SECONDS_MAX:
                    _LOG.warning("dws: SGLang's server was not told version %s: %s", wanted, error)
            time.sleep(wait)
            wait = min(2 * wait, _RETRY_SECONDS_MAX)

    def _tell(self, version: str) -> None:
        """Raises OSError: not told."""
        host = self._setting("host")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        secure = bool(self._setting("ssl_certfile"))
        request = urllib.request.Request(
            f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}"
            f":{self._setting('port')}/update_weight_version",
            # Without this field, requests that run would be aborted.
            json.dumps({"new_version": version, "abort_all_requests": False}).encode(),
            {"Content-Type": "application/json"},
        )
        key = self._setting("admin_api_key") or self._setting("api_key")
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        # The server is known by its process; its certificate names another host.
        context = ssl._create_unverified_context() if secure else None
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=_TIMEOUT_SECONDS):
            pass


def _server_listens(port: int) -> bool:
    """Whether a process of this server listens at `port`: it could be another program's."""
    import psutil

    parent = psutil.Process(os.getppid())
    for process in [parent, *parent.children(recursive=True)]:
        try:
            # Its name since psutil 6.
            connections = getattr(process, "net_connections", None) or process.connections
            listening = connections("tcp")
        except psutil.Error:
            continue
        if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in listening):
            return True
    return False
