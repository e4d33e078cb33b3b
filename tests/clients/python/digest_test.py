"""The digest in numpy agrees with a simple one word by word, and with the daemons' digest and numbering."""

import unittest

import numpy as np

import dws
from dws.digest import combine, digest_bytes, digest_hex, rank_state_token
from dws.layout import RankLayout, TensorSpec

MASK = (1 << 64) - 1


def finish(x: int) -> int:
    for factor in (0xD6E8FEB86659FD93, 0xD6E8FEB86659FD93, 1):
        x = ((x ^ (x >> 32)) * factor) & MASK
    return x


def plain(data: bytes, first_word: int) -> tuple[int, int]:
    lanes = [0, 0]
    data += bytes(-len(data) % 8)
    for i in range(len(data) // 8):
        word = int.from_bytes(data[8 * i : 8 * i + 8], "little")
        n = first_word + i
        a = 0x9E3779B97F4A7C15 * word + 0xC2B2AE3D27D4EB4F * n + 0x243F6A8885A308D3
        b = 0xD6E8FEB86659FD93 * word + 0xA0761D6478BD642E * n + 0x13198A2E03707344
        lanes = [lanes[0] + finish(a & MASK), lanes[1] + finish(b & MASK)]
    return lanes[0] & MASK, lanes[1] & MASK


class DigestTest(unittest.TestCase):
    def test_the_digest_equals_the_sum_word_by_word(self) -> None:
        random = np.random.default_rng(5)
        for size in (0, 1, 7, 8, 9, 1000, 300_001):
            data = random.bytes(size)
            self.assertEqual(digest_bytes(data, 77), plain(data, 77))

    def test_the_digest_equals_that_of_the_daemons(self) -> None:
        # Computed with common/model/digest/digest.cc over these bytes, with word numbers from 77.
        i = np.arange(1_000_003, dtype=np.uint64)
        data = ((i * np.uint64(2654435761)) >> np.uint64(13)).astype(np.uint8)
        self.assertEqual(digest_hex(digest_bytes(data, 77)), "b6409b67fd970b2f8c7be73cb5bf37f1")

    def test_words_are_numbered_through_all_slices_of_a_tensor(self) -> None:
        array = np.arange(35, dtype=np.uint16).reshape(5, 7)
        layout = RankLayout([TensorSpec("t", "U16", (5, 7), cuts=dws.Cut((3,), 1))], {"t": (1, 1)})
        part = np.ascontiguousarray(array[:, 3:])
        # The first slice has 15 elements: 30 bytes, four words.
        wanted = combine([plain(part.tobytes(), 4)])
        self.assertEqual(rank_state_token(layout, {"t": part}), wanted)
        with self.assertRaisesRegex(dws.LayoutError, "'t' is \\[5, 7\\], expected \\[5, 4\\]"):
            rank_state_token(layout, {"t": array})


if __name__ == "__main__":
    unittest.main()
