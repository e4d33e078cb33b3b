"""The engine's side of slime's path, in a process of its own: looks for the next version folder,
applies it to the engine's copy of the weights, a checkpoint in memory, and acknowledges. It checks
every digest and writes the state down.

Loading the checkpoint, which an engine does next, is not part of it.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xxhash
import zstandard

from tools.bench.daemons.streams import TIMEOUT_SECONDS
from tools.bench.end_to_end import overwrite
from tools.bench.end_to_end import safetensors_file as files
from tools.bench.end_to_end.slime_writer import INDEX

POLL_SECONDS = 0.002


def _map_file(path: str, access: int) -> Any:
    with open(path, "rb" if access == mmap.ACCESS_READ else "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=access), np.uint8)


def _await(path: str) -> str:
    """Returns the path when something exists there."""
    while not os.path.exists(path):
        time.sleep(POLL_SECONDS)
    return path


class Checkpoint:
    """The local checkpoint, mapped writable: its tensors' bytes by name."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.tensors: dict[str, Any] = {}
        with open(os.path.join(folder, INDEX)) as file:
            weight_map = json.load(file)["weight_map"]
        for shard in sorted(set(weight_map.values())):
            content = _map_file(os.path.join(folder, shard), mmap.ACCESS_WRITE)
            places, _ = files.read_header(content)
            for name, (begin, end) in places.items():
                self.tensors[name] = content[begin:end]
        os.makedirs(os.path.join(folder, ".weight_sync"), exist_ok=True)
        self._lock = open(os.path.join(folder, ".weight_sync", "lock"), "w")

    def lock(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def unlock(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def write_state(self, version: int) -> None:
        text = json.dumps({"version": f"{version:06d}"}).encode()
        path = os.path.join(self._folder, ".weight_sync", "state.json")
        files.write_parts(path, [text])


class EntryReader:
    """Applies the versions in `folder` to the checkpoint in `local`."""

    def __init__(self, folder: str, local: str, threads: int, piece_bytes: int) -> None:
        self._folder = folder
        self._piece_bytes = piece_bytes
        self._local = Checkpoint(local)
        self._pool = ThreadPoolExecutor(threads)

    def apply(self, version: int) -> None:
        """Waits for the version's index, which is written last, and applies it."""
        folder = os.path.join(self._folder, f"weight_v{version:06d}")
        with open(_await(os.path.join(folder, INDEX))) as file:
            index = json.load(file)
        metadata = index["metadata"]
        if metadata["base_version"] != f"{version - 1:06d}":
            raise RuntimeError(f"version {version} is a delta of {metadata['base_version']}")
        self._local.lock()
        entries = {}
        for shard in sorted(set(index["weight_map"].values())):
            content = _map_file(_await(os.path.join(folder, shard)), mmap.ACCESS_READ)
            places, digests = files.read_header(content)
            for name, (begin, end) in places.items():
                entries[name] = (content[begin:end], digests[name])
        if set(entries) != set(index["weight_map"]):
            raise RuntimeError(
                f"version {version}: its shards hold other tensors than its index says"
            )
        apply = self._apply_xor if metadata["delta_encoding"] == "xor" else overwrite.apply
        applied = {
            name: self._pool.submit(apply, self._local.tensors[name], entry)
            for name, (entry, _) in entries.items()
        }
        for name, future in applied.items():
            if future.result() != entries[name][1]:
                raise RuntimeError(f"'{name}' is not what the trainer published")
        self._local.write_state(version)
        self._local.unlock()

    def _apply_xor(self, tensor: Any, entry: Any) -> str:
        buffer = np.empty(min(self._piece_bytes or tensor.size, tensor.size), np.uint8)
        digest = xxhash.xxh3_128()
        first = 0
        with zstandard.ZstdDecompressor().stream_reader(entry) as stream:
            while count := stream.readinto(buffer):
                piece = tensor[first : first + count]
                np.bitwise_xor(piece, buffer[:count], out=piece)
                digest.update(piece)
                first += count
        return digest.hexdigest()


def _run(folder: str, local: str, acks: str, threads: int, piece_bytes: int, pipe: Any) -> None:
    reader = EntryReader(folder, local, threads, piece_bytes)
    pipe.send("ready")
    version = 0
    while True:
        version += 1
        try:
            reader.apply(version)
        except Exception as error:  # on any error: the trainer waits for an answer
            pipe.send(f"version {version}: {error}")
            raise
        os.makedirs(acks, exist_ok=True)
        files.write_parts(os.path.join(acks, f"{version:06d}"), [b"ok"])


class SlimeReader:
    """A context manager around the process. `acks`: the folder for a file a version that is applied."""

    def __init__(self, folder: str, local: str, acks: str, threads: int, piece_bytes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (folder, local, acks, threads, piece_bytes, theirs)
        self._process = context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def await_ack(self, acks: str, version: int) -> None:
        """Returns when the acknowledgement of `version` is in `acks`, which the trainer sees.
        Raises RuntimeError if the reader has failed, or if nothing comes in time."""
        path = os.path.join(acks, f"{version:06d}")
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not os.path.exists(path):
            if self._pipe.poll():
                raise RuntimeError(self._pipe.recv())
            if time.monotonic() > deadline:
                raise RuntimeError(f"version {version} was not acknowledged in {TIMEOUT_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def __enter__(self) -> "SlimeReader":
        return self

    def __exit__(self, *unused: Any) -> None:
        self._process.terminate()
        self._process.join()
