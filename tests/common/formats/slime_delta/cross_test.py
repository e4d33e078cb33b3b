"""Version folders are exchanged with another reader and writer, made of what the format's users run: numpy,
zstandard, xxhash and zlib. In both directions, for every encoding and checksum (blake3 where b3sum is installed).
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest
import zlib
from pathlib import Path
from typing import Callable

import numpy as np
import xxhash
import zstandard

TOOL = os.environ.get("SLIME_TOOL", "tests/common/formats/slime_delta/slime_tool")
INDEX = "model.safetensors.index.json"
Weights = dict[str, np.ndarray]
CHECKSUMS: dict[str, Callable[[bytes], str]] = {
    "xxh3-128": lambda content: xxhash.xxh3_128(content).hexdigest(),
    "adler32": lambda content: f"{zlib.adler32(content):08x}",
}
if shutil.which("b3sum"):
    CHECKSUMS["blake3"] = lambda content: subprocess.run(
        ["b3sum", "--no-names"], input=content, capture_output=True, check=True
    ).stdout.decode().strip()


def save(path: Path, tensors: Weights, metadata: dict[str, str] | None = None) -> None:
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    content = b""
    for name, values in tensors.items():
        offsets = [len(content), len(content) + values.nbytes]
        header[name] = {"dtype": "U8", "shape": list(values.shape), "data_offsets": offsets}
        content += values.tobytes()
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def load(path: Path) -> tuple[Weights, dict[str, str]]:
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(content[8 + length + begin : 8 + length + end], np.uint8)
    return tensors, metadata


def encode(encoding: str, old: np.ndarray, new: np.ndarray) -> bytes:
    if encoding == "xor":
        return (old ^ new).tobytes()
    changed = np.flatnonzero(old != new)
    if encoding == "overwrite":
        count, positions = np.array([changed.size], "<u4"), changed.astype("<u4")
        return count.tobytes() + positions.tobytes() + new[changed].tobytes()
    count, positions = np.array([changed.size], "<u8"), changed.astype("<u8")
    return count.tobytes() + positions.tobytes() + (old ^ new)[changed].tobytes()


def decode(encoding: str, payload: bytes, old: np.ndarray) -> np.ndarray:
    if encoding == "xor":
        return old ^ np.frombuffer(payload, np.uint8)
    (count,) = struct.unpack_from("<I", payload)
    new = old.copy()
    new[np.frombuffer(payload, "<u4", count, 4)] = np.frombuffer(
        payload, np.uint8, count, 4 + 4 * count
    )
    return new


def publish(
    folder: Path, version: int, old: Weights, new: Weights, encoding: str, checksum: str
) -> Path:
    """Writes like the format's own writer: one shard for each of two ranks."""
    path = folder / f"weight_v{version:06d}"
    changed = [name for name in new if not np.array_equal(old[name], new[name])]
    weight_map = {}
    ranks = [rank for rank in (changed[::2], changed[1::2]) if rank]
    for number, names in enumerate(ranks):
        file = f"model-{number:05d}-of-{len(ranks):05d}.safetensors"
        compressor = zstandard.ZstdCompressor(level=1)
        entries, digests = {}, {}
        for name in names:
            entry = compressor.compress(encode(encoding, old[name], new[name]))
            entries[name] = np.frombuffer(entry, np.uint8)
            digests[name] = CHECKSUMS[checksum](new[name].tobytes())
            weight_map[name] = file
        save(path / file, entries, digests)
    path.mkdir(parents=True, exist_ok=True)
    metadata = {
        "version": f"{version:06d}",
        "base_version": f"{version - 1:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
    }
    (path / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return path


def apply(path: Path, weights: Weights) -> Weights:
    """Applies like the format's own reader, with its checks."""
    index = json.loads((path / INDEX).read_text())
    metadata = index["metadata"]
    assert all(isinstance(value, str) for value in metadata.values()), metadata
    files = sorted(set(index["weight_map"].values()))
    expected = [f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    assert files == expected and sorted(file.name for file in path.iterdir()) == sorted(
        [*expected, INDEX]
    )
    new = dict(weights)
    for file in files:
        entries, digests = load(path / file)
        assert (
            {name for name, at in index["weight_map"].items() if at == file}
            == entries.keys()
            == digests.keys()
        )
        for name, entry in entries.items():
            size = zstandard.frame_content_size(entry.tobytes())
            payload = zstandard.ZstdDecompressor().decompress(entry.tobytes())
            assert size == len(payload)
            new[name] = decode(metadata["delta_encoding"], payload, weights[name])
            assert (
                CHECKSUMS[metadata["checksum_format"]](new[name].tobytes()) == digests[name]
            ), name
    return new


def weights_of(seed: int) -> Weights:
    random = np.random.default_rng(seed)
    sizes = [0, 1, 2, 7, 1000, 4096, 20_001]
    return {f"layer.{i}.ü": random.integers(0, 256, size, np.uint8) for i, size in enumerate(sizes)}


def step(weights: Weights, seed: int, density: float) -> Weights:
    random = np.random.default_rng(seed)
    new = {}
    for name, values in weights.items():
        mask = random.random(values.size) < density
        new[name] = np.where(mask, random.integers(0, 256, values.size, np.uint8), values)
    return new


class CrossTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def tool(self, *arguments: object) -> None:
        done = subprocess.run(
            [TOOL, *map(str, arguments)], check=False, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def check(self, found: Weights, expected: Weights) -> None:
        self.assertEqual(found.keys(), expected.keys())
        for name in expected:
            self.assertEqual(found[name].tobytes(), expected[name].tobytes(), name)

    def test_another_reader_applies_what_we_publish(self) -> None:
        for encoding in ("xor", "overwrite"):
            for checksum in CHECKSUMS:
                for density in (0.0, 0.02, 1.0):
                    with self.subTest(encoding=encoding, checksum=checksum, density=density):
                        folder = self.folder / f"{encoding}-{checksum}-{density}"
                        old = weights_of(1)
                        new = step(old, 2, density)
                        save(folder / "old.safetensors", old)
                        save(folder / "new.safetensors", new)
                        self.tool(
                            "publish",
                            folder / "old.safetensors",
                            folder / "new.safetensors",
                            folder,
                            3,
                            encoding,
                            checksum,
                        )
                        self.check(apply(folder / "weight_v000003", old), new)

    def test_we_apply_what_another_writer_publishes(self) -> None:
        for encoding in ("xor", "overwrite", "xor_sparse"):
            for checksum in CHECKSUMS:
                with self.subTest(encoding=encoding, checksum=checksum):
                    folder = self.folder / f"{encoding}-{checksum}"
                    states = [weights_of(4)]
                    save(folder / "local" / "model.safetensors", states[0])
                    for version, density in enumerate((0.01, 0.0, 0.9), 1):
                        states.append(step(states[-1], version, density))
                        path = publish(folder, version, states[-2], states[-1], encoding, checksum)
                        self.tool("apply", folder / "local", path)
                        self.check(load(folder / "local" / "model.safetensors")[0], states[-1])
                    state = json.loads((folder / "local/.weight_sync/state.json").read_text())
                    self.assertEqual(state["version"], "000003")

    def test_blake3_is_compared_with_another_implementation(self) -> None:
        if "blake3" not in CHECKSUMS:  # the others compare it
            self.skipTest("b3sum is not installed")


if __name__ == "__main__":
    unittest.main()
