"""One TCP connection between the trainer's side and the engine's: over loopback, or between two hosts."""

from __future__ import annotations

import contextlib
import socket
from typing import ContextManager, Optional

from tests.integration.network_hosts import NetworkHosts
from tools.bench.daemons.streams import TIMEOUT_SECONDS

TRAINER_HOST, ENGINE_HOST = 0, 1


def connect(hosts: Optional[NetworkHosts]) -> tuple[socket.socket, socket.socket]:
    """The trainer's end and the engine's. They may be given to other processes."""

    def on(host: int) -> ContextManager[None]:
        return hosts.inside(host) if hosts else contextlib.nullcontext()

    address = hosts.address(ENGINE_HOST) if hosts else "127.0.0.1"
    with on(ENGINE_HOST):
        listener = socket.create_server((address, 0))
    with listener:
        listener.settimeout(TIMEOUT_SECONDS)
        with on(TRAINER_HOST):
            near = socket.create_connection(listener.getsockname(), TIMEOUT_SECONDS)
        far, _ = listener.accept()
    for end in (near, far):
        end.settimeout(TIMEOUT_SECONDS)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far
