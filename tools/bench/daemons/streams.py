"""TCP streams as peers use them."""

from __future__ import annotations

import socket

TIMEOUT_SECONDS = 600.0  # for any answer of a peer
_PIECE_BYTES = 1 << 20


def receive_all(connection: socket.socket, to: memoryview) -> None:
    """Raises RuntimeError if the stream ends before `to` is full."""
    have = 0
    while have < len(to):
        got = connection.recv_into(to[have : have + _PIECE_BYTES])
        if got == 0:
            raise RuntimeError(f"a stream ended after {have} of {len(to)} bytes")
        have += got
