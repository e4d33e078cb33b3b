"""BF16 matrices that tell a wrong rounding from the right one, as uint16 [matrices, rows, columns]."""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def from_floats(values: Array) -> Array:
    """Cut off, not rounded: any bits will do."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def every_value() -> Array:
    return np.arange(65536, dtype=np.uint16).reshape(1, 256, 256)


def every_value_in_a_group(largest: float, width: int) -> Array:
    """Each value up to `largest` in a row of its own, in which that one is the largest; others are of its size."""
    bits = np.arange(65536, dtype=np.uint32)
    limit = int(from_floats(np.array([largest]))[0])
    small = bits[(bits & 0x7FFF) <= limit]
    rows = np.zeros((1, small.size, width), np.uint16)
    rows[0, :, 0] = small
    rows[0, :, 1] = limit
    rows[0, :, 2::3] = (small[:, None] * 7 % (limit + 1)).astype(np.uint16)
    return rows


def weights(seed: int, matrices: int, rows: int, columns: int) -> Array:
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 0.02, (matrices, rows, columns)) * np.exp2(rng.integers(-3, 3, (matrices, rows, 1)))
    return from_floats(values)


def hostile(seed: int, matrices: int, rows: int, columns: int) -> Array:
    """Weights with zeros, subnormals, groups of nothing else, one huge element, NaN and infinities of both signs."""
    rng = np.random.default_rng(seed)
    bits = weights(seed, matrices, rows, columns)
    flat = bits.reshape(-1)

    def some(count: int) -> Array:
        return rng.integers(0, flat.size, max(1, min(count, flat.size // 64)))

    flat[some(40)] = 0x0000
    flat[some(40)] = 0x8000
    flat[some(40)] = rng.integers(1, 0x80)
    flat[some(4)] = 0x7F7F  # the largest
    flat[some(4)] = 0xFF00
    bits[:, rows // 2] = 0
    bits[:, rows // 3, : columns // 2] = rng.integers(0, 0x80, columns // 2)
    if rows > 4:
        bits[0, 1, columns // 3] = 0x7FC0
        bits[0, 2, columns // 4] = 0x7F80
        bits[0, 3, columns // 5] = 0xFF80
        bits[0, 4, 0] = 0xFFA1  # a NaN of another kind
    return bits


def random_bits(seed: int, matrices: int, rows: int, columns: int) -> Array:
    """Any exponents, but no NaN and no infinity."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 65536, (matrices, rows, columns)).astype(np.uint16)
    return np.where((bits & 0x7F80) == 0x7F80, bits & 0x807F, bits).astype(np.uint16)


def cases(unit: int, seed: int) -> Iterator[tuple[str, Array]]:
    """Named matrices whose columns are a multiple of `unit`."""
    yield "every value", every_value()
    for largest in (448.0, 1.0, 0.013, 1e-5):
        yield f"every value up to {largest}", every_value_in_a_group(largest, max(unit, 16))
    yield "weights", weights(seed, 1, 300, 384)
    yield "a stack", weights(seed, 3, 96, 256)
    yield "hostile", hostile(seed, 2, 200, 384)
    yield "random bits", random_bits(seed, 1, 130, 256)
    yield "zeros", np.zeros((2, 3, 128), np.uint16)
    yield "subnormals", np.arange(128, dtype=np.uint16).reshape(1, 1, 128)
    yield "one huge element", np.where(np.arange(256) == 77, 0x7F7F, weights(seed, 1, 1, 256)).astype(np.uint16)
    for rows, columns in ((1, 1), (127, 129), (65, 191), (129, 1)):
        fitting = -(-columns // unit) * unit
        yield f"{rows} x {fitting}", hostile(seed, 1, rows, fitting)
