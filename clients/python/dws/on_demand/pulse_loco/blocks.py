"""A block of an object: which elements are sent, and their values, against weights that both sides know. OBJECT.md
defines the bits.

A worker sends what crosses a rounding boundary of BF16. How likely an element does follows from its distance to the
boundary, and the value is at least that distance; so elements are divided into classes by it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dws.on_demand.pulse_loco.bits import (Array, BitReader, BitWriter, damaged, read_rice,
                                           rice_parameter, write_rice)
from dws.on_demand.pulse_loco.subsets import read_subset, write_subset

BLOCK_ELEMENTS = 1 << 18
CLASSES_MAX = 24
_RAW, _SPLIT = 1, 2
_NEAREST, _FARTHEST = 64, 8  # elements for which no class is made; found by trying
_BASE_BITS, _BASE_ZERO = 17, 1 << 16
_LOW_BITS = 16  # of an FP32 number those that BF16 lacks
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000


class Distances(NamedTuple):
    """From each weight to the two boundaries of its BF16 number, FP32, exact.

    Attributes:
      near, far: bits of the smaller and the larger one, as int64.
      near_grows: bool; the nearer one is the one with the larger magnitude.
      negative: bool; the sign of the weight.
      exponents: of the weight, the field of FP32, at least 1.
    """

    near: Array
    far: Array
    near_grows: Array
    negative: Array
    exponents: Array


def distances(theta: Array) -> Distances:
    """The distances of finite FP32 weights."""
    bits = theta.view(np.uint32)
    magnitude = bits.astype(np.int64) & _MAGNITUDE
    middle = (magnitude + 0x8000) & ~0xFFFF
    upper = _as_float(np.minimum(middle + 0x8000, _INFINITY))
    lower = np.where(middle, _as_float(np.maximum(middle - 0x8000, 0)), -_as_float(np.array([0x8000])))
    size = _as_float(magnitude)
    grows, shrinks = upper - size, size - lower
    near_grows = grows <= shrinks
    return Distances(
        _bits_of(np.where(near_grows, grows, shrinks)), _bits_of(np.where(near_grows, shrinks, grows)), near_grows,
        bits > _MAGNITUDE, np.maximum(magnitude >> 23, 1),
    )


def _as_float(bits: Array) -> Array:
    return bits.astype(np.uint32).view(np.float32)


def _bits_of(values: Array) -> Array:
    return values.view(np.uint32).astype(np.int64)


def encode_block(theta: Array, values: Array) -> bytes:
    """Args:
      theta: 1 to BLOCK_ELEMENTS finite FP32 weights.
      values: as many finite FP32 numbers; 0 is not sent.
    """
    chosen = values != 0
    if not chosen.any():
        return b""
    return min(_raw(chosen, values), _split(theta, chosen, values), key=len)


def decode_block(data: bytes, theta: Array, what: str) -> tuple[Array, Array]:
    """Returns the ascending positions (int64) of what is sent, and the values (FP32).

    Raises:
      InvalidArgumentError: the bytes are not those of a block of as many elements; `what` names it.
    """
    if not data:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    if len(data) > block_bytes_max(theta.size):
        raise damaged(what, f"expected at most {block_bytes_max(theta.size)} bytes, found {len(data)}")
    reader = BitReader(data, what)
    mode = reader.number(8)
    if mode not in (_RAW, _SPLIT):
        raise damaged(what, f"expected mode {_RAW} or {_SPLIT}, found {mode}")
    read = _read_raw if mode == _RAW else _read_split
    positions, bits = read(reader, theta, what)
    reader.finish()
    size = bits & _MAGNITUDE
    if not ((size > 0) & (size < _INFINITY)).all():
        raise damaged(what, "expected finite values other than 0")
    return positions, bits.astype(np.uint32).view(np.float32)


def block_bytes_max(elements: int) -> int:
    """Mode 1 with all elements in FP32."""
    return -(-(9 + 33 * elements) // 8)


def _raw(chosen: Array, values: Array) -> bytes:
    writer = BitWriter()
    writer.number(_RAW, 8)
    writer.fixed(chosen.astype(np.int64), 1)
    bits = _bits_of(values[chosen])
    halves = not (bits & 0xFFFF).any()
    writer.number(int(halves), 1)
    writer.fixed(bits >> _LOW_BITS if halves else bits, 16 if halves else 32)
    return writer.bytes()


def _read_raw(reader: BitReader, theta: Array, what: str) -> tuple[Array, Array]:
    del what
    positions = np.flatnonzero(reader.fixed(theta.size, 1))
    halves = reader.number(1)
    bits = reader.fixed(positions.size, 16 if halves else 32)
    return positions, bits << _LOW_BITS if halves else bits


class _Classes(NamedTuple):
    """An element's class is by the exponent of a distance: 0 below `first` + 1, then one an octave."""

    first: int
    number: int

    def of(self, distance_bits: Array) -> Array:
        return np.clip((distance_bits >> 23) - self.first, 0, self.number - 1)

    @classmethod
    def for_sent(cls, near: Array) -> "_Classes":
        """The classes for these distances of what is sent. The first and the last class take the few that are much
        nearer or farther than the others, because each class costs some bytes."""
        exponents = np.sort(near >> 23)
        last = exponents.size - 1
        top = int(exponents[max(last - _FARTHEST, 0)]) + 1
        bottom = max(int(exponents[min(_NEAREST, last)]), top - CLASSES_MAX + 1)
        return cls(min(bottom, top), top - min(bottom, top) + 1)


def _split(theta: Array, chosen: Array, values: Array) -> bytes:
    known = distances(theta)
    classes = _Classes.for_sent(known.near[chosen])
    writer = BitWriter()
    writer.number(_SPLIT, 8)
    writer.number(classes.first, 8)
    writer.number(classes.number, 5)
    write_subset(writer, chosen, classes.of(known.near), classes.number)
    sent = _at(known, np.flatnonzero(chosen))
    bits = _bits_of(values[chosen])
    grows = (bits > _MAGNITUDE) != sent.negative
    away = grows != sent.near_grows
    write_subset(writer, away, classes.of(sent.far), classes.number)
    crossed = np.where(away, sent.far, sent.near)
    high = (bits & _MAGNITUDE) >> _LOW_BITS
    above, groups = high - (crossed >> _LOW_BITS), classes.of(crossed)
    for name in range(classes.number):
        _write_values(writer, above[groups == name])
    _write_low(writer, bits & 0xFFFF, high >> 7, sent.exponents)
    return writer.bytes()


def _read_split(reader: BitReader, theta: Array, what: str) -> tuple[Array, Array]:
    known = distances(theta)
    classes = _Classes(reader.number(8), reader.number(5))
    if not 1 <= classes.number <= CLASSES_MAX:
        raise damaged(what, f"expected 1 to {CLASSES_MAX} classes, found {classes.number}")
    positions = np.flatnonzero(read_subset(reader, classes.of(known.near), classes.number, what))
    sent = _at(known, positions)
    away = read_subset(reader, classes.of(sent.far), classes.number, what)
    grows = away != sent.near_grows
    crossed = np.where(away, sent.far, sent.near)
    groups, high = classes.of(crossed), crossed >> _LOW_BITS
    for name in range(classes.number):
        at = np.flatnonzero(groups == name)
        high[at] += _read_values(reader, at.size)
    if high.size and not 0 <= high.min() <= high.max() < _INFINITY >> _LOW_BITS:
        raise damaged(what, f"expected finite values, found {high.min()} to {high.max()} as their upper halves")
    low = _read_low(reader, high >> 7, sent.exponents, what)
    sign = (grows != sent.negative).astype(np.int64) << 31
    return positions, sign | high << _LOW_BITS | low


def _at(known: Distances, positions: Array) -> Distances:
    return Distances(*(part[positions] for part in known))


def _write_values(writer: BitWriter, above: Array) -> None:
    if not above.size:
        return
    base = int(above.min())
    k = rice_parameter(above - base)
    writer.number(base + _BASE_ZERO, _BASE_BITS)
    writer.number(k, 4)
    write_rice(writer, above - base, k)


def _read_values(reader: BitReader, count: int) -> Array:
    if not count:
        return np.zeros(0, np.int64)
    base = reader.number(_BASE_BITS) - _BASE_ZERO
    return read_rice(reader, count, reader.number(4)) + base


def _zeros_below(by_weight: bool, amount: int, exponents: Array, of_weights: Array) -> Array:
    """How many of the low 16 bits of each value are zeros, from the lowest, unless it is an exception."""
    if not by_weight:
        return np.full(exponents.size, amount)
    zeros: Array = np.clip(of_weights - np.maximum(exponents, 1) + 8 - amount, 0, _LOW_BITS)
    return zeros


def _write_low(writer: BitWriter, low: Array, exponents: Array, of_weights: Array) -> None:
    trailing = np.full(low.size, _LOW_BITS)
    some = low != 0
    trailing[some] = np.log2((low & -low)[some]).astype(np.int64)
    best = None
    for by_weight in (False, True):
        for amount in range(_LOW_BITS + 1):
            zeros = _zeros_below(by_weight, amount, exponents, of_weights)
            exceptions = trailing < zeros
            cost = int((_LOW_BITS - np.where(exceptions, -8, zeros)).sum())
            if best is None or cost < best[0]:
                best = cost, by_weight, amount, np.where(exceptions, 0, zeros), exceptions
    assert best is not None
    _, by_weight, amount, zeros, exceptions = best
    writer.number(int(by_weight), 1)
    writer.number(amount, 5)
    write_subset(writer, exceptions, np.zeros(low.size, np.int64), 1)
    for number in range(_LOW_BITS):
        writer.fixed(low[zeros == number] >> number, _LOW_BITS - number)


def _read_low(reader: BitReader, exponents: Array, of_weights: Array, what: str) -> Array:
    by_weight, amount = bool(reader.number(1)), reader.number(5)
    if amount > _LOW_BITS:
        raise damaged(what, f"expected at most {_LOW_BITS} zero bits, found {amount}")
    zeros = _zeros_below(by_weight, amount, exponents, of_weights)
    zeros[read_subset(reader, np.zeros(exponents.size, np.int64), 1, what)] = 0
    low = np.zeros(exponents.size, np.int64)
    for number in range(_LOW_BITS):
        at = np.flatnonzero(zeros == number)
        low[at] = reader.fixed(at.size, _LOW_BITS - number) << number
    return low
