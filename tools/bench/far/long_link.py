"""A link with a round trip time between two hosts of NetworkHosts, for kernels without netem: a process carries packets between
two tun devices, each half a round trip later. TCP is the kernels' own, with its slow start and windows."""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import multiprocessing
import os
import select
import struct
import subprocess
import time
from typing import Any, Iterator

from tests.integration.network_hosts import NetworkHosts

_NETWORK = "10.231.78"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 1500
_PACKETS_MAX = 100_000  # on their way in one direction, about 150 MB


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=30)


def address(host: int) -> str:
    """The address of host 0 or 1 on the long link."""
    return f"{_NETWORK}.{host + 1}"


def _open(hosts: NetworkHosts, host: int) -> int:
    with hosts.inside(host):
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"far", _IFF_TUN | _IFF_NO_PI))
        _ip("addr", "add", f"{address(host)}/30", "dev", "far")
        _ip("link", "set", "far", "mtu", str(_MTU), "txqueuelen", "20000", "up")
    return device


def _carry(devices: tuple[int, int], delay: float) -> None:
    """Runs until it is ended."""
    ways: dict[int, Any] = {device: collections.deque() for device in devices}
    other = dict(zip(devices, reversed(devices)))
    poll = select.poll()
    for device in devices:
        poll.register(device, select.POLLIN)
    while True:
        now = time.monotonic()
        first = min((way[0][0] for way in ways.values() if way), default=now + 1)
        for device, _ in poll.poll(max(0.0, first - now) * 1000):
            due = time.monotonic() + delay
            way = ways[device]
            for _ in range(256):
                try:
                    packet = os.read(device, _MTU + 100)
                except BlockingIOError:
                    break
                if len(way) < _PACKETS_MAX:
                    way.append((due, packet))
        now = time.monotonic()
        for device, way in ways.items():
            while way and way[0][0] <= now:
                try:
                    os.write(other[device], way.popleft()[1])
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.ENOBUFS, errno.EIO):
                        raise


@contextlib.contextmanager
def long_link(hosts: NetworkHosts, round_trip_seconds: float) -> Iterator[None]:
    """Between hosts 0 and 1, at `address`. Raises OSError or CalledProcessError: this machine makes no tun devices."""
    devices = (_open(hosts, 0), _open(hosts, 1))
    carrier = multiprocessing.get_context("fork").Process(target=_carry, args=(devices, round_trip_seconds / 2), daemon=True)
    carrier.start()
    try:
        yield
    finally:
        carrier.terminate()
        carrier.join()
        for device in devices:
            os.close(device)
