"""Handing a version over tensor by tensor through a bounded ring of shared buckets."""

from __future__ import annotations

import collections
import time
from typing import Any, Protocol

from dws._proto import trainer_pb2
from dws.arrays import copy_elements, raw_bits, slice_rows
from dws.errors import InvalidArgumentError, LayoutError, StateError, VersionError
from dws.layout import BLOCK_ELEMENTS, RankLayout
from dws.memory import ALIGNMENT_BYTES, SharedRegion, aligned

BUCKETS_MAX = 64
# The widest block: any piece of any tensor fits an empty bucket.
BUCKET_BYTES_MIN = BLOCK_ELEMENTS * 8
_PIECES_MAX = 4096  # in one Put: keeps its message small


class Puts(Protocol):
    """The calls that a writer makes."""

    def start_put(self, version: int, bucket: int, pieces: list[Any]) -> Any:
        """Starts a Put of one bucket; pass its result to await_put."""

    def await_put(self, pending: Any) -> None:
        """Returns when the bucket may be overwritten; raises the error of the Put."""


class BucketRing:
    """The ring's memory, and which of its buckets are free. One thread at a time."""

    def __init__(self, bucket_bytes: int, bucket_count: int) -> None:
        """Raises InvalidArgumentError if a bucket cannot hold a block, or there are too many."""
        if bucket_bytes < BUCKET_BYTES_MIN or bucket_bytes % ALIGNMENT_BYTES:
            raise InvalidArgumentError(
                f"bucket_bytes {bucket_bytes}: expected a multiple of {ALIGNMENT_BYTES}, at least "
                f"{BUCKET_BYTES_MIN} (one block of {BLOCK_ELEMENTS} elements of 8 bytes)"
            )
        if not 1 <= bucket_count <= BUCKETS_MAX:
            raise InvalidArgumentError(f"bucket_count {bucket_count}: expected 1 to {BUCKETS_MAX}")
        self.bucket_bytes = bucket_bytes
        self.bucket_count = bucket_count
        self.region = SharedRegion("dws-ring", bucket_bytes * bucket_count)
        self.reset()

    def reset(self) -> None:
        """Marks all buckets as free. Call it when nothing is in flight."""
        self.free = list(range(self.bucket_count))
        self.in_flight: collections.deque[tuple[int, Any]] = collections.deque()


class VersionWriter:
    """One open version; `Trainer.version` makes it and closes it.

    Attributes:
      version: its number.
      stall_seconds: time spent in its calls so far, which the training loop loses.
      stats: PublishStats once the `with` block has ended without an error.
    """

    def __init__(
        self,
        version: int,
        layout: RankLayout,
        ring: BucketRing,
        puts: Puts,
    ) -> None:
        self.version = version
        self.stall_seconds = 0.0
        self.stats: Any = None
        self._layout = layout
        self._ring = ring
        self._puts = puts
        self._put_names: set[str] = set()
        self._open = True
        self._bucket = -1
        self._used_bytes = 0
        self._pieces: list[Any] = []

    def put(self, name: str, tensor: Any) -> None:
        """Hands one tensor over; when it returns, `tensor` may be overwritten.

        Args:
          name: as in the registration.
          tensor: numpy or torch (a device tensor is copied to the host), contiguous, of the shape
            of the rank's part of the tensor.

        Raises:
          VersionError: the tensor was put before in this version.
          DTypeError, LayoutError: it is not what was declared.
          StateError: the version is closed.
          DwsError: the daemon refused an earlier put; the end of the block gives the version up.
        """
        started = time.monotonic()
        if not self._open:
            raise StateError(
                f"version {self.version} is closed: call put() inside its with block"
            )
        shard = self._layout.shard(name)
        if name in self._put_names:
            raise VersionError(
                f"tensor '{name}' was already put in version {self.version}: put each tensor once"
            )
        bits = raw_bits(name, tensor, shard.tensor.dtype)
        if bits.shape != shard.shape:
            raise LayoutError(
                f"tensor '{name}' has shape {list(bits.shape)}, expected {list(shard.shape)}, the "
                f"rank's part of {shard.tensor}"
            )
        self._put_names.add(name)
        for index, rows in enumerate(slice_rows(bits, shard)):
            if rows.size:
                self._put_slice(shard.rank_slice + index, rows, shard.tensor.dtype)
        self.stall_seconds += time.monotonic() - started

    def _put_slice(self, rank_slice: int, rows: Any, dtype: Any) -> None:
        block_bytes = BLOCK_ELEMENTS * dtype.itemsize
        done = 0
        while done < rows.size:
            if self._bucket < 0:
                self._take_bucket()
            room = self._ring.bucket_bytes - self._used_bytes
            left = rows.size - done
            count = left if left * dtype.itemsize <= room else room // block_bytes * BLOCK_ELEMENTS
            if count == 0 or len(self._pieces) == _PIECES_MAX:
                self._send_bucket()
                continue
            offset = self._bucket * self._ring.bucket_bytes + self._used_bytes
            copy_elements(self._ring.region.raw(dtype, count, offset), rows, done)
            self._pieces.append(
                trainer_pb2.PutPiece(
                    rank_slice=rank_slice,
                    first_block=done // BLOCK_ELEMENTS,
                    block_count=-(-count // BLOCK_ELEMENTS),
                    offset_bytes=self._used_bytes,
                )
            )
            self._used_bytes = aligned(self._used_bytes + count * dtype.itemsize)
            done += count

    def _take_bucket(self) -> None:
        ring = self._ring
        if not ring.free:
            bucket, call = ring.in_flight.popleft()
            self._puts.await_put(call)
            ring.free.append(bucket)
        self._bucket = ring.free.pop(0)
        self._used_bytes = 0

    def _send_bucket(self) -> None:
        call = self._puts.start_put(self.version, self._bucket, self._pieces)
        self._ring.in_flight.append((self._bucket, call))
        self._bucket, self._pieces = -1, []

    def drain(self) -> None:
        """Sends the rest and waits for every put; no put() may follow.

        Raises:
          DwsError: a put failed.
        """
        started = time.monotonic()
        self._open = False
        if self._pieces:
            self._send_bucket()
        while self._ring.in_flight:
            _, call = self._ring.in_flight.popleft()
            self._puts.await_put(call)
        self._ring.reset()
        self.stall_seconds += time.monotonic() - started

    def discard(self) -> None:
        """Cancels the puts in flight and drops the rest. The buckets may be filled again once the
        sender has given the version up."""
        self._open = False
        for _, call in self._ring.in_flight:
            call.cancel()
        self._ring.reset()
