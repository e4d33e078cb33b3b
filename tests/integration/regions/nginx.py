"""Runs Debian's nginx with the configurations of deploy/nginx, as ordinary processes in folders of their own."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from typing import Iterator, Mapping, Optional, Sequence

from tests.integration.certificates import Authority, Files

_CONFIGS = "deploy/nginx"
_PATHS = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
START_SECONDS = 20.0
STOP_SECONDS = 10.0
_MAIN = """
{user}
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as one:
        one.bind((host, 0))
        port: int = one.getsockname()[1]
        return port


class Nginx:
    """One server. Kill and start may alternate."""

    def __init__(self, folder: str, site: str, changes: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        """Args:
        site: a file of deploy/nginx.
        changes: what stands in place of each text in it; each must be there.
        prefix: of the command, as `ip netns exec`.
        """
        self.folder = folder
        self.process: Optional[subprocess.Popen[bytes]] = None
        self._prefix = list(prefix)
        self.access_log = os.path.join(folder, "access.log")
        os.makedirs(folder)
        with open(os.path.join(_CONFIGS, site), encoding="utf-8") as file:
            text = file.read()
        text = re.sub(r"(access_log|error_log)( +)\S+?(-error)?\.log", rf"\1\2{folder}/\1", text)
        text = text.replace(f"{folder}/access_log", self.access_log).replace(f"{folder}/error_log", f"{folder}/error.log")
        for old, new in changes.items():
            if old not in text:
                raise AssertionError(f"{site} has no {old!r}")
            text = text.replace(old, new)
        with open(os.path.join(folder, "site.conf"), "w", encoding="utf-8") as file:
            file.write(text)
        user = "user root;" if os.getuid() == 0 else ""
        with open(os.path.join(folder, "nginx.conf"), "w", encoding="utf-8") as file:
            file.write(_MAIN.format(user=user, folder=folder))
        self._command = [_program(), "-p", folder, "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"]

    def check(self) -> str:
        """What `nginx -t` says. Raises CalledProcessError if it refuses the configuration."""
        done = subprocess.run([*self._command, "-t"], capture_output=True, text=True, check=True, timeout=30)
        return done.stderr

    def start(self, address: tuple[str, int], wrap: Sequence[str] = ()) -> None:
        """Returns when something accepts there. `wrap`: words before the command, as of a namespace."""
        with open(os.path.join(self.folder, "output"), "ab") as output:
            self.process = subprocess.Popen(
                [*self._prefix, *wrap, *self._command], stdout=output, stderr=output, start_new_session=True
            )
        probe = ["bash", "-c", f"exec 3<>/dev/tcp/{address[0]}/{address[1]}"]
        deadline = time.monotonic() + START_SECONDS
        while subprocess.run([*self._prefix, *probe], capture_output=True, check=False).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"nginx did not start: {self.errors()}")
            time.sleep(0.05)

    def errors(self) -> str:
        text = ""
        for name in ("output", "error.log"):
            path = os.path.join(self.folder, name)
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    text += "".join(file.readlines()[-20:])
        return text

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Master and workers hang, as behind a link that is cut."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, master and workers: they are a session of their own."""
        if self.process is None:
            return
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        if self.process.poll() is None:
            self.kill()
        self.process = None

    def requests(self) -> list[str]:
        """Its access log."""
        if not os.path.exists(self.access_log):
            return []
        with open(self.access_log, encoding="utf-8") as file:
            return file.read().splitlines()

    def bytes_sent(self, pattern: str = "") -> int:
        """Bytes of bodies of answers to requests that match `pattern`."""
        found = 0
        for line in self.requests():
            request = re.search(r'"([A-Z]+ \S+)[^"]*" (\d+) (\d+)', line)
            if request and re.search(pattern, request[1]):
                found += int(request[3])
        return found


def _program() -> str:
    program = shutil.which("nginx", path=_PATHS)
    if program is None:
        raise AssertionError("nginx is not installed: tools/install.sh")
    return program


def origin(
    folder: str,
    served: str,
    address: tuple[str, int],
    files: Files,
    prefix: Sequence[str] = (),
    changes: Optional[Mapping[str, str]] = None,
) -> Nginx:
    """Serves `served`, whose last part has to be "dws", at https://ADDRESS/dws."""
    assert os.path.basename(served) == "dws"
    parent = os.path.dirname(served)
    own = {
        "listen 8443 ssl": f"listen {address[0]}:{address[1]} ssl",
        "/etc/dws/tls/cert.pem": files.cert,
        "/etc/dws/tls/key.pem": files.key,
        "/etc/dws/tls/ca.pem": files.ca,
        "root /srv;": f"root {parent};",
        "from=/srv;": f"from={parent};",
    }
    return Nginx(folder, "origin.conf", {**own, **(changes or {})}, prefix)


def region(
    folder: str,
    cache: str,
    address: tuple[str, int],
    at: tuple[str, int],
    files: Files,
    prefix: Sequence[str] = (),
    changes: Optional[Mapping[str, str]] = None,
) -> Nginx:
    """A cache in `cache` of the origin `at`, whose certificate has the name localhost."""
    return Nginx(
        folder,
        "region.conf",
        {
            "listen 8443 ssl": f"listen {address[0]}:{address[1]} ssl",
            "/var/cache/nginx/dws": cache,
            "server dws-origin.example:8443": f"server {at[0]}:{at[1]}",
            "proxy_ssl_name                dws-origin.example": "proxy_ssl_name localhost",
            "/etc/dws/tls/cert.pem": files.cert,
            "/etc/dws/tls/key.pem": files.key,
            "/etc/dws/tls/ca.pem": files.ca,
            "min_free=10g": "min_free=1m",
            **(changes or {}),
        },
        prefix,
    )


def ask(at: tuple[str, int], method: str, path: str, files: Files, wait: float = 20) -> int:
    """The status of the answer to one request, with the certificate of `files`; 0: there is none within `wait` seconds."""
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    connection = http.client.HTTPSConnection("localhost", at[1], context=context, timeout=wait)
    try:
        connection.putrequest(method, path)
        connection.endheaders()
        return connection.getresponse().status
    except TimeoutError:
        return 0
    finally:
        connection.close()


def issue(folder: str) -> Files:
    """Certificates that prove loopback."""
    return Authority(folder, "authority").issue("server", "dws://test/receive/cache")
