"""The weights of P5: BF16 tensors in the proportions of a Llama of 16 layers, and changes at uniform places,
other ones for each version: of one step, or of random bits."""

from __future__ import annotations

from typing import Any

import numpy as np

import dws

LAYERS = 16
_EMBEDDING_SHARE = 0.21
# The tensors of a layer, with sizes in parts of a key projection.
_PARTS = {
    "self_attn.q_proj": 4,
    "self_attn.k_proj": 1,
    "self_attn.v_proj": 1,
    "self_attn.o_proj": 4,
    "mlp.gate_proj": 16,
    "mlp.up_proj": 16,
    "mlp.down_proj": 16,
}
_NORMS = ("input_layernorm", "post_attention_layernorm")
_SEED = 20260211
_TILE_ELEMENTS = 1 << 22


def specs(size_bytes: int) -> list[dws.TensorSpec]:
    """Tensors of about `size_bytes` together. One dimension each: no part of P5 looks at shapes."""
    elements = size_bytes // 2
    part = max(int(elements * (1 - _EMBEDDING_SHARE)) // (LAYERS * sum(_PARTS.values())) & ~7, 8)
    counts = {"model.embed_tokens": max(int(elements * _EMBEDDING_SHARE) & ~7, 8)}
    for layer in range(LAYERS):
        for name, parts in _PARTS.items():
            counts[f"model.layers.{layer}.{name}"] = part * parts
        for name in _NORMS:
            counts[f"model.layers.{layer}.{name}"] = max(int(2 * part**0.5) & ~7, 8)
    return [dws.TensorSpec(f"{name}.weight", "BF16", (n,)) for name, n in counts.items()]


class Changes:
    """Moves about `density` of the elements of numpy views of BF16 tensors by one step, up or down."""

    def __init__(self, views: dict[str, Any], density: float) -> None:
        self._views = [view.reshape(-1) for view in views.values()]
        self._density = density
        self._random = np.random.default_rng(_SEED)

    def advance(self) -> None:
        for flat in self._views:
            expected = flat.size * self._density
            gaps = self._random.geometric(self._density, int(expected + 6 * expected**0.5) + 10)
            positions = np.cumsum(gaps) - 1
            positions = positions[positions < flat.size]
            steps = self._random.integers(0, 2, positions.size, np.uint16) * 2 - 1
            flat[positions] += steps.astype(np.uint16)


class RandomBits:
    """Flips random bits, at least one, of about `density` of the elements of numpy views of BF16 tensors. The
    places are those of one tile, again and again."""

    def __init__(self, views: dict[str, Any], density: float) -> None:
        self._views = [view.reshape(-1) for view in views.values()]
        self._density = density
        self._random = np.random.default_rng(_SEED + 1)

    def advance(self) -> None:
        tile = self._random.integers(1, 1 << 16, _TILE_ELEMENTS, np.uint16)
        tile[self._random.random(tile.size, np.float32) >= self._density] = 0
        for flat in self._views:
            for first in range(0, flat.size, tile.size):
                part = flat[first : first + tile.size]
                part ^= tile[: part.size]
