#!/usr/bin/python3
"""Wrote the golden ledgers and fences of this folder, from common/ledger/LEDGER.md only.

A second implementation of the format: the C++ one must agree with it byte for byte. Run in this folder
only to add files for a new format version; files that exist are never changed.
"""

import struct

MASK = (1 << 64) - 1


def finish(x: int) -> int:
    for _ in range(2):
        x ^= x >> 32
        x = x * 0xD6E8FEB86659FD93 & MASK
    return x ^ x >> 32


def mix(index: int, word: int) -> tuple[int, int]:
    """The contribution of one word to the digest (common/model/digest/digest.h)."""
    return (
        finish((0x9E3779B97F4A7C15 * word + 0xC2B2AE3D27D4EB4F * index + 0x243F6A8885A308D3) & MASK),
        finish((0xD6E8FEB86659FD93 * word + 0xA0761D6478BD642E * index + 0x13198A2E03707344) & MASK),
    )


def record(offset: int, record_type: int, words: list[int]) -> bytes:
    head = struct.pack("<II", 8 * len(words), record_type)
    lane0 = sum(mix(offset + i, word)[0] for i, word in enumerate(words)) & MASK
    lane1 = sum(mix(offset + i, word)[1] for i, word in enumerate(words)) & MASK
    check = mix(offset, struct.unpack("<Q", head)[0])[0]
    return head + struct.pack("<QQQ", check, lane0, lane1) + struct.pack(f"<{len(words)}Q", *words)


def ledger(kind: int, records: list[tuple[int, list[int]]]) -> bytes:
    out = b"DWSLEDGR" + struct.pack("<II", 1, kind)
    for record_type, words in records:
        out += record(len(out), record_type, words)
    return out


def fence(kind: int, words: list[int]) -> bytes:
    out = b"DWSFENCE" + struct.pack("<II", 1, kind) + struct.pack("<4Q", *words)
    parts = [mix(i, word) for i, word in enumerate(struct.unpack("<6Q", out))]
    return out + struct.pack("<2Q", *(sum(part[lane] for part in parts) & MASK for lane in (0, 1)))


STREAM = [4, 1, 2]
NEXT = [5, 1, 3]
FILES = {
    "sender_v1.ledger": ledger(
        1,
        [
            (1, STREAM + [1, 0]),
            (2, STREAM + [1, 0, 1, 0]),
            (2, STREAM + [3, 0, 3, 0]),
            (1, STREAM + [2, 0]),
        ],
    ),
    "sender_marks_v1.ledger": ledger(
        1, [(1, STREAM + [1, 0]), (3, STREAM), (1, NEXT + [2, 0]), (4, NEXT)]
    ),
    "receiver_v1.ledger": ledger(
        2,
        [
            (16, STREAM),
            (17, STREAM + [0, 1, 3]),
            (18, STREAM + [1]),
            (17, STREAM + [0, 3, 3]),
            (19, STREAM + [3]),
        ],
    ),
    "sender_v1.fence": fence(1, STREAM + [9]),
    "receiver_v1.fence": fence(2, STREAM + [0]),
    "none_v1.fence": fence(2, [0, 0, 0, 0]),
}

if __name__ == "__main__":
    for name, content in FILES.items():
        with open(name, "xb") as file:
            file.write(content)
