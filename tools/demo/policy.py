"""The demo's policy: a small decoder-only transformer, and how it samples.

Several ranks of an engine divide each block: a rank has some of the heads and a part of the wide
layer, and the blocks' outputs are added up over the ranks.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

import torch
from torch import nn

from tools.demo.ranks import Ranks


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """Sizes; the default has 10.9 million parameters."""

    vocabulary: int
    context: int
    width: int = 672
    layers: int = 2
    heads: int = 8


# Keys and values of the tokens seen so far, one pair for each call; None if nothing is kept.
Past = Optional[list[tuple[torch.Tensor, torch.Tensor]]]


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and added to its input."""

    def __init__(self, config: PolicyConfig, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks
        self.heads = config.heads // ranks.size
        part = config.width // ranks.size
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * part, bias=False)
        self.out = nn.Linear(part, config.width, bias=False)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * part, bias=False)
        self.down = nn.Linear(4 * part, config.width, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, past: Past = None) -> torch.Tensor:
        """x and the result: [batch, length, width]. `past` is extended by the keys and values of
        x."""
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if past is not None:
            past.append((k, v))
            k, v = (torch.cat(parts, 2) for parts in zip(*past))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.ranks.total(self.out(mixed))
        wide = nn.functional.gelu(self.up(self.norm2(x)))
        return torch.add(x, self.ranks.total(self.down(wide)))


class Policy(nn.Module):
    """tokens [batch, length] -> logits [batch, length, vocabulary]."""

    def __init__(self, config: PolicyConfig, ranks: Optional[Ranks] = None) -> None:
        """Args:
          ranks: the ranks of an engine; None for the whole policy.
        """
        super().__init__()
        self.ranks = Ranks() if ranks is None else ranks
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config, self.ranks) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.mask: torch.Tensor
        mask = torch.full((config.context, config.context), -1e9).triu(1)
        self.register_buffer("mask", mask, persistent=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(
        self, tokens: torch.Tensor, first: int = 0, pasts: Optional[list[Past]] = None
    ) -> torch.Tensor:
        """`first` is the position of tokens[:, 0]; `pasts` holds one Past for each layer."""
        last = first + tokens.shape[1]
        x = self.embed(tokens) + self.position.weight[first:last]
        for layer, block in enumerate(self.blocks):
            x = block(x, self.mask[first:last, :last], pasts[layer] if pasts else None)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


@torch.no_grad()
def sample(
    policy: Policy, prompts: torch.Tensor, count: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples `count` tokens after each prompt, at temperature 1. The policy's ranks call it
    together.

    Args:
      prompts: [batch, prompt length].

    Returns:
      answers [batch, count] and their log-probabilities [batch, count], float32.
    """
    pasts: list[Past] = [[] for _ in policy.blocks]
    tokens, first, answers, chosen = prompts, 0, [], []
    for _ in range(count):
        logprobs = policy(tokens, first, pasts)[:, -1].float().log_softmax(-1)
        first += tokens.shape[1]
        tokens = policy.ranks.of_first(torch.multinomial(logprobs.exp(), 1, generator=generator))
        answers.append(tokens)
        chosen.append(logprobs.gather(1, tokens))
    return torch.cat(answers, 1), torch.cat(chosen, 1)
