"""Synthetic weights of the daemons' figures: BF16 tensors, and changes of one step at uniform positions
that are made and taken back."""

from __future__ import annotations

from typing import Any

import numpy as np

import dws

TENSORS = 32
_TILE_ELEMENTS = 1 << 22
_SEED = 20260103


def specs(size_bytes: int, columns: int = 0) -> list[dws.TensorSpec]:
    """TENSORS equal tensors of about `size_bytes` together: of one dimension, or of rows of `columns`."""
    elements = max(size_bytes // 2 // TENSORS, columns, 1)
    shape = (elements,) if columns == 0 else (elements // columns, columns)
    return [dws.TensorSpec(f"layer.{i:02}.weight", "BF16", shape) for i in range(TENSORS)]


def fill(views: dict[str, Any]) -> None:
    """Normally distributed values in numpy views of BF16 tensors."""
    random = np.random.default_rng(_SEED)
    floats = random.standard_normal(_TILE_ELEMENTS, np.float32) * np.float32(0.02)
    tile = (floats.view(np.uint32) >> 16).astype(np.uint16)
    for view in views.values():
        flat = view.reshape(-1)
        for first in range(0, flat.size, tile.size):
            part = flat[first : first + tile.size]
            part[:] = tile[: part.size]


class Changes:
    """The lowest bits of about `density` of all elements; each `flip` turns them over."""

    def __init__(self, views: dict[str, Any], density: float) -> None:
        random = np.random.default_rng(_SEED + 1)
        self._places = []
        for view in views.values():
            flat = view.reshape(-1)
            gaps = random.geometric(density, int(flat.size * density * 1.1) + 100)
            positions = np.cumsum(gaps) - 1
            self._places.append((flat, positions[positions < flat.size]))

    def flip(self) -> None:
        for flat, positions in self._places:
            flat[positions] ^= np.uint16(1)
