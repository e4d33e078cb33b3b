"""slime's path: version folders in memory, written by this process and read by another one."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from tools.bench.end_to_end.directory import Directory
from tools.bench.end_to_end.published import Published
from tools.bench.end_to_end.slime_reader import Checkpoint, SlimeReader
from tools.bench.end_to_end.slime_writer import SlimeWriter, write_checkpoint


class SlimePath:
    """A context manager; inside, the reader has the base checkpoint of the weights in `views`. `shared`: the
    directory that version folders and acknowledgements go through; `folder`: for the engine's checkpoint."""

    def __init__(
        self, folder: str, views: Any, threads: int, piece_bytes: int, encoding: str, shared: Directory
    ) -> None:
        self._local = os.path.join(folder, "local")
        self._name = f"slime-{encoding}"
        self._shared = shared
        self._views = views
        self._threads = threads
        self._piece_bytes = piece_bytes
        self._encoding = encoding
        self._version = 0

    def __enter__(self) -> "SlimePath":
        with ExitStack() as stack:
            stack.callback(self._shared.remove, self._name)
            near, far = (os.path.join(end, self._name) for end in (self._shared.near, self._shared.far))
            self._acks = os.path.join(near, "acks")
            for folder in (near, far):
                os.makedirs(folder, exist_ok=True)
            os.makedirs(self._local)
            stack.callback(shutil.rmtree, self._local)
            how = (self._threads, self._piece_bytes)
            self._writer = SlimeWriter(near, self._views, *how, self._encoding)
            stack.callback(self._writer.close)
            write_checkpoint(self._local, self._views)
            self._reader = stack.enter_context(
                SlimeReader(far, self._local, os.path.join(far, "acks"), *how)
            )
            self._stack = stack.pop_all()
        return self

    def publish(self) -> Published:
        """Publishes the next version. Returns when the reader has acknowledged it."""
        self._version += 1
        begin = time.monotonic()
        size_bytes = self._writer.publish(self._version)
        captured = time.monotonic()
        self._reader.await_ack(self._acks, self._version)
        return Published(time.monotonic() - begin, captured - begin, size_bytes)

    def check(self) -> None:
        """Raises RuntimeError if the engine's weights are not the trainer's."""
        for name, tensor in Checkpoint(self._local).tensors.items():
            if not np.array_equal(tensor, self._views[name].reshape(-1).view(np.uint8)):
                raise RuntimeError(f"{self._encoding}: the engine's '{name}' is not what was published")

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
