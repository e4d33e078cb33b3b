"""Two hosts for a test, each in its own network namespace, with a wire between them whose faults the test sets."""

from __future__ import annotations

import os
import subprocess
import unittest

from tests.integration.cluster import Cluster

_ADDRESSES = ("10.231.77.1", "10.231.77.2")


def _run(*words: str) -> str:
    paths = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}  # tc is there
    return subprocess.run(
        words, check=True, capture_output=True, timeout=30, text=True, env=paths
    ).stdout


class NetworkHosts:
    """Hosts 0 and 1, removed when the test ends. Skips the test if it cannot make namespaces."""

    def __init__(self, case: unittest.TestCase) -> None:
        self._spaces = [f"dws-{os.getpid()}-{side}" for side in "ab"]
        for space in self._spaces:
            try:
                _run("ip", "netns", "add", space)
            except (OSError, subprocess.CalledProcessError) as error:
                detail = getattr(error, "stderr", "") or str(error)
                case.skipTest(f"no network namespaces here: {detail.strip()}")
            case.addCleanup(_run, "ip", "netns", "del", space)
        first, second = self._spaces
        veth = ("link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", second)
        _run("ip", "-n", first, *veth)
        for space, host in zip(self._spaces, _ADDRESSES):
            _run("ip", "-n", space, "addr", "add", f"{host}/24", "dev", "wire")
            for link in ("lo", "wire"):
                _run("ip", "-n", space, "link", "set", link, "up")

    def enter(self, cluster: Cluster, host: int) -> None:
        """Makes the cluster start its next daemons on `host`."""
        cluster.prefix = ["ip", "netns", "exec", self._spaces[host]]
        cluster.host = _ADDRESSES[host]

    def set_link(self, up: bool) -> None:
        _run("ip", "-n", self._spaces[1], "link", "set", "wire", "up" if up else "down")

    def limit(self, bits_per_second: int) -> None:
        """Limits the rate at which host 0 sends."""
        rate = ("rate", str(bits_per_second), "burst", "64kb", "latency", "400ms")
        _run("tc", "-n", self._spaces[0], "qdisc", "replace", "dev", "wire", "root", "tbf", *rate)

    def drop(self) -> None:
        """Silently drops every packet of both hosts: none fits the bucket."""
        for space in self._spaces:
            rate = ("rate", "1mbit", "burst", "10", "limit", "10")
            _run("tc", "-n", space, "qdisc", "replace", "dev", "wire", "root", "tbf", *rate)

    def restore(self) -> None:
        """Ends `limit` and `drop`."""
        for space in self._spaces:
            _run("tc", "-n", space, "qdisc", "replace", "dev", "wire", "root", "pfifo")

    def sent_bytes(self) -> int:
        """Bytes that host 0 has sent so far."""
        path = "/sys/class/net/wire/statistics/tx_bytes"
        return int(_run("ip", "netns", "exec", self._spaces[0], "cat", path))
