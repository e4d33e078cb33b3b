"""One rank of Mooncake's TransferEngine over TCP: `PYTHON mooncake_rank.py SIZE`, with a Python that has Mooncake. Needs
nothing of this repository.

It holds SIZE bytes, and prints `{"segment": HOST:PORT, "address": ADDRESS}` when others can write to them. Then it obeys
lines of standard input, until they end, with a line of JSON for each:

* `{"write": [[SEGMENT, ADDRESS, OFFSET, SIZE], ...]}` writes SIZE bytes at OFFSET of its own to ADDRESS of another; prints
  `{}` when all are sent.
* `{"crc32": [[OFFSET, SIZE], ...]}` prints the list of their checksums.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import zlib
from typing import Any

# The fastest size for its TCP transport: 64 KiB and 1 MiB take a third longer, whole parts twice as
# long.
_PIECE_BYTES = 1 << 18


class Rank:
    """Lifecycle: lives until the process ends."""

    def __init__(self, size_bytes: int) -> None:
        from mooncake.engine import TransferEngine

        self._memory = mmap.mmap(-1, size_bytes)
        pattern = os.urandom(min(_PIECE_BYTES, size_bytes))
        for begin in range(0, size_bytes, len(pattern)):
            self._memory[begin : begin + len(pattern)] = pattern[: size_bytes - begin]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._engine = TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("Mooncake's TransferEngine does not start: see what it logged")
        if self._engine.register_memory(self.address, size_bytes) != 0:
            raise RuntimeError(f"Mooncake's TransferEngine does not register {size_bytes} bytes")
        self.segment = f"127.0.0.1:{self._engine.get_rpc_port()}"

    def write(self, parts: list[tuple[str, int, int, int]]) -> dict[str, Any]:
        for segment, address, offset, size in parts:
            begins = range(0, size, _PIECE_BYTES)
            failed = self._engine.batch_transfer_sync_write(
                segment,
                [self.address + offset + begin for begin in begins],
                [address + begin for begin in begins],
                [min(_PIECE_BYTES, size - begin) for begin in begins],
            )
            if failed != 0:
                raise RuntimeError(f"Mooncake's write of {size} bytes to {segment} failed: {failed}")
        return {}

    def crc32(self, parts: list[tuple[int, int]]) -> list[int]:
        view = memoryview(self._memory)
        return [zlib.crc32(view[offset : offset + size]) for offset, size in parts]


def main() -> None:
    # What the library prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    rank = Rank(int(sys.argv[1]))
    answer({"segment": rank.segment, "address": rank.address})
    for line in sys.stdin:
        for name, parts in json.loads(line).items():
            answer(getattr(rank, name)(parts))


if __name__ == "__main__":
    main()
