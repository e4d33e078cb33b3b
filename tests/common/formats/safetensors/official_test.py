"""Files written by DWS are read by other programs: by a small reader written from the format's description, and
by the official library where it is installed (otherwise that test is reported as skipped).
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np

try:
    import safetensors.numpy as official
except ImportError:
    official = None

COPY = os.environ.get("COPY_CHECKPOINT", "tests/common/formats/safetensors/copy_checkpoint")
TYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "U8": np.uint8, "BOOL": np.bool_}


def read(path: Path) -> dict[str, np.ndarray]:
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    assert (8 + length) % 8 == 0
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(
            content[8 + length + begin : 8 + length + end], TYPES[entry["dtype"]]
        )
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, content = {}, b""
    for name, values in tensors.items():
        dtype = next(key for key, numpy_type in TYPES.items() if values.dtype == numpy_type)
        offsets = [len(content), len(content) + values.nbytes]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        content += values.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def model(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    tensors = {}
    for i in range(30):
        shape = tuple(random.integers(0, 9, random.integers(0, 4)))
        dtype = list(TYPES.values())[i % len(TYPES)]
        tensors[f"layer.{i}.weight"] = np.asarray(random.random(shape) * 100, dtype)
    return tensors


class OfficialTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def copy(self, source: Path, shard_bytes: int) -> Path:
        to = self.folder / f"copy{shard_bytes}"
        subprocess.run([COPY, str(source), str(to), str(shard_bytes)], check=True)
        return to

    def check(self, found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
        self.assertEqual(found.keys(), expected.keys())
        for name, values in expected.items():
            self.assertEqual(found[name].dtype, values.dtype, name)
            self.assertEqual(found[name].shape, values.shape, name)
            self.assertEqual(found[name].tobytes(), values.tobytes(), name)

    def test_files_of_another_writer_are_read_and_another_reader_reads_ours(self) -> None:
        for seed in range(5):
            with self.subTest(seed=seed), tempfile.TemporaryDirectory() as folder:
                self.folder = Path(folder)
                expected = model(seed)
                write(self.folder / "x.safetensors", expected)
                self.check(
                    read(self.copy(self.folder / "x.safetensors", 1 << 30) / "model.safetensors"),
                    expected,
                )
                sharded = self.copy(self.folder / "x.safetensors", 500)
                index = json.loads((sharded / "model.safetensors.index.json").read_text())
                found = {}
                for file in set(index["weight_map"].values()):
                    tensors = read(sharded / file)
                    self.assertEqual({index["weight_map"][name] for name in tensors}, {file})
                    found.update(tensors)
                self.check(found, expected)
                self.assertEqual(
                    index["metadata"]["total_size"], sum(v.nbytes for v in expected.values())
                )

    @unittest.skipIf(official is None, "the official safetensors library is not installed")
    def test_the_official_library_reads_our_files_and_we_read_its_files(self) -> None:
        expected = model(7)
        official.save_file(expected, self.folder / "x.safetensors", {"format": "pt"})
        copy = self.copy(self.folder / "x.safetensors", 1 << 30) / "model.safetensors"
        self.check(official.load_file(copy), expected)
        with self.subTest("the same order and padding, byte for byte"):
            self.assertEqual(copy.read_bytes(), (self.folder / "x.safetensors").read_bytes())


if __name__ == "__main__":
    unittest.main()
