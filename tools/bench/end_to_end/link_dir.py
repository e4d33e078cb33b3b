"""A stand-in for a fast shared filesystem behind one network link.

A process on each host carries files that get their final names in one folder of this machine's memory into the
same path on the other host, over one TCP connection: whole files, one after the other in the order in which they
got their names, from the file into the socket without a copy in the process. Versions go one way while
acknowledgements go the other:

    near --sendfile--> link --> far        versions
    near <-- link <--sendfile-- far        acknowledgements

What is kept of a real one: the link, order, whole files. What it does not cost here: calls to a server, a second
crossing of the link, attributes and leases. A file is under way 1 ms after it got its name, on average.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import threading
from typing import Any

from tests.integration.network_hosts import NetworkHosts
from tools.bench.daemons.streams import receive_all
from tools.bench.end_to_end import wire
from tools.bench.end_to_end.directory import carry_files, remove_below

_SCAN_SECONDS = 0.002
_PIECE_BYTES = 1 << 20
_PATH_BYTES_MAX = 4096
_FILE_BYTES_MAX = 1 << 40
_HEAD = struct.Struct("<HQ")  # bytes of the path, which follows, and of the file, which follows that


class _End:
    """The process of one host."""

    def __init__(self, connection: socket.socket, folder: str) -> None:
        self._connection = connection
        self._folder = folder

    def send(self, path: str) -> None:
        name = path.encode()
        with open(os.path.join(self._folder, path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._connection.sendall(_HEAD.pack(len(name), size) + name, socket.MSG_MORE if size else 0)
            if size and self._connection.sendfile(file, 0, size) != size:
                raise RuntimeError(f"{path} became shorter than {size} bytes")

    def receive(self) -> None:
        """One file."""
        head = bytearray(_HEAD.size)
        receive_all(self._connection, memoryview(head))
        name_bytes, size = _HEAD.unpack(head)
        if name_bytes > _PATH_BYTES_MAX or size > _FILE_BYTES_MAX:
            raise RuntimeError(f"a file of {size} bytes with a path of {name_bytes} is announced")
        name = bytearray(name_bytes)
        receive_all(self._connection, memoryview(name))
        path = os.path.join(self._folder, name.decode())
        os.makedirs(os.path.dirname(path), exist_ok=True)
        piece = memoryview(bytearray(min(size, _PIECE_BYTES)))
        with open(path + ".tmp", "wb", buffering=0) as file:
            left = size
            while left:
                part = piece[: min(left, _PIECE_BYTES)]
                receive_all(self._connection, part)
                file.write(part)
                left -= len(part)
        os.rename(path + ".tmp", path)


def _run(connection: socket.socket, folder: str, back: bool) -> None:
    connection.settimeout(None)  # versions may be far apart; the process is ended from outside
    end = _End(connection, folder)

    def receive() -> None:
        try:
            while True:
                end.receive()
        finally:
            os._exit(1)  # the stream has ended, or failed: nothing more can be carried

    threading.Thread(target=receive, daemon=True).start()
    carry_files(folder, back, end.send, _SCAN_SECONDS)


class LinkDir:
    """A context manager around both processes, whose folders are in `root`."""

    def __init__(self, root: str, hosts: NetworkHosts) -> None:
        self.near = os.path.join(root, "near")
        self.far = os.path.join(root, "far")
        context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        ends = wire.connect(hosts)
        for folder, end, back in zip((self.near, self.far), ends, (False, True)):
            os.makedirs(folder)
            with end:
                process = context.Process(target=_run, args=(end, folder, back), daemon=True)
                process.start()
            self._processes.append(process)

    def remove(self, folder: str) -> None:
        remove_below((self.near, self.far), folder)

    def __enter__(self) -> "LinkDir":
        return self

    def __exit__(self, *unused: Any) -> None:
        for process in self._processes:
            process.terminate()
            process.join()
