"""A trainer that publishes version folders as slime does, written from the description of the format alone."""

import json
import os
import struct
from typing import Any, Optional

import numpy as np
import xxhash
import zstandard


def write_file(path: str, tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    """A safetensors file, atomically."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end, parts = 0, []
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(content)]}
        end += len(content)
        parts.append(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".tmp", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    os.rename(path + ".tmp", path)


def write_index(folder: str, index: dict[str, Any]) -> None:
    """Writes the index, which publishes the version."""
    path = os.path.join(folder, "model.safetensors.index.json")
    with open(path + ".tmp", "w") as out:
        json.dump(index, out)
    os.rename(path + ".tmp", path)


class SlimeWriter:
    """A trainer that publishes as slime does: xor, zstd level 1, xxh3-128."""

    def __init__(self, folder: str, weights: dict[str, np.ndarray[Any, Any]]) -> None:
        self.folder = folder
        self.weights = weights
        self.version = 0

    def checkpoint(self, folder: str, indexed: bool = False) -> None:
        """All of the weights; `indexed` as a version that is a full checkpoint."""
        os.makedirs(folder, exist_ok=True)
        tensors = {n: ("U16", list(w.shape), w.tobytes()) for n, w in self.weights.items()}
        file = "model.safetensors"
        write_file(os.path.join(folder, file), tensors, {"format": "pt"})
        if indexed:
            write_index(folder, {"metadata": {}, "weight_map": {name: file for name in tensors}})

    def publish(self, changes: dict[str, np.ndarray[Any, Any]], base: Optional[int] = None) -> None:
        self.version += 1
        entries, digests = {}, {}
        for name, after in changes.items():
            before, self.weights[name] = self.weights[name], after
            payload = (before ^ after).tobytes()
            entry = zstandard.ZstdCompressor(level=1).compress(payload)
            entries[name] = ("U8", [len(entry)], entry)
            digests[name] = xxhash.xxh3_128_hexdigest(after.tobytes())
        folder = os.path.join(self.folder, f"weight_v{self.version:06d}")
        os.makedirs(folder)
        file = "model-00000-of-00001.safetensors"
        if entries:
            write_file(os.path.join(folder, file), entries, digests)
        index = {
            "metadata": {
                "version": f"{self.version:06d}",
                "base_version": f"{self.version - 1 if base is None else base:06d}",
                "delta_encoding": "xor",
                "compression_format": "zstd",
                "checksum_format": "xxh3-128",
            },
            "weight_map": {name: file for name in entries},
        }
        write_index(folder, index)
