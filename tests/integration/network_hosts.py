"""Hosts in network namespaces of their own, on one switch, with links whose speed and faults the caller sets.
Needs root, iproute2, and kernel support for namespaces, bridges and token buckets."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import unittest
from typing import Any, Iterator

from tests.integration.cluster import Cluster

HOSTS_MAX = 64
_NETWORK = "10.231.77"
_COMMAND_SECONDS = 30
_CLONE_NEWNET = 0x40000000
# Large, as between hosts that move weights: headers are below 1 % of the bytes.
_MTU = "9000"


class NoNamespaces(RuntimeError):
    """Hosts cannot be made here; says why."""


def _run(*words: str) -> str:
    paths = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}  # tc is there
    return subprocess.run(
        words, check=True, capture_output=True, timeout=_COMMAND_SECONDS, text=True, env=paths
    ).stdout


class NetworkHosts:
    """`count` hosts. A context manager, whose end removes them; processes on them have to have ended."""

    def __init__(self, count: int) -> None:
        assert 0 < count <= HOSTS_MAX
        self._switch = f"dws-{os.getpid()}-switch"
        self._spaces = [f"dws-{os.getpid()}-{host}" for host in range(count)]
        self._stack = contextlib.ExitStack()

    @classmethod
    def of_test(cls, case: unittest.TestCase, count: int = 2) -> "NetworkHosts":
        """Removed when the test ends. Skips the test if hosts cannot be made."""
        hosts = cls(count)
        try:
            hosts.__enter__()
        except NoNamespaces as error:
            case.skipTest(str(error))
        case.addCleanup(hosts.__exit__)
        return hosts

    def __enter__(self) -> "NetworkHosts":
        """Raises NoNamespaces."""
        with self._stack:
            try:
                self._make()
            except (OSError, subprocess.SubprocessError) as error:
                detail = getattr(error, "stderr", "") or str(error)
                raise NoNamespaces(f"no network namespaces here: {detail.strip()}") from error
            self._stack = self._stack.pop_all()
        return self

    def _make(self) -> None:
        for space in (self._switch, *self._spaces):
            _run("ip", "netns", "add", space)
            self._stack.callback(_run, "ip", "netns", "del", space)
        _run("ip", "-n", self._switch, "link", "add", "name", "switch", "mtu", _MTU, "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "switch", "up")
        for host, space in enumerate(self._spaces):
            port = f"port{host}"
            peer = ("peer", "name", "wire", "mtu", _MTU, "netns", space)
            _run("ip", "-n", self._switch, "link", "add", "name", port, "mtu", _MTU, "type", "veth", *peer)
            _run("ip", "-n", self._switch, "link", "set", port, "master", "switch", "up")
            _run("ip", "-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "wire")
            for link in ("lo", "wire"):
                _run("ip", "-n", space, "link", "set", link, "up")

    def __exit__(self, *unused: Any) -> None:
        self._stack.close()

    def address(self, host: int) -> str:
        return f"{_NETWORK}.{host + 1}"

    def command(self, host: int) -> list[str]:
        """What to put before a command to run it on `host`."""
        return ["ip", "netns", "exec", self._spaces[host]]

    def enter(self, cluster: Cluster, host: int) -> None:
        """Makes the cluster start its next daemons on `host`."""
        cluster.prefix = self.command(host)
        cluster.host = self.address(host)

    @contextlib.contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """A block in which this thread is on `host`: sockets that it makes there stay there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net", "rb") as home:
            with open(f"/run/netns/{self._spaces[host]}", "rb") as there:
                _set_namespace(libc, there.fileno())
            try:
                yield
            finally:
                _set_namespace(libc, home.fileno())

    def set_link(self, host: int, up: bool) -> None:
        _run("ip", "-n", self._spaces[host], "link", "set", "wire", "up" if up else "down")

    def limit(self, host: int, bytes_per_second: int) -> None:
        """Limits the host's link to this rate, in each direction."""
        burst = max(64 << 10, bytes_per_second // 1000)  # 1 ms: a timer is not more precise
        rate = ("tbf", "rate", f"{bytes_per_second}bps", "burst", str(burst), "latency", "200ms")
        self._shape(self._spaces[host], "wire", *rate)
        self._shape(self._switch, f"port{host}", *rate)

    def drop(self) -> None:
        """Silently drops every packet: none fits the bucket."""
        for space in self._spaces:
            self._shape(space, "wire", "tbf", "rate", "1mbit", "burst", "10", "limit", "10")

    def restore(self) -> None:
        """Ends every `limit` and `drop`."""
        for host, space in enumerate(self._spaces):
            self._shape(space, "wire", "pfifo")
            self._shape(self._switch, f"port{host}", "pfifo")

    @staticmethod
    def _shape(space: str, link: str, *words: str) -> None:
        _run("tc", "-n", space, "qdisc", "replace", "dev", link, "root", *words)

    def traffic(self) -> list[tuple[int, int]]:
        """Bytes that passed each host's link so far: sent and received by the host, behind any limit."""
        links = json.loads(_run("ip", "-n", self._switch, "-json", "-stats", "link", "show", "type", "veth"))
        found = {link["ifname"]: link["stats64"] for link in links}
        ports = [found[f"port{host}"] for host in range(len(self._spaces))]
        return [(int(port["rx"]["bytes"]), int(port["tx"]["bytes"])) for port in ports]


def _set_namespace(libc: ctypes.CDLL, file: int) -> None:
    if libc.setns(file, _CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")
