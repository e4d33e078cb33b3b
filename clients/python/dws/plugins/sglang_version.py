"""Tells SGLang the version of its weights: its scheduler, and through it the answers of requests
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

from dws.lease import Grant

_LOG = logging.getLogger(__name__)
_TIMEOUT_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_RETRY_SECONDS = 0.2
_RETRY_SECONDS_MAX = 30.0
_LISTEN_SECONDS_MAX = 2.0  # the longest wait for a server that starts


class VersionTeller:
    """Lifecycle: as long as the scheduler. Threads: `weights_are` from the scheduler's thread; a thread
    of its own talks to the server, which may not listen yet, or never (an engine without HTTP)."""

    def __init__(
        self,
        scheduler: Any,
        setting: Callable[[str], Any],
        grant: Optional[Callable[[], Optional[Grant]]],
        caches: bool = False,
    ) -> None:
        """Args:
        scheduler: with record_weight_version_change.
        setting: the value in force of a setting, by name.
        grant: the engine's, from any thread; None for a rank that does not tell the server.
        caches: true if SGLang keeps a cache of prefixes.
        """
        self._scheduler = scheduler
        self._setting = setting
        self._caches = caches
        self._version: Optional[int] = None
        self._changed = threading.Event()
        if grant is not None:
            arguments = (grant,)
            threading.Thread(target=self._run, args=arguments, name="dws-version", daemon=True).start()

    def weights_are(self, version: int) -> None:
        """A pass with `version` begins. SGLang compares it with its own value, which may be older
        than the one that the last pass told it: what the server is told also reaches the scheduler,
        later."""
        self._scheduler.record_weight_version_change(new_version=str(version))
        if version != self._version:
            if self._caches and self._version is not None:
                self._caches = False
                _LOG.warning(
                    "dws: version %d follows %d, and SGLang keeps its cache of prefixes, which new requests are served "
                    "from. Give requests the version as cache_salt, flush the cache after a version (POST "
                    "/flush_cache), or turn it off (--disable-radix-cache); this warning comes once",
                    version,
                    self._version,
                )
            self._version = version
            self._changed.set()

    def _run(self, grant: Callable[[], Optional[Grant]]) -> None:
        told: Optional[int] = None
        wait = _RETRY_SECONDS
        while True:
            # No pass tells of a version that is committed while nothing is generated.
            self._changed.wait(_LOOK_SECONDS)
            self._changed.clear()
            now = grant()
            if now is None or now.version == told:
                continue
            longest = _LISTEN_SECONDS_MAX
            try:
                if _server_listens(int(self._setting("port"))):
                    longest = _RETRY_SECONDS_MAX
                    self._tell(str(now.version))
                    told, wait = now.version, _RETRY_SECONDS
                    continue
            except Exception as error:  # whatever it is must not end the thread
                if wait >= longest:
                    _LOG.warning("dws: SGLang's server was not told version %d: %r", now.version, error)
            time.sleep(min(wait, longest))
            wait = min(2 * wait, longest)

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
    """Returns whether a process of this server listens at `port`: it could be another program's."""
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
