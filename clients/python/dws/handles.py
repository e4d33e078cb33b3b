"""The handle socket: where descriptors go to a daemon, and whose hang-up tells either side's death.

Wire: SOCK_SEQPACKET; every message is the token (16 bytes) and the total number of descriptors (u32
little endian), with up to DESCRIPTORS_PER_MESSAGE of them attached; after the last one the daemon
answers "ok" or "error: <text>". The connection stays open for the life of the registration.
"""

from __future__ import annotations

import select
import socket
import struct
from typing import Sequence

from dws.errors import DaemonUnavailableError, DwsError

DESCRIPTORS_PER_MESSAGE = 200
_REPLY_BYTES_MAX = 4096


class HandleConnection:
    """An accepted registration's connection. Closing it ends the registration."""

    def __init__(self, path: str, token: bytes, descriptors: Sequence[int], timeout: float) -> None:
        """Connects, passes the descriptors and waits for the daemon's word.

        Args:
          token: from the registration's reply, single use.
          timeout: seconds, for the whole exchange each step.

        Raises:
          DaemonUnavailableError: nobody listens, or the daemon went away.
          DwsError: the daemon refused; the message is its own.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(path)
            self._send(token, descriptors)
            reply = self._socket.recv(_REPLY_BYTES_MAX).decode(errors="replace")
        except OSError as error:
            self._socket.close()
            raise DaemonUnavailableError(
                f"handing memory over on {path} failed: {error}; is the daemon still running?"
            ) from error
        if reply != "ok":
            self._socket.close()
            raise DwsError(
                f"the daemon refused the memory handed over on {path}: "
                f"{reply.removeprefix('error: ') or 'it hung up'}"
            )

    def _send(self, token: bytes, descriptors: Sequence[int]) -> None:
        payload = token + struct.pack("<I", len(descriptors))
        for first in range(0, max(len(descriptors), 1), DESCRIPTORS_PER_MESSAGE):
            batch = list(descriptors[first : first + DESCRIPTORS_PER_MESSAGE])
            socket.send_fds(self._socket, [payload], batch)

    def hung_up(self) -> bool:
        """Whether the daemon has ended the registration, or its life."""
        if self._socket.fileno() < 0:
            return True
        poller = select.poll()
        poller.register(self._socket, select.POLLRDHUP)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Ends the registration."""
        self._socket.close()
