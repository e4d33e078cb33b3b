"""The handle socket: passes descriptors to a daemon; its hang-up shows that either side has died.

Wire: SOCK_SEQPACKET. Every message is the token (16 bytes) and the total number of descriptors (u32
little endian), with up to DESCRIPTORS_PER_MESSAGE of them attached. After the last one the daemon
answers "ok" or "error: <text>". The connection stays open for the life of the registration. To end
it the client shuts its side down; the daemon's side ends when the daemon no longer uses the memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from typing import Callable, Sequence, TypeVar, Union

from dws.deadline import Deadline
from dws.errors import DaemonUnavailableError, DeadlineError, DwsError, TokenLostError

_T = TypeVar("_T")

DESCRIPTORS_PER_MESSAGE = 200
_REPLY_BYTES_MAX = 4096
_RETRY_SECONDS = 0.005
_POLL_SECONDS = 0.001
_DISPLACED_MAX = 100

# An open descriptor, which its owner keeps, or a call that makes one just before it is sent; that
# one is closed after it was sent.
Descriptor = Union[int, Callable[[], int]]


def again_while_displaced(register: Callable[[], _T]) -> _T:
    """Calls register(), and calls it again if other registrations took its place before it handed
    its memory over: a daemon keeps a limited number of registrations that are not complete, and
    drops the oldest.

    Raises:
      As `register`; TokenLostError after _DISPLACED_MAX times.
    """
    for _ in range(_DISPLACED_MAX):
        with contextlib.suppress(TokenLostError):
            return register()
    return register()


class HandleConnection:
    """A registration's connection.

    Lifecycle: make, hand_over once; `end` until the daemon has released the memory, or close.
    Threads: one at a time; `shut` and `hung_up` from any.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ended = False  # from this side

    def hand_over(
        self, path: str, token: bytes, descriptors: Sequence[Descriptor], timeout: float
    ) -> None:
        """Connects, passes the descriptors and waits for the daemon's answer.

        Args:
          token: from the registration's reply, single use.
          timeout: seconds, for the whole exchange.

        On failure the registration is ended. If the daemon's answer did not arrive, it may have the
        memory nevertheless: `end` tells.

        Raises:
          DaemonUnavailableError: nobody listens, or the daemon went away.
          DeadlineError: the daemon does not answer.
          DwsError: the daemon refused, with its message. Errors of calls that make descriptors.
        """
        deadline = Deadline(timeout)
        try:
            self._socket.settimeout(max(deadline.left, _POLL_SECONDS))
            self._socket.connect(path)
            self._send(token, descriptors, deadline)
            self._socket.settimeout(max(deadline.left, _POLL_SECONDS))
            reply = self._socket.recv(_REPLY_BYTES_MAX).decode(errors="replace")
        except TimeoutError as error:
            self.shut()
            raise DeadlineError(
                f"handing memory over on {path}: the daemon did not answer within {timeout:.1f} s; "
                "is it stopped?"
            ) from error
        except OSError as error:
            self.shut()
            raise DaemonUnavailableError(
                f"handing memory over on {path} failed: {error}; is the daemon still running?"
            ) from error
        except BaseException:
            self.shut()
            raise
        if not reply:  # a daemon that refuses says why
            self.shut()
            raise DaemonUnavailableError(
                f"handing memory over on {path} failed: the daemon closed the connection without an answer; is it still running?"
            )
        if reply != "ok":
            self.shut()
            why = reply.removeprefix("error: ")
            lost = why.startswith("the token is unknown")
            raise (TokenLostError if lost else DwsError)(
                f"the daemon refused the memory handed over on {path}: {why}"
            )

    def _send(self, token: bytes, descriptors: Sequence[Descriptor], deadline: Deadline) -> None:
        payload = token + struct.pack("<I", len(descriptors))
        for first in range(0, max(len(descriptors), 1), DESCRIPTORS_PER_MESSAGE):
            made: list[int] = []
            batch = []
            try:
                for descriptor in descriptors[first : first + DESCRIPTORS_PER_MESSAGE]:
                    if callable(descriptor):
                        descriptor = descriptor()
                        made.append(descriptor)
                    batch.append(descriptor)
                self._send_batch(payload, batch, deadline)
            finally:
                for descriptor in made:
                    os.close(descriptor)

    def _send_batch(self, payload: bytes, batch: list[int], deadline: Deadline) -> None:
        while True:
            self._socket.settimeout(max(deadline.left, _POLL_SECONDS))
            try:
                socket.send_fds(self._socket, [payload], batch)
                return
            except OSError as error:
                # Too many of this user's descriptors are in transit: the daemon must take some.
                if error.errno != errno.ETOOMANYREFS or not deadline.left:
                    raise
                time.sleep(_RETRY_SECONDS)

    def hung_up(self) -> bool:
        """Returns whether the registration has ended, from either side, or the daemon has died."""
        if self._ended or self._socket.fileno() < 0:
            return True
        poller = select.poll()
        poller.register(self._socket, select.POLLRDHUP)
        return bool(poller.poll(0))

    def shut(self) -> None:
        """Ends the registration; afterwards `end` tells when the daemon has released the memory."""
        self._ended = True
        with contextlib.suppress(OSError):  # the daemon has gone
            self._socket.shutdown(socket.SHUT_WR)

    def end(self, timeout: float) -> bool:
        """Ends the registration and waits until the daemon has released the memory.

        Args:
          timeout: seconds.

        Returns:
          False: not released within that time. Ask again.
        """
        self.shut()
        deadline = Deadline(timeout)
        try:
            while True:
                self._socket.settimeout(max(deadline.left, _POLL_SECONDS))
                if not self._socket.recv(_REPLY_BYTES_MAX):  # else: an answer that is too late
                    break
        except TimeoutError:
            return False
        except OSError:  # the daemon and its mappings are gone, or it was never reached
            pass
        self._socket.close()
        return True

    def close(self) -> None:
        """Ends the registration; the daemon releases the memory when it notices. A hand_over that
        waits for the daemon on another thread fails at once."""
        self._ended = True
        # Closing alone wakes no waiter, and ends nothing while a forked process has the socket.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
