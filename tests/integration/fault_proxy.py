"""A TCP proxy between two processes of a test that cuts, stalls and slows connections."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from typing import Optional

_CHUNK = 16 << 10
_LOOK_SECONDS = 0.01


class _Pipe:
    """Two connected sockets, and the bytes that wait for each."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.ends = (client, server)
        self.waiting: dict[socket.socket, bytes] = {client: b"", server: b""}

    def other(self, end: socket.socket) -> socket.socket:
        return self.ends[1] if end is self.ends[0] else self.ends[0]

    def close(self) -> None:
        for end in self.ends:
            end.close()


class FaultProxy:
    """Listens on loopback. A context manager; all changes take effect at once, from any thread."""

    def __init__(self, server_port: int) -> None:
        self._server = ("127.0.0.1", server_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._stalled = False
        self._rate: Optional[float] = None
        self._cut_at: Optional[int] = None
        self._cut_sizes: list[int] = []  # of the later cuts
        self._budget = 0.0
        self.bytes_down = 0  # from the server, so far
        self.bytes_up = 0
        self.cuts = 0
        self._pipes: list[_Pipe] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stall(self, stalled: bool) -> None:
        """A link that is down: nothing passes or is closed; new connections are accepted and hang."""
        with self._lock:
            self._stalled = stalled

    def lead_to(self, server_port: int) -> None:
        """New connections go to another server on loopback; those that exist stay."""
        with self._lock:
            self._server = ("127.0.0.1", server_port)

    def limit(self, bytes_per_second: Optional[float]) -> None:
        """Limits the bytes from the server over all connections."""
        with self._lock:
            self._rate, self._budget = bytes_per_second, 0.0

    def cut_after(self, *sizes_bytes: int) -> None:
        """Closes all connections once the server has sent this much more. Repeats for each size, which
        counts from the cut before it."""
        with self._lock:
            self._cut_sizes = list(sizes_bytes)
            self._arm()

    def _arm(self) -> None:
        self._cut_at = self.bytes_down + self._cut_sizes.pop(0) if self._cut_sizes else None

    def cut(self) -> None:
        self.cut_after(0)

    def __enter__(self) -> "FaultProxy":
        return self

    def __exit__(self, *unused: object) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()
        for pipe in self._pipes:
            pipe.close()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._over.is_set():
            now = time.monotonic()
            with self._lock:
                if self._rate is not None:
                    self._budget = min(self._budget + self._rate * (now - last), self._rate / 10)
                stalled = self._stalled
                if self._cut_at is not None and self.bytes_down >= self._cut_at:
                    self._drop_all()
                    self._arm()
            last = now
            self._accept()
            if stalled or not self._move():
                self._over.wait(_LOOK_SECONDS)

    def _drop_all(self) -> None:
        self.cuts += 1
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        with self._lock:
            address = self._server
        try:
            server = socket.create_connection(address, timeout=5)
        except OSError:
            client.close()  # the server is down
            return
        client.setblocking(False)
        server.setblocking(False)
        self._pipes.append(_Pipe(client, server))

    def _move(self) -> bool:
        """Forwards available bytes; False if there were none."""
        moved = False
        selector = selectors.DefaultSelector()
        for pipe in self._pipes:
            for end in pipe.ends:
                events = 0 if pipe.waiting[pipe.other(end)] else selectors.EVENT_READ
                events |= selectors.EVENT_WRITE if pipe.waiting[end] else 0
                if events:
                    selector.register(end, events, pipe)
        for key, events in selector.select(0):
            end = key.fileobj
            assert isinstance(end, socket.socket)
            try:
                moved |= self._pass(key.data, end, events)
            except OSError:
                self._close(key.data)
                moved = True
        selector.close()
        return moved

    def _pass(self, pipe: _Pipe, end: socket.socket, events: int) -> bool:
        if pipe not in self._pipes:
            return False
        if events & selectors.EVENT_WRITE:
            sent = end.send(pipe.waiting[end])
            pipe.waiting[end] = pipe.waiting[end][sent:]
            return True
        size = self._allowed(from_server=end is pipe.ends[1])
        if size == 0:
            return False
        data = end.recv(size)
        if not data:
            self._close(pipe)
            return True
        pipe.waiting[pipe.other(end)] += data
        with self._lock:
            if end is pipe.ends[1]:
                self.bytes_down += len(data)
                self._budget -= len(data)
            else:
                self.bytes_up += len(data)
        return True

    def _allowed(self, from_server: bool) -> int:
        with self._lock:
            if not from_server:
                return _CHUNK
            allowed = _CHUNK if self._rate is None else int(min(_CHUNK, max(self._budget, 0)))
            if self._cut_at is not None:
                allowed = min(allowed, self._cut_at - self.bytes_down)
            return max(allowed, 0)

    def _close(self, pipe: _Pipe) -> None:
        pipe.close()
        if pipe in self._pipes:
            self._pipes.remove(pipe)
