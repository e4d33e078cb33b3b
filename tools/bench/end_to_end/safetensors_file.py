"""safetensors files of byte tensors, written as a writer of slime's folders does, and their headers."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from typing import Any, BinaryIO


@dataclasses.dataclass
class Tensor:
    """`content`: anything with the buffer interface, `size` bytes of it in one dimension."""

    name: str
    dtype: str
    shape: list[int]
    size: int
    content: Any


def write_atomically(path: str, write: Any) -> None:
    """`write` gets the open file; it is whole and durable when it gets its name."""
    with open(path + ".tmp", "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)


def parts_of_file(tensors: list[Tensor], metadata: dict[str, str]) -> list[Any]:
    """The bytes of a file, one buffer after the other."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for tensor in tensors:
        offsets = [end, end + tensor.size]
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": offsets,
        }
        end += tensor.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)) + text, *(tensor.content for tensor in tensors)]


def write_parts(path: str, parts: list[Any]) -> None:
    def write(file: BinaryIO) -> None:
        for part in parts:
            file.write(part)

    write_atomically(path, write)


def write_file(path: str, tensors: list[Tensor], metadata: dict[str, str]) -> None:
    write_parts(path, parts_of_file(tensors, metadata))


def write_index(path: str, metadata: dict[str, Any], weight_map: dict[str, str]) -> None:
    text = json.dumps({"metadata": metadata, "weight_map": weight_map}).encode()
    write_parts(path, [text])


def read_header(file: Any) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Returns, for a file in memory, where each tensor's bytes begin and end, and the metadata."""
    (size,) = struct.unpack_from("<Q", file)
    header = json.loads(bytes(file[8 : 8 + size]))
    metadata = header.pop("__metadata__", {})
    places = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        places[name] = (8 + size + begin, 8 + size + end)
    return places, metadata
