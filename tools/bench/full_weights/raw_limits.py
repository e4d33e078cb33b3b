"""What the machine can do with the same bytes: raw TCP streams over loopback into memory, and memcpy."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import numpy as np

from tools.bench.daemons.streams import receive_all


class RawLimits:
    """Source and destination of `size_bytes`, touched once. Two streams, or two threads, with half each."""

    STREAMS = 2

    def __init__(self, size_bytes: int) -> None:
        part = size_bytes // self.STREAMS
        self._from = [np.full(part, 1, np.uint8) for _ in range(self.STREAMS)]
        self._to = [np.full(part, 2, np.uint8) for _ in range(self.STREAMS)]

    def tcp_seconds(self) -> float:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threads = []
            begin = time.monotonic()
            for source, to in zip(self._from, self._to):
                threads.append(threading.Thread(target=_send, args=(listener.getsockname(), source)))
                threads[-1].start()
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=_receive, args=(connection, to)))
                threads[-1].start()
            for thread in threads:
                thread.join()
            return time.monotonic() - begin

    def memcpy_seconds(self) -> float:
        threads = [
            threading.Thread(target=np.copyto, args=(to, source)) for source, to in zip(self._from, self._to)
        ]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - begin


def _send(address: Any, source: Any) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(source.data)


def _receive(connection: socket.socket, to: Any) -> None:
    with connection:
        receive_all(connection, to.data)
