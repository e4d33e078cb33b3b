"""A small transformer, and sequences that it can learn."""

from __future__ import annotations

from typing import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tools.demo.on_demand.settings import LIMIT, lengths_of

_VOCABULARY = 61
_WIDTH = 48
_HEADS = 2
_LAYERS = 3


class Layer(nn.Module):
    """Causal attention, and two matrices. Gets the samples of a microbatch, [token, element] each, and computes one after the
    other: what comes of a sample does not depend on what it is packed with."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, samples: list[torch.Tensor]) -> list[torch.Tensor]:
        return [self._one(hidden) for hidden in samples]

    def _one(self, hidden: torch.Tensor) -> torch.Tensor:
        heads = self.attention(self.first_norm(hidden)).view(-1, 3, _HEADS, _WIDTH // _HEADS)
        query, key, value = heads.permute(1, 2, 0, 3)
        mixed = functional.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True)
        hidden = hidden + self.out(mixed[0].transpose(0, 1).flatten(1))
        result: torch.Tensor = hidden + self.down(functional.gelu(self.up(self.second_norm(hidden))))
        return result


class Transformer(nn.Module):
    """The same weights for the same seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        self.positions = nn.Embedding(LIMIT, _WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(_LAYERS))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _VOCABULARY)
        with torch.no_grad():
            self.positions.weight.mul_(0.1)

    def forward(self, samples: list[torch.Tensor]) -> list[torch.Tensor]:
        """samples: tokens, [token] each. Returns the sum of its tokens' losses for each sample."""
        hidden = [self.embedding(tokens) + self.positions.weight[: len(tokens)] for tokens in samples]
        for layer in self.layers:
            hidden = layer(hidden)
        logits = [self.head(self.norm(each))[:-1].float() for each in hidden]
        return [
            functional.cross_entropy(each, tokens[1:], reduction="sum")
            for each, tokens in zip(logits, samples)
        ]


class Minibatch:
    """The samples of one step, the same on all ranks.

    Attributes:
      lengths: in tokens.
    """

    def __init__(self, step: int, ranks: int, seed: int) -> None:
        self.lengths = lengths_of(step, ranks, seed)
        generator = np.random.default_rng([seed, step, 1])
        starts = generator.integers(_VOCABULARY, size=len(self.lengths))
        strides = generator.integers(1, 4, size=len(self.lengths))
        # Something can be learnt: each token follows from the two before.
        self._samples = [
            torch.from_numpy((start + stride * np.arange(length)) % _VOCABULARY)
            for start, stride, length in zip(starts, strides, self.lengths)
        ]

    def losses(self, model: nn.Module, samples: Sequence[int]) -> list[torch.Tensor]:
        """For each of those samples its part of the minibatch's mean loss, for each token."""
        found = model([self._samples[i] for i in samples])
        return [loss / sum(self.lengths) for loss in found]
