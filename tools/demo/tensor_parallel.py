"""How the policy's weights are cut between the ranks of an engine.

The layers that widen have rows of their weight on a rank, those that narrow again have columns, and
the outputs of these are added up (policy.py). Norms, embeddings and the head are whole on every
rank.
"""

from __future__ import annotations

import dataclasses
from typing import Mapping, Optional

import torch

import dws
from tools.demo.policy import Policy


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Attributes:
    dim: on which the weight is cut.
    stacked: weights that lie in it one after the other on that dimension; each is cut.
    """

    dim: int
    stacked: int = 1


_KINDS = {"qkv": _Kind(0, stacked=3), "up": _Kind(0), "out": _Kind(1), "down": _Kind(1)}


def cuts(weights: Mapping[str, torch.Tensor], ranks: int) -> dict[str, dws.Cut]:
    """What the trainer has to declare for engines of so many ranks.

    Args:
      weights: canonical.
    """
    found = {}
    for name, weight in weights.items():
        kind = _kind(name, ranks)
        if kind is not None:
            found[name] = dws.Cut.even(weight.shape[kind.dim], kind.stacked * ranks, kind.dim)
    return found


def mapping(policy: Policy) -> dict[str, dws.Fused]:
    """What the cut weights of an engine rank's policy are made of."""
    rank, ranks = policy.ranks.rank, policy.ranks.size
    found = {}
    for name, weight in policy.named_parameters():
        kind = _kind(name, ranks)
        if kind is not None:
            slices = _slices(name, kind, weight.shape[kind.dim] * ranks, rank, ranks)
            found[name] = dws.Fused(slices, kind.dim)
    return found


def part(weights: Mapping[str, torch.Tensor], rank: int, ranks: int) -> dict[str, torch.Tensor]:
    """What an engine rank must hold of canonical weights, contiguous; without DWS."""
    found = dict(weights)
    for name, weight in weights.items():
        kind = _kind(name, ranks)
        if kind is not None:
            slices = _slices(name, kind, weight.shape[kind.dim], rank, ranks)
            pieces = [weight.narrow(s.dim, s.begin, s.end - s.begin) for s in slices]
            found[name] = torch.cat(pieces, kind.dim).contiguous()
    return found


def _kind(name: str, ranks: int) -> Optional[_Kind]:
    """None for a weight that every rank has whole."""
    return _KINDS.get(name.split(".")[-2]) if ranks > 1 else None


def _slices(name: str, kind: _Kind, extent: int, rank: int, ranks: int) -> list[dws.Slice]:
    """A rank's, one for each of the stacked weights; `extent` is the canonical tensor's."""
    size = extent // (kind.stacked * ranks)
    begins = range(rank * size, extent, ranks * size)
    return [dws.Slice(name, kind.dim, begin, begin + size) for begin in begins]
