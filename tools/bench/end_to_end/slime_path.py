"""slime's path: version folders in memory, written by this process and read by another one."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any, Optional

from tools.bench.end_to_end.limited_dir import LimitedDir
from tools.bench.end_to_end.published import Published
from tools.bench.end_to_end.slime_reader import SlimeReader
from tools.bench.end_to_end.slime_writer import SlimeWriter


class SlimePath:
    """A context manager; inside, the reader has the base checkpoint of the weights in `views`. `shared`: the
    directory that version folders and acknowledgements go through, by default `folder`."""

    def __init__(
        self, folder: str, views: Any, threads: int, piece_bytes: int, shared: Optional[LimitedDir]
    ) -> None:
        self._local = os.path.join(folder, "local")
        self._near = os.path.join(shared.near if shared else folder, "slime")
        self._far = os.path.join(shared.far if shared else folder, "slime")
        self._views = views
        self._threads = threads
        self._piece_bytes = piece_bytes

    def __enter__(self) -> "SlimePath":
        with ExitStack() as stack:
            for folder in (self._local, self._near, self._far):
                os.makedirs(folder, exist_ok=True)
            self._writer = SlimeWriter(self._near, self._views, self._threads, self._piece_bytes)
            stack.callback(self._writer.close)
            self._writer.write_checkpoint(self._local)
            acks = os.path.join(self._far, "acks")
            self._reader = stack.enter_context(
                SlimeReader(self._far, self._local, acks, self._threads, self._piece_bytes)
            )
            self._stack = stack.pop_all()
        return self

    def publish(self, version: int) -> Published:
        """Returns when the reader's acknowledgement is there."""
        begin = time.monotonic()
        size_bytes = self._writer.publish(version)
        captured = time.monotonic()
        self._reader.await_ack(os.path.join(self._near, "acks"), version)
        return Published(time.monotonic() - begin, captured - begin, size_bytes)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
