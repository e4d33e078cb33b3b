"""The tensors of a checkpoint's folder of safetensors files: which files count, and where each tensor is in them.

The rules are those of common/formats/safetensors/checkpoint.h, so that an engine is compared with what it has loaded:

1. consolidated* files, which have the same weights by other names, count only where the folder has no other *.safetensors.
2. With an index: the tensors of the files that it names are exactly those of its weight_map, each
   in the file it names; other files are ignored. The index is model.safetensors.index.json, or, if
   neither that file nor model.safetensors exists, the only other *.safetensors.index.json.
3. Without an index: all *.safetensors count, and no tensor may occur twice. If files are numbered
   like model-00002-of-00007, all of them must exist, from 1 to 7.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from dws.dtypes import DType
from dws.errors import InvalidArgumentError, LayoutError
from dws.plugins.canonical import Canonical

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_ENDING = ".safetensors"
_CONSOLIDATED = "consolidated"
_NUMBERED = re.compile(r".*-(\d{5,})-of-(\d{5,})\.safetensors")

# The same limit as in common/model/limits.h. The files are the user's own; it detects a file that
# is not safetensors.
_HEADER_BYTES_MAX = 100 << 20


class _Entry(NamedTuple):
    path: str
    offset_bytes: int
    shape: tuple[int, ...]
    dtype: DType


class CheckpointFiles:
    """A tensor is mapped when it is requested. Lifecycle: reads the headers when it is made."""

    def __init__(self, folder: str, only: Optional[str] = None) -> None:
        """Args:
          only: the one file that counts; None: those of the rules above.

        Raises:
          InvalidArgumentError: no such files, an invalid header, or the folder breaks the rules above; names the file, and
            the tensor.
        """
        self.folder = folder
        self._entries: dict[str, _Entry] = {}
        index, files = _files_of(folder) if only is None else (None, [only])
        weight_map = None if index is None else _weight_map(os.path.join(folder, index))
        if weight_map is not None:
            files = sorted(set(weight_map.values()))
        for file in files:
            path = os.path.join(folder, file)
            try:
                found = dict(_entries_of(path))
            except FileNotFoundError:
                needed = "" if index is None else f", which {index} names"
                raise InvalidArgumentError(f"checkpoint '{folder}' has no file {file}{needed}") from None
            except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
                raise InvalidArgumentError(f"'{path}' is not a safetensors file: {error}") from error
            for name, entry in found.items():
                self._add(name, entry, file, weight_map)
        missing = sorted(set(weight_map or ()) - set(self._entries))
        if weight_map is not None and missing:
            raise InvalidArgumentError(
                f"checkpoint '{folder}': {weight_map[missing[0]]} has no tensor '{missing[0]}', but {index} says that it has"
            )

    def _add(
        self, name: str, entry: _Entry, file: str, weight_map: Optional[Mapping[str, str]]
    ) -> None:
        if weight_map is not None and weight_map.get(name) != file:
            raise InvalidArgumentError(
                f"checkpoint '{self.folder}': {file} has a tensor '{name}', which the index "
                f"{f'says is in {weight_map[name]}' if name in weight_map else 'does not name'}"
            )
        if name in self._entries:
            raise InvalidArgumentError(
                f"checkpoint '{self.folder}' has no index, and tensor '{name}' is in two files, "
                f"{os.path.basename(self._entries[name].path)} and {file}: remove the one that is left over"
            )
        self._entries[name] = entry

    def canonical(self) -> dict[str, Canonical]:
        """All tensors, in the order of the files."""
        return {name: Canonical(e.shape, e.dtype) for name, e in self._entries.items()}

    def dtype(self, name: str) -> DType:
        """Raises:
        LayoutError: the checkpoint does not have it.
        """
        return self._entry(name).dtype

    def bits(self, name: str) -> np.ndarray[Any, Any]:
        """Returns the tensor's elements as unsigned integers.

        Raises:
          LayoutError: the checkpoint does not have it.
        """
        entry = self._entry(name)
        if 0 in entry.shape:
            return np.zeros(entry.shape, entry.dtype.raw)
        mapped: np.ndarray[Any, Any] = np.memmap(
            entry.path, entry.dtype.raw, "r", entry.offset_bytes, entry.shape or (1,)
        )
        return mapped.reshape(entry.shape)

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise LayoutError(f"checkpoint '{self.folder}' has no tensor '{name}'")
        return entry


def _files_of(folder: str) -> tuple[Optional[str], list[str]]:
    """The index that decides, if there is one, and the *.safetensors files without those left aside.

    Raises:
      InvalidArgumentError: none are there, indexes contradict each other, or numbered files are missing.
    """
    try:
        listed = sorted(os.listdir(folder))
    except OSError as error:
        raise InvalidArgumentError(f"checkpoint '{folder}' cannot be listed: {error}") from error
    listed = [name for name in listed if not name.startswith(".")]
    files = [name for name in listed if name.endswith(_ENDING)]
    indexes = [name for name in listed if name.endswith(f"{_ENDING}.index.json")]
    if any(not name.startswith(_CONSOLIDATED) for name in files):
        files, indexes = (
            [name for name in names if not name.startswith(_CONSOLIDATED)]
            for names in (files, indexes)
        )
    if INDEX in indexes:
        return INDEX, files
    if indexes and _SINGLE not in files:
        if len(indexes) > 1:
            raise InvalidArgumentError(
                f"checkpoint '{folder}' has the indexes {' and '.join(indexes)}, expected {INDEX} or only one"
            )
        return indexes[0], files
    if not files:
        raise InvalidArgumentError(f"checkpoint '{folder}' has no *{_ENDING} files")
    _require_all_numbers(folder, files)
    return None, files


def _require_all_numbers(folder: str, files: Sequence[str]) -> None:
    by_total: dict[int, set[int]] = {}
    for match in filter(None, map(_NUMBERED.fullmatch, files)):
        by_total.setdefault(int(match[2]), set()).add(int(match[1]))
    for total, found in by_total.items():
        if found != set(range(1, total + 1)):
            raise InvalidArgumentError(
                f"checkpoint '{folder}' has no {INDEX}, and of {total} numbered files {len(found)}, the first of them "
                f"{min(found)}: it was not written completely"
            )


def _weight_map(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file, object_pairs_hook=_without_repeats)["weight_map"]
        items = {str(name): str(shard) for name, shard in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"'{path}' is no index with a weight_map: {error}") from error
    for name, shard in items.items():
        if not shard.endswith(_ENDING) or os.path.basename(shard) != shard or shard.startswith("."):
            raise InvalidArgumentError(
                f"'{path}': tensor '{name}' is listed in '{shard}', expected a {_ENDING} file in the same folder"
            )
    return items


def _entries_of(path: str) -> Iterator[tuple[str, _Entry]]:
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        content_bytes = os.fstat(file.fileno()).st_size - 8 - size
        if size > _HEADER_BYTES_MAX or content_bytes < 0:
            raise ValueError(f"its header would have {size} bytes")
        header = json.loads(file.read(size), object_pairs_hook=_without_repeats)
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape = tuple(int(extent) for extent in entry["shape"])
        if entry["dtype"] not in DType.__members__:
            raise ValueError(f"tensor '{name}' has the type {entry['dtype']}, expected one of {', '.join(DType.__members__)}")
        dtype = DType[entry["dtype"]]
        begin, end = (int(at) for at in entry["data_offsets"])
        if end - begin != math.prod(shape) * dtype.itemsize or not 0 <= begin <= end <= content_bytes:
            raise ValueError(
                f"tensor '{name}' {dtype.name} {list(shape)} would be the bytes [{begin}, {end}) of {content_bytes}"
            )
        yield name, _Entry(path, 8 + size + begin, shape, dtype)


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has '{next(n for n in names if names.count(n) > 1)}' twice")
    return found
