"""A small transformer, samples of many lengths, and the true gradient of a minibatch, for training on demand."""

from __future__ import annotations

from typing import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY = 67  # no number of ranks divides it
WIDTH = 24
LENGTH_MAX = 40
_PADDING = -100


class Layer(nn.Module):
    """One layer with causal attention. No number of ranks divides its hidden width.

    Attributes:
      without_second_part: leaves some of its parameters without a gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 61), nn.Linear(61, WIDTH)
        self.without_second_part = False

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        heads = self.attention(self.first_norm(hidden)).view(batch, length, 3, 2, WIDTH // 2)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        if self.without_second_part:
            return hidden
        return hidden + self.down(torch.tanh(self.up(self.second_norm(hidden))))


class Transformer(nn.Module):
    """With tied embeddings and a frozen table of positions. `recompute`: of activations."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH_MAX, WIDTH).requires_grad_(False)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [sample, token], filled up with _PADDING. Returns the sum of all tokens' losses."""
        inputs = tokens.clamp(min=0)
        hidden = self.embedding(inputs) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False) if self.recompute else layer(hidden)
        logits = self.head(hidden)[:, :-1].flatten(0, 1).float()
        targets = tokens[:, 1:].flatten()
        return functional.cross_entropy(logits, targets, ignore_index=_PADDING, reduction="sum")


def make(recompute: bool = False) -> Transformer:
    """The same weights each time."""
    torch.manual_seed(5)
    model = Transformer(recompute)
    with torch.no_grad():
        model.embedding.weight.mul_(0.3)
    return model


class Minibatch:
    """The samples of one minibatch, the same on all ranks.

    Attributes:
      lengths: of the samples, in tokens.
    """

    def __init__(self, number: int, samples: int) -> None:
        generator = torch.Generator().manual_seed(number)
        longest = [LENGTH_MAX if i % 6 == 0 else 14 for i in range(samples)]
        self.lengths = [int(torch.randint(5, end, (), generator=generator)) for end in longest]
        starts = torch.randint(VOCABULARY, (samples, 2), generator=generator)
        # Something can be learnt: each token follows from the one before.
        self._samples = [
            (int(start) + (1 + int(stride) % 5) * torch.arange(length)) % VOCABULARY
            for (start, stride), length in zip(starts, self.lengths)
        ]

    def tokens(self, samples: Sequence[int]) -> torch.Tensor:
        """Those samples, filled up."""
        chosen = [self._samples[i] for i in samples]
        return nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=_PADDING)

    def loss(self, model: nn.Module, samples: Sequence[int]) -> torch.Tensor:
        """Their part of the minibatch's mean loss, for each token."""
        loss: torch.Tensor = model(self.tokens(samples)) / sum(self.lengths)
        return loss


def pieces(
    weights: dict[str, torch.Tensor], minibatch: Minibatch, microbatches: Sequence[Sequence[int]]
) -> Iterator[dict[str, torch.Tensor]]:
    """The BF16 gradients of this rank's microbatches, by a module that is not cut.

    Args:
      weights: whole ones, FP32.
    """
    model = make()
    model.load_state_dict(weights)
    model.to(torch.bfloat16)
    for samples in microbatches:
        minibatch.loss(model, samples).backward()
        yield {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        model.zero_grad()


def true_gradient(
    weights: dict[str, torch.Tensor], minibatch: Minibatch, microbatches: Sequence[Sequence[int]]
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """By name the sum of all ranks' pieces in FP64, and the sum of their magnitudes. A collective call.

    Args:
      microbatches: of this rank.
    """
    found = {
        name: (torch.zeros(each.shape, dtype=torch.float64), torch.zeros(each.shape, dtype=torch.float64))
        for name, each in make().named_parameters()
        if each.requires_grad
    }
    for piece in pieces(weights, minibatch, microbatches):
        for name, gradient in piece.items():
            found[name][0].add_(gradient.double())
            found[name][1].add_(gradient.double().abs())
    for total, magnitude in found.values():
        dist.all_reduce(total)
        dist.all_reduce(magnitude)
    return found
