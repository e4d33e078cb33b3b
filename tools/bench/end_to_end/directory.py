"""Directories that trainer and engine both see, as the two sides of P5 use them."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Callable, Iterator, Protocol

# Folders whose files go from far to near: receivers' reports and the slime reader's acknowledgements.
BACK = ("receivers", "acks")


class Directory(Protocol):
    """The trainer's side writes versions to `near`, the engine's reads them from `far`; acknowledgements go
    back. `remove`: a folder with all that is in it, on all sides, when nothing of it is under way."""

    near: str
    far: str

    def remove(self, folder: str) -> None: ...


class LocalDir:
    """One folder in memory for both sides, without a limit."""

    def __init__(self, root: str) -> None:
        self.near = self.far = root

    def remove(self, folder: str) -> None:
        remove_below((self.near,), folder)


def remove_below(roots: tuple[str, ...], folder: str) -> None:
    for root in roots:
        shutil.rmtree(os.path.join(root, folder), ignore_errors=True)


def _files(root: str, below: str = "", back: bool = False) -> Iterator[tuple[int, str, bool, Any]]:
    """When each file got its name, its path below `root`, whether it goes back, and its status."""
    try:
        with os.scandir(os.path.join(root, below)) as found:
            entries = list(found)
        for entry in entries:
            path = os.path.join(below, entry.name)
            if entry.is_dir():
                yield from _files(root, path, back or entry.name in BACK)
            elif not entry.name.endswith(".tmp"):
                status = entry.stat()
                yield status.st_ctime_ns, path, back, status
    except FileNotFoundError:
        return  # removed meanwhile


def carry_files(source: str, back: bool, carry: Callable[[str], None], scan_seconds: float) -> None:
    """Calls `carry` with the path of each file that gets its final name below `source` and goes that way, one
    after the other in the order in which they got their names, for ever. It may raise FileNotFoundError."""
    carried: dict[str, tuple[int, int, int]] = {}
    while True:
        for _, path, goes_back, status in sorted(_files(source), key=lambda file: file[:2]):
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            if goes_back == back and carried.get(path) != identity:
                carried[path] = identity
                try:
                    carry(path)
                except FileNotFoundError:
                    del carried[path]  # replaced or removed meanwhile
        time.sleep(scan_seconds)
