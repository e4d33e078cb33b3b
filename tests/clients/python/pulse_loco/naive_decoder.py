"""A decoder of contributions and sums, from OBJECT.md alone: bit by bit, with Python's numbers. It trusts the object."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any, Callable

BLOCK = 262_144


class Bits:
    def __init__(self, data: bytes) -> None:
        self._number, self._at = int.from_bytes(data, "little"), 0

    def take(self, width: int) -> int:
        value = (self._number >> self._at) & ((1 << width) - 1)
        self._at += width
        return value

    def unary(self) -> int:
        zeros = 0
        while not self.take(1):
            zeros += 1
        return zeros

    def rice(self, count: int, k: int) -> list[int]:
        remainders = [self.take(k) for _ in range(count)]
        return [(self.unary() << k) + remainder for remainder in remainders]


def number(bits: int) -> Fraction:
    """The value of an FP32 number of sign 0. Infinity is the number that would follow."""
    exponent, fraction = max(bits >> 23, 1), bits & 0x7FFFFF
    return Fraction(fraction + (0x800000 if bits >> 23 else 0)) * Fraction(2) ** (exponent - 150)


def fp32(value: Fraction) -> int:
    """The bits of an FP32 number of sign 0."""
    bits: int = struct.unpack("<I", struct.pack("<f", float(value)))[0]
    assert number(bits) == value
    return bits


class Weight:
    """near, far: bits of the distances."""

    def __init__(self, bits: int) -> None:
        self.negative = bits >> 31
        x = bits & 0x7FFFFFFF
        self.exponent = max(x >> 23, 1)
        middle = (x + 0x8000) & ~0xFFFF
        top = middle + 0x8000
        grow = 0x7F800000 if top >= 0x7F800000 else fp32(number(top) - number(x))
        shrink = fp32(number(x) - number(middle - 0x8000) if middle else number(x) + number(0x8000))
        self.near_grows = grow <= shrink
        self.near, self.far = min(grow, shrink), max(grow, shrink)


def subset(bits: Bits, classes: list[int], count: int) -> list[bool]:
    width = bits.take(5)
    chosen = [False] * len(classes)
    for name in range(count):
        members = [i for i, of in enumerate(classes) if of == name]
        size, inverted = bits.take(width), bool(bits.take(1))
        ranks, at = set(), -1
        if size:
            for gap in bits.rice(size, bits.take(4)):
                at += gap + 1
                ranks.add(at)
        for rank, i in enumerate(members):
            chosen[i] = (rank in ranks) != inverted
    return chosen


def split(bits: Bits, weights: list[Weight]) -> dict[int, int]:
    first, count = bits.take(8), bits.take(5)

    def class_of(distance: int) -> int:
        return min(max((distance >> 23) - first, 0), count - 1)

    named = [i for i, yes in enumerate(subset(bits, [class_of(w.near) for w in weights], count)) if yes]
    sent = [weights[i] for i in named]
    aways = subset(bits, [class_of(w.far) for w in sent], count)
    goes = [w.far if away else w.near for w, away in zip(sent, aways)]
    high = [0] * len(sent)
    for name in range(count):
        members = [i for i, distance in enumerate(goes) if class_of(distance) == name]
        if members:
            base, k = bits.take(17) - 65_536, bits.take(4)
            for i, above in zip(members, bits.rice(len(members), k)):
                high[i] = (goes[i] >> 16) + base + above
    by_weight, amount = bits.take(1), bits.take(5)
    zeros = [min(max(w.exponent - max(value >> 7, 1) + 8 - amount, 0), 16) if by_weight else amount
             for w, value in zip(sent, high)]
    zeros = [0 if exception else z for z, exception in zip(zeros, subset(bits, [0] * len(sent), 1))]
    low = [0] * len(sent)
    for z in range(16):
        for i in range(len(sent)):
            if zeros[i] == z:
                low[i] = bits.take(16 - z) << z
    out = {}
    for i, (w, away) in enumerate(zip(sent, aways)):
        grows = w.near_grows != away
        negative = w.negative != grows
        out[named[i]] = int(negative) << 31 | high[i] << 16 | low[i]
    return out


def raw(bits: Bits, weights: list[Weight]) -> dict[int, int]:
    named = [i for i in range(len(weights)) if bits.take(1)]
    halves = bits.take(1)
    return {i: bits.take(16) << 16 if halves else bits.take(32) for i in named}


def decode(data: bytes, theta_bits: list[int]) -> dict[int, int]:
    """The bits of each value by the number of its element in the shard."""
    kind, payload = data[12], data[96:]
    if kind == 2:
        payload = payload[32:]
    blocks = -(-len(theta_bits) // BLOCK)
    sizes = struct.unpack(f"<{blocks}I", payload[: 4 * blocks])
    at, out = 4 * blocks, {}
    modes: dict[int, Callable[[Bits, list[Weight]], dict[int, int]]] = {1: raw, 2: split}
    for block, size in enumerate(sizes):
        if size:
            bits = Bits(payload[at : at + size])
            weights = [Weight(x) for x in theta_bits[block * BLOCK : (block + 1) * BLOCK]]
            found = modes[bits.take(8)](bits, weights)
            out.update({block * BLOCK + i: value for i, value in found.items()})
        at += size
    return out


def header(data: bytes) -> dict[str, Any]:
    """The header's fields, by name."""
    names = ("magic", "format", "kind", "dtype", "rank", "round", "attempt", "elements", "payload_bytes", "shard", "zero")
    return dict(zip(names, struct.unpack("<8sIBBHQQQQII", data[:56])))
