"""A small excerpt of a recorded training run: made from safetensors files, and unpacked to them.

    excerpt.py make STEPS_DIR EXCERPT_DIR    STEPS_DIR has step_000.safetensors, step_001.safetensors, ...
    excerpt.py unpack DIR                    writes the same kind of files of the excerpt beside this script
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

# Rows of each tensor, evenly spread over all its rows: embeddings, where density differs from row to
# row, linear layers, norms. Two tensors have more than one block of 65,536 elements.
ROWS = {
    "lm_head.weight": 48,
    "model.embed_tokens.weight": 160,
    "model.layers.0.input_layernorm.weight": 512,
    "model.layers.0.mlp.gate_proj.weight": 136,
    "model.layers.7.mlp.down_proj.weight": 24,
    "model.layers.7.post_attention_layernorm.weight": 512,
    "model.norm.weight": 512,
}


def read_safetensors(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + header_bytes]), content[8 + header_bytes :]


def cut(path: Path) -> tuple[list[dict[str, Any]], bytes]:
    """Layout and bytes of the rows of one step, with tensors in the order of their names."""
    header, content = read_safetensors(path)
    tensors, parts, offset = [], [], 0
    for name, rows in sorted(ROWS.items()):
        begin, end = header[name]["data_offsets"]
        shape = header[name]["shape"]
        all_rows = np.frombuffer(content[begin:end], np.uint8).reshape(shape[0], -1)
        part = all_rows[np.arange(rows) * shape[0] // rows].tobytes()
        tensors.append({"name": name, "dtype": header[name]["dtype"], "shape": [rows, *shape[1:]],
                        "offset": offset, "size_bytes": len(part)})
        parts.append(part)
        offset += len(part)
    return tensors, b"".join(parts)


def xor(a: bytes, b: bytes) -> bytes:
    return (np.frombuffer(a, np.uint8) ^ np.frombuffer(b, np.uint8)).tobytes()


def make(steps: Path, to: Path) -> None:
    before = None
    layout: dict[str, Any] = {"steps": []}
    for path in sorted(steps.glob("step_*.safetensors")):
        layout["tensors"], content = cut(path)
        step = {"file": f"{path.stem}.{'raw' if before is None else 'xor'}.zst",
                "step": int(path.stem.split("_")[1]),
                "xxh3": xxhash.xxh3_64_hexdigest(content)}
        packed = zstandard.ZstdCompressor(level=19).compress(xor(before, content) if before else content)
        (to / step["file"]).write_bytes(packed)
        layout["steps"].append(step)
        before = content
    (to / "layout.json").write_text(json.dumps(layout, indent=1) + "\n")


def unpack(to: Path) -> None:
    here = Path(__file__).parent
    layout = json.loads((here / "layout.json").read_text())
    header = {tensor["name"]: {"dtype": tensor["dtype"], "shape": tensor["shape"],
                               "data_offsets": [tensor["offset"], tensor["offset"] + tensor["size_bytes"]]}
              for tensor in layout["tensors"]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    weights = b""
    to.mkdir(parents=True, exist_ok=True)
    for step in layout["steps"]:
        content = zstandard.ZstdDecompressor().decompress((here / step["file"]).read_bytes())
        weights = xor(weights, content) if weights else content
        if xxhash.xxh3_64_hexdigest(weights) != step["xxh3"]:
            sys.exit(f"{step['file']} is damaged: the weights after it are not those of layout.json")
        (to / f"step_{step['step']:03d}.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + weights)
    print(f"{len(layout['steps'])} steps in {to}")


def main() -> int:
    if len(sys.argv) == 4 and sys.argv[1] == "make":
        make(Path(sys.argv[2]), Path(sys.argv[3]))
    elif len(sys.argv) == 3 and sys.argv[1] == "unpack":
        unpack(Path(sys.argv[2]))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
