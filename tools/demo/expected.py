"""What engines must report of each version: computed from the trainer's own cast, not asked from
DWS."""

from __future__ import annotations

from typing import Mapping, Sequence

import torch

from dws.digest import Digest, combine, digest_hex, rank_state_token
from dws.layout import RankLayout
from tools.demo import tensor_parallel
from tools.demo.weights_hash import weights_sha256


class Expected:
    """Attributes:
    tokens: version -> state token.
    hashes: version -> SHA-256 of the weights that each rank of an engine holds.
    """

    def __init__(self, engine_ranks: int) -> None:
        self._engine_ranks = engine_ranks
        self.tokens: dict[int, str] = {}
        self.hashes: dict[int, tuple[str, ...]] = {}

    def add(
        self, version: int, weights: Mapping[str, torch.Tensor], tokens: Sequence[Digest]
    ) -> None:
        """Args:
        weights: the whole cast.
        tokens: of the trainer's ranks (`rank_token`), in their order.
        """
        self.tokens[version] = digest_hex(combine(tokens))
        self.hashes[version] = tuple(
            weights_sha256(tensor_parallel.part(weights, rank, self._engine_ranks).items())
            for rank in range(self._engine_ranks)
        )


def rank_token(layout: RankLayout, weights: Mapping[str, torch.Tensor]) -> Digest:
    """The state token of a trainer rank, which owns a part of the whole cast."""
    return rank_state_token(layout, rank_part(layout, weights))


def rank_part(layout: RankLayout, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a trainer rank owns of whole weights."""
    return {
        shard.tensor.name: weights[shard.tensor.name][shard.index].contiguous()
        for shard in layout.shards
    }
