"""A stand-in for a directory on a shared filesystem of limited throughput.

No mount is limited: a process carries files from one folder of this machine's memory to another, at so
many bytes a second. The trainer's side writes to `near`, the engine's reads from `far`:

    near --write--> store --read--> far        versions
    near <--read--- store <--write-- far       acknowledgements

Each arrow is a link of its own with the whole rate, and carries one file after the other in the order in
which they got their names, so data before what says that it is there. A file is carried when it has its
final name (nothing that ends in .tmp), and begins on the second link when it has come off the first, as a
reader cannot have what the filesystem has not got yet. Both systems under test go through the same links.
What is kept of a real one: throughput, order, whole files. What is not: latency of calls, caches, a reader
that asks for parts of a file, removals.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from typing import Any

from tools.bench.end_to_end.directory import carry_files, remove_below

_SCAN_SECONDS = 0.005
_CHUNK_BYTES = 1 << 20


class _Link:
    """Carries files one way. Threads: one at a time."""

    def __init__(self, source: str, target: str, back: bool, rate: Any) -> None:
        self._source = source
        self._target = target
        self._back = back
        self._rate = rate
        self._free_at = 0.0  # when the link has sent everything queued

    def run(self) -> None:
        carry_files(self._source, self._back, self._carry, _SCAN_SECONDS)

    def _carry(self, path: str) -> None:
        rate = self._rate.value
        target = os.path.join(self._target, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        temporary = target + ".tmp"
        if not rate:
            os.link(os.path.join(self._source, path), temporary)
        else:
            with open(os.path.join(self._source, path), "rb") as file, open(
                temporary, "wb"
            ) as copy:
                while chunk := file.read(_CHUNK_BYTES):
                    self._free_at = max(time.monotonic(), self._free_at) + len(chunk) / rate
                    copy.write(chunk)
                    time.sleep(max(0.0, self._free_at - time.monotonic()))
        os.rename(temporary, target)


def _run(root: str, rate: Any) -> None:
    near, store, far = (os.path.join(root, name) for name in ("near", "store", "far"))
    links = [
        _Link(near, store, False, rate),
        _Link(store, far, False, rate),
        _Link(far, store, True, rate),
        _Link(store, near, True, rate),
    ]
    threads = [threading.Thread(target=link.run, daemon=True) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class LimitedDir:
    """A context manager around the process, in `root`. Without a limit first, for what is not timed: files
    are linked and cost nothing."""

    def __init__(self, root: str) -> None:
        self.near = os.path.join(root, "near")
        self.far = os.path.join(root, "far")
        self._folders = (self.near, os.path.join(root, "store"), self.far)
        for folder in self._folders:
            os.makedirs(folder)
        context = multiprocessing.get_context("spawn")
        self._rate = context.Value("d", 0.0, lock=False)
        self._process = context.Process(target=_run, args=(root, self._rate), daemon=True)
        self._process.start()

    def limit(self, bytes_per_second: float) -> None:
        self._rate.value = bytes_per_second

    def remove(self, folder: str) -> None:
        remove_below(self._folders, folder)

    def __enter__(self) -> "LimitedDir":
        return self

    def __exit__(self, *unused: Any) -> None:
        self._process.terminate()
        self._process.join()
