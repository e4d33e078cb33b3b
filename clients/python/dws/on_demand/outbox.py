"""The outbox of a rank: shared memory where it leaves gradients for its sender.

common/memory/gradients/OUTBOX.md defines the bytes. The data is divided into buffers of one size, and
each buffer has as many slots as there are owners: a trainer takes a buffer, lets the backward pass
write the gradients of one unit into it, for all owners, and pushes them.

Memory of an outbox is written in order on x86-64, the only machine that DWS runs on: what a slot
says is there before its state is.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from dws.deadline import Deadline
from dws.digest import digest_bytes
from dws.dtypes import DType
from dws.errors import DaemonUnavailableError, DeadlineError, DTypeError, InvalidArgumentError, StateError
from dws.host_pin import HostPin
from dws.memory import SharedRegion, aligned

SLOTS_MAX = 65_536
_FREE, _FILLED = 0, 1  # the third state, offered, is the sender's
_DATA_ALIGNMENT = 4096
_HEADER = np.dtype([("magic", "S8"), ("format", "<u4"), ("slots", "<u4"), ("data_bytes", "<u8"),
                    ("checksum", "<u8"), ("zeros", "V32")])
_SLOT = np.dtype([("state", "<u4"), ("unit", "<u4"), ("owner", "<u4"), ("dtype", "<u4"),
                  ("minibatch", "<u8"), ("number", "<u8"), ("attempt", "<u4"), ("zero", "<u4"),
                  ("offset_bytes", "<u8"), ("size_bytes", "<u8"), ("term", "<u8")])


class Piece(NamedTuple):
    """The gradients of one unit for one owner, in a buffer."""

    number: int  # of this rank, in its attempt
    unit: int
    owner: int  # the rank that owns this shard of the unit
    offset_bytes: int  # in the buffer, a multiple of the element size
    size_bytes: int  # a multiple of the element size; may be 0


class Buffer:
    """A part of the outbox that the rank may write, until it pushes or drops it.

    Attributes:
      bytes: the memory, as numpy's unsigned bytes. It begins at a cache line. Views of it, torch's
        too, stay valid, but must not be written after the push.
    """

    def __init__(self, outbox: Outbox, index: int, data: np.ndarray[Any, Any]) -> None:
        self.bytes = data
        self._outbox = outbox
        self._index = index

    def push(
        self, pieces: Sequence[Piece], *, minibatch: int, term: int, attempt: int, dtype: DType
    ) -> None:
        """Hands pieces to the sender. The buffer is free again when all of them have been added.

        Args:
          pieces: at most one for each owner; none makes the buffer free at once.
          minibatch, term, attempt: what the pieces belong to; terms are the leader's, and each counts its attempts.
          dtype: their elements, BF16 or F32.

        Raises:
          InvalidArgumentError: there are too many pieces, one is not in the buffer, or a number is
            out of range. Nothing was pushed.
          DTypeError: the elements have another type.
          StateError: the buffer was pushed or dropped before.
        """
        self._outbox._push(self._index, pieces, (minibatch, term, attempt), dtype)

    def drop(self) -> None:
        """Gives the buffer back without a push.

        Raises:
          StateError: the buffer was pushed or dropped before.
        """
        self._outbox._let_go(self._index)


class Outbox:
    """Lifecycle: made; `region` and `sender_end` are handed to the sender, then `handed_over`;
    close. Threads: one at a time.

    Attributes:
      region: the memory; the sender needs a descriptor that it can write to.
      sender_end: the socket that the sender gets, to be woken by and to wake the rank.
      wait_seconds: the time spent in `allocate` because no buffer was free.
    """

    def __init__(self, owners: int, buffers: int, buffer_bytes: int) -> None:
        """Args:
          owners: how many ranks have shards.
          buffers: how many units' gradients can be on their way.
          buffer_bytes: the gradients of the largest unit, for all owners.

        Raises:
          InvalidArgumentError: one of them is less than 1, or the slots are more than SLOTS_MAX.
          DwsError: the system has no memory or descriptors left.
        """
        slots = owners * buffers
        if min(owners, buffers, buffer_bytes) < 1 or slots > SLOTS_MAX:
            raise InvalidArgumentError(
                f"an outbox for {owners} owners, {buffers} buffers of {buffer_bytes} bytes: expected at "
                f"least 1 of each, and at most {SLOTS_MAX} slots, owners times buffers"
            )
        self.wait_seconds = 0.0
        self._buffer_bytes = aligned(buffer_bytes)
        self._owners = owners
        data_bytes = buffers * self._buffer_bytes
        slots_end = _HEADER.itemsize + slots * _SLOT.itemsize
        data_begin = -(-slots_end // _DATA_ALIGNMENT) * _DATA_ALIGNMENT
        self.region = SharedRegion("dws-outbox", data_begin + data_bytes)
        memory = self.region.bytes()
        header = memory[: _HEADER.itemsize].view(_HEADER)
        header["magic"], header["format"] = b"DWSOUTBX", 1
        header["slots"], header["data_bytes"] = slots, data_bytes
        checked = _HEADER.fields["checksum"][1]  # type: ignore[index]
        header["checksum"] = digest_bytes(memory[:checked].tobytes())[0]
        self._slots = memory[_HEADER.itemsize : slots_end].view(_SLOT).reshape(buffers, owners)
        self._data = memory[data_begin:].reshape(buffers, self._buffer_bytes)
        self._held = [False] * buffers
        self._end, self.sender_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._end.setblocking(False)
        self._pin: Optional[HostPin] = None

    def pin(self) -> None:
        """Page-locks the memory for the device of this process; see HostPin.try_pin."""
        self._pin = HostPin(self.region)
        self._pin.try_pin()

    def handed_over(self) -> None:
        """Call it when the sender has `sender_end`: then its end tells that the sender is gone."""
        self.sender_end.close()

    def close(self) -> None:
        """Drops the descriptors. Views of buffers stay valid. No copy of a device may be under way."""
        if self._pin is not None:
            self._pin.close()
        self.region.close()
        self.sender_end.close()
        self._end.close()

    def allocate(self, timeout: float) -> Buffer:
        """A free buffer; waits for the sender to free one.

        Args:
          timeout: seconds.

        Raises:
          DeadlineError: none became free in that time.
          DaemonUnavailableError: the sender has closed its end.
        """
        deadline = Deadline(timeout)
        while (index := self._free_buffer()) is None:
            started = time.monotonic()
            try:
                self._wait(deadline)
            finally:
                self.wait_seconds += time.monotonic() - started
        self._held[index] = True
        return Buffer(self, index, self._data[index])

    def _free_buffer(self) -> int | None:
        for index, slots in enumerate(self._slots):
            if not self._held[index] and not np.any(slots["state"] != _FREE):
                return index
        return None

    def _wait(self, deadline: Deadline) -> None:
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        if not poll.poll(deadline.left * 1000):
            raise DeadlineError(
                f"all {len(self._held)} buffers of the outbox are in use after {deadline.seconds} s: the "
                "owners of the gradients are behind, or buffers were neither pushed nor dropped"
            )
        try:
            if self._end.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        raise DaemonUnavailableError("the sender has closed the outbox: register again")

    def _push(
        self, index: int, pieces: Sequence[Piece], of: tuple[int, int, int], dtype: DType
    ) -> None:
        minibatch, term, attempt = of
        if dtype not in (DType.BF16, DType.F32):
            raise DTypeError(f"gradients of {dtype.name}: expected BF16 or F32")
        if len(pieces) > self._owners:
            raise InvalidArgumentError(f"{len(pieces)} pieces: expected at most one for each of {self._owners} owners")
        for piece in pieces:
            begin, size = piece.offset_bytes, piece.size_bytes
            if not 0 <= begin <= begin + size <= self._buffer_bytes or begin % dtype.itemsize or size % dtype.itemsize:
                raise InvalidArgumentError(
                    f"piece {piece}: expected whole elements of {dtype.name} in a buffer of "
                    f"{self._buffer_bytes} bytes"
                )
            if not 0 <= piece.owner < self._owners:
                raise InvalidArgumentError(f"piece {piece}: expected an owner below {self._owners}")
            _require_bits(f"piece {piece}: its unit", piece.unit, 32)
            _require_bits(f"piece {piece}: its number", piece.number, 64)
        for what, value, bits in (("minibatch", minibatch, 64), ("term", term, 64), ("attempt", attempt, 32)):
            _require_bits(what, value, bits)
        self._let_go(index)
        slots = self._slots[index]
        for slot, piece in zip(slots, pieces):
            slot["unit"], slot["owner"], slot["dtype"] = piece.unit, piece.owner, dtype.value
            slot["minibatch"], slot["number"], slot["attempt"] = minibatch, piece.number, attempt
            slot["offset_bytes"] = index * self._buffer_bytes + piece.offset_bytes
            slot["size_bytes"], slot["term"] = piece.size_bytes, term
        slots["state"][: len(pieces)] = _FILLED
        try:
            self._end.send(b"\0")
        except OSError:
            pass  # it is full, and the sender looks after it has read; or the sender is gone, which allocate tells

    def _let_go(self, index: int) -> None:
        if not self._held[index]:
            raise StateError("the buffer was pushed or dropped before: allocate another")
        self._held[index] = False


def _require_bits(what: str, value: int, bits: int) -> None:
    """Some releases of numpy would cut the number."""
    if not 0 <= value < 1 << bits:
        raise InvalidArgumentError(f"{what} is {value}: expected 0 to 2^{bits} - 1")
