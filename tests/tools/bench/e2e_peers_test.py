"""What the end-to-end benchmark compares with does what it claims: each of slime's encodings moves versions into an
engine's weights, with the bytes that its format needs, and a directory behind a link carries whole files."""

from __future__ import annotations

import os
import tempfile
import time
import unittest
from typing import Any

import numpy as np

from tests.integration.network_hosts import NetworkHosts
from tools.bench.end_to_end.directory import LocalDir
from tools.bench.end_to_end.full_copy import FullCopy
from tools.bench.end_to_end.link_dir import LinkDir
from tools.bench.end_to_end.slime_path import SlimePath
from tools.bench.end_to_end.slime_writer import ENCODINGS

LARGE, SMALL = 3_000_000, 1000
CHANGED = 10_000
WAIT_SECONDS = 60.0


def weights() -> dict[str, Any]:
    random = np.random.default_rng(11)
    sizes = {"large": LARGE, "small": SMALL, "never": SMALL}
    return {name: random.integers(0, 1 << 16, size, np.uint16) for name, size in sizes.items()}


class SlimeEncodings(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.views = weights()

    def path(self, encoding: str, piece_bytes: int = 1 << 20) -> SlimePath:
        shared = LocalDir(os.path.join(self.folder, "shared"))
        return SlimePath(self.folder, self.views, 2, piece_bytes, encoding, shared)

    def change(self, seed: int) -> None:
        """CHANGED elements of the first half, and the last one."""
        places = np.random.default_rng(seed).choice(LARGE // 2, CHANGED - 1, replace=False)
        self.views["large"][places] ^= np.uint16(1 + seed)
        self.views["large"][-1] ^= np.uint16(1)

    def test_versions_arrive_in_each_encoding(self) -> None:
        for encoding in ENCODINGS:
            with self.subTest(encoding), self.path(encoding) as path:
                for seed in range(3):
                    self.change(seed)
                    path.publish()
                    path.check()
                path.publish()  # nothing has changed
                self.views["small"][:] += 1
                path.publish()
                path.check()
                self.views["never"][3] += 1
                with self.assertRaisesRegex(RuntimeError, "'never' is not what was published"):
                    path.check()

    def test_a_version_has_the_bytes_of_its_format(self) -> None:
        size = {}
        for encoding in ENCODINGS:
            with self.path(encoding) as path:
                self.change(7)
                size[encoding] = path.publish().size_bytes
        # Each changed byte has a position of 4 bytes, compressed, and the byte.
        self.assertLess(size["overwrite"], (4 + 1) * CHANGED)
        self.assertGreater(size["overwrite"], (1 + 1) * CHANGED)
        self.assertLess(size["xor"], size["overwrite"])

    def test_pieces_change_nothing_but_the_work(self) -> None:
        size = {}
        for piece_bytes in (0, 1 << 17):
            with self.path("xor", piece_bytes) as path:
                self.change(7)
                size[piece_bytes] = path.publish().size_bytes
        self.assertAlmostEqual(size[0] / size[1 << 17], 1, delta=0.02)

    def test_a_full_copy_has_the_weights(self) -> None:
        with FullCopy(self.views, None) as copy:
            for seed in range(2):
                self.change(seed)
                self.assertEqual(copy.publish().size_bytes, 2 * (LARGE + 2 * SMALL))
            self.views["never"][3] += 1
            with self.assertRaisesRegex(RuntimeError, "'never' is not what was published"):
                copy.check()


class LinkDirectory(unittest.TestCase):
    def test_whole_files_cross_the_link_in_both_directions(self) -> None:
        hosts = NetworkHosts.of_test(self)
        content = np.random.default_rng(3).bytes(3_000_001)
        with tempfile.TemporaryDirectory() as root, LinkDir(root, hosts) as shared:
            before = hosts.traffic()[0]
            sent = {"v1/model": (shared.near, shared.far), "v1/acks/000001": (shared.far, shared.near)}
            for path, (source, target) in sent.items():
                for part in (content, b"", content[:1000]):  # the last two replace the first
                    name = os.path.join(source, path)
                    os.makedirs(os.path.dirname(name), exist_ok=True)
                    with open(name + ".tmp", "wb") as file:
                        file.write(part)
                    os.rename(name + ".tmp", name)
                    self.await_content(os.path.join(target, path), part)
            after = hosts.traffic()[0]
            for direction in (0, 1):
                self.assertGreater(after[direction] - before[direction], len(content))
            shared.remove("v1")
            self.assertEqual(os.listdir(shared.near) + os.listdir(shared.far), [])

    def await_content(self, path: str, expected: bytes) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            found = b""
            if os.path.exists(path):
                with open(path, "rb") as file:
                    found = file.read()
                if found == expected:
                    return
            self.assertLess(time.monotonic(), deadline, f"{path}: {len(found)} bytes")
            time.sleep(0.005)


if __name__ == "__main__":
    unittest.main()
