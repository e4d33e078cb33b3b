"""The trainer's side of slime's path with files of changed elements ("flushes"), as fast as numpy and zstandard make
it: the positions and new values of all parameters of a flush in two columns, in its metadata the place of each
parameter in both. Positions are

    indices      int32 numbers of elements
    deltas       gaps of 16 bits between them, of 32 for a parameter with a longer one
    deltas_zstd  the file of deltas in one zstd frame of level 1

Parameters are compared on `threads` threads; a flush is compressed and written while the next ones are compared.
When all are there, a marker says how many. Nothing has a digest, as slime's has none.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import zstandard

from tools.bench.end_to_end import safetensors_file as files
from tools.bench.end_to_end.slime_writer import LEVEL

MARKER = "DONE"
ENCODINGS = ("indices", "deltas", "deltas_zstd")
POSITIONS, VALUES = "__positions__", "__values__"
_FLUSH_BYTES = 4 << 20  # of positions and values: small, so that the first ones leave early
_GAP_MAX = (1 << 16) - 1


def _gaps(positions: Any) -> Any:
    gaps = np.diff(positions, prepend=-1) - 1
    return gaps.astype("<u2" if gaps.max() <= _GAP_MAX else "<u4")


class _Flush:
    """Parameters with their changes, until it is written."""

    def __init__(self) -> None:
        self._params: list[dict[str, Any]] = []
        self._positions: list[Any] = []
        self._values: list[Any] = []
        self._position_bytes = 0
        self._elements = 0

    @property
    def size_bytes(self) -> int:
        return self._position_bytes + 2 * self._elements

    def add(self, name: str, positions: Any, values: Any) -> None:
        begin = (self._position_bytes, self._elements)
        self._position_bytes += positions.nbytes
        self._elements += values.size
        self._positions.append(positions)
        self._values.append(values)
        self._params.append(
            {
                "name": name, "dtype": "bfloat16", "pos_start": begin[0], "pos_end": self._position_bytes,
                "pos_width": positions.itemsize, "val_start": begin[1], "val_end": self._elements,
            }
        )  # fmt: skip

    def write(self, path: str, encoding: str) -> int:
        """Returns the bytes of the file."""
        positions = b"".join(part.tobytes() for part in self._positions)
        values = np.concatenate(self._values)
        tensors = [
            files.Tensor(POSITIONS, "U8", [len(positions)], len(positions), positions),
            files.Tensor(VALUES, "BF16", [values.size], values.nbytes, values),
        ]
        metadata = {"encoding": encoding, "params": json.dumps(self._params)}
        parts = files.parts_of_file(tensors, metadata)
        if encoding == "deltas_zstd":
            parts = [zstandard.ZstdCompressor(level=LEVEL).compress(b"".join(parts))]
        files.write_parts(path, parts)
        return sum(memoryview(part).nbytes for part in parts)


class FlushWriter:
    """Writes versions 1, 2, ... of the weights in `views`, as SlimeWriter does. Threads: one at a time."""

    def __init__(
        self, folder: str, views: dict[str, Any], threads: int, piece_bytes: int, encoding: str
    ) -> None:
        self._folder = folder
        self._new = {name: view.reshape(-1) for name, view in views.items()}
        self._old = {name: view.copy() for name, view in self._new.items()}
        self._piece_elements = piece_bytes // 2
        self._encoding = encoding
        self._pool = ThreadPoolExecutor(threads)
        # Threads of their own: else a flush would wait until all parameters are compared.
        self._writers = ThreadPoolExecutor(threads)

    def publish(self, version: int) -> int:
        """Writes the folder of `version`. Returns the bytes of its files."""
        folder = os.path.join(self._folder, f"weight_v{version:06d}")
        os.makedirs(folder)
        found = {name: self._pool.submit(self._changes, name) for name in self._new}
        written: list[Future[int]] = []
        flush = _Flush()

        def write() -> None:
            path = os.path.join(folder, f"rank0000_flush{len(written):06d}.safetensors")
            written.append(self._writers.submit(flush.write, path, self._encoding))

        for name in self._new:
            positions, values = found.pop(name).result()
            if not values.size:
                continue
            flush.add(name, positions, values)
            if flush.size_bytes >= _FLUSH_BYTES:
                write()
                flush = _Flush()
        if flush.size_bytes:
            write()
        size_bytes = sum(future.result() for future in written)
        files.write_parts(os.path.join(folder, MARKER), [str(len(written)).encode()])
        return size_bytes

    def close(self) -> None:
        self._pool.shutdown()
        self._writers.shutdown()

    def _changes(self, name: str) -> tuple[Any, Any]:
        """The changed elements of a parameter: their positions as they are sent, and their values. The copy of
        old weights takes the new values on the way."""
        new, old = self._new[name], self._old[name]
        step = self._piece_elements or new.size
        positions, values = [], []
        for first in range(0, new.size, step):
            after, before = new[first : first + step], old[first : first + step]
            changed = np.flatnonzero(after != before)
            values.append(after[changed])
            before[changed] = values[-1]
            positions.append(changed + first)
        all_positions = np.concatenate(positions)
        if all_positions.size and self._encoding != "indices":
            return _gaps(all_positions), np.concatenate(values)
        return all_positions.astype("<i4"), np.concatenate(values)
