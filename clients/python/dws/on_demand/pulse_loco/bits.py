"""Planes of bits, as in common/delta/FORMAT.md ("Bits"): the lowest bit of a byte and of a number comes first."""

from __future__ import annotations

from typing import Any

import numpy as np

from dws.errors import InvalidArgumentError

Array = np.ndarray[Any, Any]
RICE_MAX = 15  # the largest Rice parameter; it fills 4 bits


class BitWriter:
    """Appends planes; `bytes` is what they fill, padded with zero bits to a whole byte."""

    def __init__(self) -> None:
        self._planes: list[Array] = []

    def number(self, value: int, width: int) -> None:
        """One number, 0 to 2^width - 1."""
        self._planes.append(np.array([(value >> bit) & 1 for bit in range(width)], np.uint8))

    def fixed(self, values: Array, width: int) -> None:
        """Each of `values` (int64, 0 to 2^width - 1) in `width` bits."""
        if not values.size:
            return
        planes = (values[:, None] >> np.arange(width)) & 1
        self._planes.append(planes.astype(np.uint8).reshape(-1))

    def unary(self, values: Array) -> None:
        """For each value q (int64) q zeros and a one."""
        if not values.size:
            return
        ends = np.cumsum(values + 1)
        plane = np.zeros(int(ends[-1]), np.uint8)
        plane[ends - 1] = 1
        self._planes.append(plane)

    def bytes(self) -> bytes:
        planes = np.concatenate(self._planes) if self._planes else np.zeros(0, np.uint8)
        return np.packbits(planes, bitorder="little").tobytes()


class BitReader:
    """Reads what BitWriter wrote. Memory: at most 9 bytes for each bit.

    Every method raises InvalidArgumentError if the plane is longer than the bytes.
    """

    def __init__(self, data: bytes, what: str) -> None:
        """Args:
          data: a block's bytes; the caller has bounded them.
          what: the name of the object in errors.
        """
        self._bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        self._ones = np.flatnonzero(self._bits)
        self._at = 0
        self._what = what

    def number(self, width: int) -> int:
        """One number of `width` bits."""
        end = self._at + width
        if end > self._bits.size:
            raise damaged(self._what, f"expected a number of {width} bits, found its end")
        packed = np.packbits(self._bits[self._at : end], bitorder="little").tobytes()
        self._at = end
        return int.from_bytes(packed, "little")

    def fixed(self, count: int, width: int) -> Array:
        """`count` numbers of `width` bits, as int64."""
        if not count:
            return np.zeros(0, np.int64)
        end = self._at + count * width
        if end > self._bits.size:
            raise damaged(self._what, f"expected {count} numbers of {width} bits, found {self._bits.size - self._at} bits")
        planes = self._bits[self._at : end].reshape(count, width)
        self._at = end
        return planes.astype(np.int64) @ (np.int64(1) << np.arange(width, dtype=np.int64))

    def unary(self, count: int) -> Array:
        """`count` numbers, as int64."""
        if not count:
            return np.zeros(0, np.int64)
        first = int(np.searchsorted(self._ones, self._at))
        ends = self._ones[first : first + count]
        if ends.size < count:
            raise damaged(self._what, f"expected {count} unary numbers, found {ends.size}")
        start = self._at - 1
        self._at = int(ends[-1]) + 1
        return np.diff(ends, prepend=start) - 1

    def finish(self) -> None:
        """Raises InvalidArgumentError unless less than a byte is left, all zeros."""
        left = self._bits[self._at :]
        if left.size > 7 or left.any():
            raise damaged(self._what, f"expected its end, found {left.size} bits more")


def rice_parameter(values: Array) -> int:
    """The Rice parameter that is best for int64 numbers of 0 or more, and at least one."""
    about = int(values.mean()).bit_length()
    return min(range(max(about - 2, 0), min(about + 1, RICE_MAX) + 1) or [RICE_MAX],
               key=lambda k: values.size * (k + 1) + int((values >> k).sum()))


def write_rice(writer: BitWriter, values: Array, k: int) -> None:
    writer.fixed(values & ((1 << k) - 1), k)
    writer.unary(values >> k)


def read_rice(reader: BitReader, count: int, k: int) -> Array:
    remainders = reader.fixed(count, k)
    return (reader.unary(count) << k) + remainders


def damaged(what: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what} is damaged: {why}; ask for it again")
