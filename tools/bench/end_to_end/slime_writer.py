"""The trainer's side of slime's path, as fast as numpy, zstandard and xxhash make it, written from the published format:
version folders of xor'ed bytes, or of positions and new bytes ("overwrite"), zstd of level 1, xxh3-128 of the new bytes.

A tensor is handled in pieces that stay in the cache, on one of `threads` threads; a shard is written while
the next ones are compressed, and the index last.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import numpy as np
import xxhash
import zstandard

from tools.bench.end_to_end import overwrite
from tools.bench.end_to_end import safetensors_file as files

INDEX = "model.safetensors.index.json"
ENCODINGS = ("xor", "overwrite")
LEVEL = 1
_SHARD_BYTES = 512 << 20  # of weights


def write_checkpoint(folder: str, views: dict[str, Any]) -> None:
    """The base that readers apply versions to."""
    weight_map = {}
    shards = _shards(views)
    for number, names in enumerate(shards):
        shard = _shard_name(number, len(shards))
        tensors = []
        for name in names:
            view = views[name].reshape(-1).view(np.uint8)
            tensors.append(files.Tensor(name, "BF16", [view.size // 2], view.size, view))
        files.write_file(os.path.join(folder, shard), tensors, {"format": "pt"})
        weight_map.update(dict.fromkeys(names, shard))
    total = sum(view.nbytes for view in views.values())
    files.write_index(os.path.join(folder, INDEX), {"total_size": total}, weight_map)


def _shards(views: dict[str, Any]) -> list[list[str]]:
    """The tensors of each file, by name."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, view in views.items():
        if filled and filled + view.nbytes > _SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += view.nbytes
    return shards


def _shard_name(number: int, shards: int) -> str:
    return f"model-{number:05d}-of-{shards:05d}.safetensors"


class SlimeWriter:
    """Writes versions 1, 2, ... of the weights in `views`; version 0 is `write_checkpoint`'s. `piece_bytes`:
    at a time, 0 for whole tensors. Keeps a copy of the last version, which the next is a difference to.

    Threads: one at a time.
    """

    def __init__(
        self, folder: str, views: dict[str, Any], threads: int, piece_bytes: int, encoding: str
    ) -> None:
        self._folder = folder
        self._new = {name: view.reshape(-1).view(np.uint8) for name, view in views.items()}
        self._old = {name: view.copy() for name, view in self._new.items()}
        self._piece_bytes = piece_bytes
        self._encoding = encoding
        self._pool = ThreadPoolExecutor(threads)
        self._shards = _shards(views)
        self._given = False

    def publish(self, version: int, gathered: Optional[dict[str, Any]] = None) -> int:
        """Writes the folder of `version`. Returns the bytes of its shards' tensors.

        Args:
          gathered: the weights' bytes by name, which the writer keeps; None: those of the views, which it copies.
        """
        self._given = gathered is not None
        if gathered is not None:
            self._new = gathered
        folder = os.path.join(self._folder, f"weight_v{version:06d}")
        os.makedirs(folder)
        encode = self._encode_xor if self._encoding == "xor" else self._encode_overwrite
        encoding = {
            name: self._pool.submit(encode, name) for names in self._shards for name in names
        }
        weight_map: dict[str, str] = {}
        written = 0
        for number, names in enumerate(self._shards):
            shard = _shard_name(number, len(self._shards))
            tensors, digests = [], {}
            for name in names:
                encoded = encoding.pop(name).result()
                if encoded is None:
                    continue
                entry, digests[name] = encoded
                tensors.append(files.Tensor(name, "U8", [len(entry)], len(entry), entry))
                written += len(entry)
            if tensors:
                files.write_file(os.path.join(folder, shard), tensors, digests)
            weight_map.update((tensor.name, shard) for tensor in tensors)
        metadata = {
            "version": f"{version:06d}",
            "base_version": f"{version - 1:06d}",
            "delta_encoding": self._encoding,
            "compression_format": "zstd",
            "checksum_format": "xxh3-128",
        }
        files.write_index(os.path.join(folder, INDEX), metadata, weight_map)
        if gathered is not None:
            self._old = gathered
        return written

    def close(self) -> None:
        self._pool.shutdown()

    def _encode_xor(self, name: str) -> Optional[tuple[bytes, str]]:
        """A tensor's entry and digest, None for one that has not changed. The copy of old weights takes
        the new ones on the way."""
        new, old = self._new[name], self._old[name]
        piece_bytes = self._piece_bytes or new.size
        buffer = np.empty(min(piece_bytes, new.size), np.uint8)
        frame = zstandard.ZstdCompressor(level=LEVEL).compressobj(size=new.size)
        digest = xxhash.xxh3_128()
        entry = []
        changed = False
        for first in range(0, new.size, piece_bytes):
            after, before = new[first : first + piece_bytes], old[first : first + piece_bytes]
            difference = buffer[: after.size]
            np.bitwise_xor(_words(after), _words(before), out=_words(difference))
            changed = changed or bool(_words(difference).any())
            entry.append(frame.compress(difference.data))
            digest.update(after)
            if not self._given:
                np.copyto(before, after)
        entry.append(frame.flush())
        return (b"".join(entry), digest.hexdigest()) if changed else None

    def _encode_overwrite(self, name: str) -> Optional[tuple[bytes, str]]:
        """See _encode_xor."""
        new, old = self._new[name], self._old[name]
        payload = overwrite.encode(old, new, self._piece_bytes or new.size)
        if payload is None:
            return None
        if not self._given:
            np.copyto(old, new)
        entry = zstandard.ZstdCompressor(level=LEVEL).compress(payload)
        return entry, xxhash.xxh3_128_hexdigest(new)


def _words(array: Any) -> Any:
    """The same bytes in the largest units that they fill."""
    return array.view(np.uint64) if array.size % 8 == 0 else array
