"""The corpus of a fuzz target is one file, tests/fuzz/corpus/TARGET.pack: u32 size and bytes of each input.

    corpus.py unpack PACK FOLDER    one file for each input, as libFuzzer needs them
    corpus.py pack FOLDER PACK      the smallest inputs first
"""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path

INPUT_BYTES_MAX = 4096
PACK_BYTES_MAX = 128 << 10


def read_pack(pack: Path) -> list[bytes]:
    content = pack.read_bytes() if pack.exists() else b""
    inputs = []
    at = 0
    while at < len(content):
        (size,) = struct.unpack_from("<I", content, at)
        if at + 4 + size > len(content):
            sys.exit(f"{pack}: cut off: an input of {size} bytes at byte {at} of {len(content)}")
        inputs.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return inputs


def unpack(pack: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for content in read_pack(pack):
        (folder / hashlib.sha1(content).hexdigest()).write_bytes(content)


def make_pack(folder: Path, pack: Path) -> None:
    inputs = sorted({path.read_bytes() for path in folder.rglob("*") if path.is_file()},
                    key=lambda content: (len(content), content))
    packed = b""
    left_out = 0
    for content in inputs:
        record = struct.pack("<I", len(content)) + content
        if len(content) > INPUT_BYTES_MAX or len(packed) + len(record) > PACK_BYTES_MAX:
            left_out += 1
        else:
            packed += record
    pack.write_bytes(packed)
    print(f"{pack}: {len(inputs) - left_out} inputs, {len(packed)} bytes, {left_out} too large left out")


def main() -> int:
    if len(sys.argv) == 4 and sys.argv[1] == "unpack":
        unpack(Path(sys.argv[2]), Path(sys.argv[3]))
    elif len(sys.argv) == 4 and sys.argv[1] == "pack":
        make_pack(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
