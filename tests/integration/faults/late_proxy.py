"""A TCP proxy between two processes of a test that delivers late, each connection by another time, so that what is sent on
several connections arrives in another order; and that can end a connection for the client alone.
"""

from __future__ import annotations

import asyncio
import threading
from random import Random
from typing import Awaitable

_CHUNK = 16 << 10
_SECONDS = 10.0


class LateProxy:
    """Listens on loopback. A context manager. Threads: all calls from one; its own moves the bytes.

    Attributes:
      port: where it listens.
      connections: how many there were.
      left_behind: how many of them have ended for the client alone.
    """

    def __init__(self, server_port: int, seed: int, late_seconds: float) -> None:
        """Args:
        late_seconds: each direction of each connection has its own delay, up to this, and every chunk up to as much again.
        """
        self.connections = 0
        self.left_behind = 0
        self._server_port = server_port
        self._random = Random(seed)
        self._late_seconds = late_seconds
        self._clients: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._listener.sockets[0].getsockname()[1]

    def _do(self, work: Awaitable[asyncio.Server]) -> asyncio.Server:
        async def run() -> asyncio.Server:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_SECONDS)

    def leave_behind(self) -> None:
        """Ends all connections for the client, at once. What it had sent still reaches the server, late, while the client may have
        connected again."""

        def close() -> None:
            self.left_behind += len(self._clients)
            for client in self._clients:
                client.transport.abort()
            self._clients.clear()

        self._loop.call_soon_threadsafe(close)

    def __enter__(self) -> LateProxy:
        return self

    def __exit__(self, *unused: object) -> None:
        async def end() -> None:
            self._listener.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            from_server, server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            client.close()  # the server is down
            return
        self.connections += 1
        self._clients.add(client)
        try:
            await asyncio.gather(self._carry(reader, server), self._carry(from_server, client))
        finally:
            self._clients.discard(client)
            for end in (client, server):
                end.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Until the source ends, and what it has sent is delivered."""
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1_000)
        deliver = asyncio.create_task(self._deliver(chunks, target))
        late = self._random.uniform(0, self._late_seconds)
        data = b"-"
        try:
            while data:
                try:
                    data = await source.read(_CHUNK)
                except OSError:
                    data = b""
                await chunks.put((self._loop.time() + self._random.uniform(late, late + self._late_seconds), data))
            await deliver
        finally:
            deliver.cancel()

    async def _deliver(self, chunks: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
        while True:
            due, data = await chunks.get()
            await asyncio.sleep(due - self._loop.time())
            if not data:
                target.close()
                return
            if target.is_closing():
                continue  # it is gone, and the rest is dropped
            try:
                target.write(data)
                await target.drain()
            except OSError:
                target.close()
