"""A writer and a reader of slime's version folders with the structure of slime's own, written from the published
format: whole tensors on a pool of threads, one shard that is made in memory; a reader that patches the mapped
checkpoint, an xor in pieces of 2 MiB that stay in the cache.

Like slime's, the reader keeps no redo record, checks a tensor only after it was changed, and does not sync what
it has written.
"""

from __future__ import annotations

import glob
import io
import json
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import numpy as np
import xxhash
import zstandard

from tools.bench.end_to_end import overwrite
from tools.bench.end_to_end import safetensors_file as files

INDEX = "model.safetensors.index.json"
_PIECE_BYTES = 2 << 20


def encode(encoding: str, old: Any, new: Any) -> Optional[Any]:
    """Returns the payload that changes `old` into `new`; None: they are equal."""
    if encoding == "xor":
        difference = new ^ old
        return difference if np.count_nonzero(difference) else None
    return overwrite.encode(old, new, new.size)


class RestatedWriter:
    """Writes versions 1, 2, ... into `folder`. Keeps the last version's tensors. Threads: one at a time."""

    def __init__(self, folder: str, base: dict[str, Any], encoding: str, threads: int) -> None:
        self._folder = folder
        self._old = base
        self._encoding = encoding
        self._pool = ThreadPoolExecutor(threads)

    def publish(self, version: int, tensors: dict[str, Any]) -> None:
        """`tensors`: bytes by name, which the writer keeps."""
        folder = os.path.join(self._folder, f"weight_v{version:06d}")
        os.makedirs(folder)
        entries: list[files.Tensor] = []
        digests: dict[str, str] = {}
        for name, entry, digest in self._pool.map(self._encode, tensors.items()):
            if entry is not None:
                entries.append(files.Tensor(name, "U8", [len(entry)], len(entry), entry))
                digests[name] = digest
        self._old = tensors
        shard = "model-00000-of-00001.safetensors"
        if entries:
            files.write_file(os.path.join(folder, shard), entries, digests)
        metadata = {
            "version": f"{version:06d}",
            "base_version": f"{version - 1:06d}",
            "delta_encoding": self._encoding,
            "compression_format": "zstd",
            "checksum_format": "xxh3-128",
        }
        files.write_index(os.path.join(folder, INDEX), metadata, dict.fromkeys(digests, shard))

    def close(self) -> None:
        self._pool.shutdown()

    def _encode(self, tensor: tuple[str, Any]) -> tuple[str, Optional[bytes], str]:
        name, new = tensor
        payload = encode(self._encoding, self._old[name], new)
        if payload is None:
            return name, None, ""
        entry = zstandard.ZstdCompressor(level=1).compress(payload)
        return name, entry, xxhash.xxh3_128_hexdigest(new)


class RestatedReader:
    """Applies versions to the local checkpoint in `local`."""

    def __init__(self, local: str, threads: int) -> None:
        self._local = local
        self._threads = threads

    def apply(self, version_folder: str) -> None:
        """Raises RuntimeError if a tensor does not get its digest."""
        with open(os.path.join(version_folder, INDEX), encoding="utf-8") as file:
            metadata = json.load(file)["metadata"]
        maps, tensors = self._open_local()
        work = []
        for path in sorted(glob.glob(os.path.join(version_folder, "*.safetensors"))):
            with open(path, "rb") as file:
                content = file.read()
            places, digests = files.read_header(content)
            for name, (begin, end) in places.items():
                work.append((tensors[name], memoryview(content)[begin:end], digests[name]))
        for one in maps:
            one.madvise(mmap.MADV_WILLNEED)
        apply = _apply_xor if metadata["delta_encoding"] == "xor" else overwrite.apply
        with ThreadPoolExecutor(self._threads) as pool:
            found = list(pool.map(lambda item: apply(item[0], item[1]) == item[2], work))
        if not all(found):
            raise RuntimeError(f"{version_folder}: a tensor has another digest than it states")
        state = os.path.join(self._local, ".weight_sync", "state.json")
        text = json.dumps({"version": metadata["version"]}).encode()
        files.write_atomically(state, lambda file: file.write(text))

    def _open_local(self) -> tuple[list[mmap.mmap], dict[str, Any]]:
        """The checkpoint's files, mapped, and the bytes of its tensors by name."""
        maps = []
        tensors = {}
        for path in glob.glob(os.path.join(self._local, "*.safetensors")):
            with open(path, "r+b") as file:
                maps.append(mmap.mmap(file.fileno(), 0))
            places, _ = files.read_header(maps[-1])
            content = np.frombuffer(maps[-1], np.uint8)
            tensors.update({name: content[begin:end] for name, (begin, end) in places.items()})
        return maps, tensors


def _apply_xor(tensor: Any, entry: memoryview) -> str:
    digest = xxhash.xxh3_128()
    first = 0
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(bytes(entry))) as stream:
        while piece := stream.read(min(_PIECE_BYTES, tensor.size - first)):
            part = tensor[first : first + len(piece)]
            part ^= np.frombuffer(piece, np.uint8)
            digest.update(part)
            first += len(piece)
    return digest.hexdigest()
