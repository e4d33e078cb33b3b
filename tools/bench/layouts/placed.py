"""Where a trainer like Megatron's and engines like vLLM's have the tensors of a model."""

from __future__ import annotations

import dataclasses
from typing import Iterator

from tools.bench.layouts.models import Model, Weight

Ranges = tuple[tuple[int, int], ...]

_TRAINER_WORDS = 128  # for each rank of tp, the vocabulary is padded to a multiple of it
_ENGINE_WORDS = 64  # whatever tp is


@dataclasses.dataclass(frozen=True)
class TrainerMesh:
    """tp changes fastest, then dp, then pp. Experts are divided over `ep` of the ranks of tp and dp."""

    tp: int
    pp: int
    dp: int
    ep: int

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    def parts(self, model: Model, weight: Weight) -> Iterator[tuple[int, Ranges]]:
        """The ranks that have some of it, and what."""
        inside = self.tp * self.dp
        first = weight.layer * self.pp // model.layers * inside
        if weight.expert is not None:
            for rank in range(_owner(model, weight.expert, self.ep), inside, self.ep):
                yield first + rank, _whole(weight)
            return
        for rank in range(inside):
            yield first + rank, _part(weight, rank % self.tp, self.tp, _TRAINER_WORDS * self.tp)


@dataclasses.dataclass(frozen=True)
class EngineMesh:
    """`engines` engines of `tp` ranks each, over which experts are divided too; `host_ranks` ranks a host."""

    tp: int
    engines: int
    host_ranks: int = 8

    @property
    def ranks(self) -> int:
        return self.tp * self.engines

    def parts(self, model: Model, weight: Weight) -> Iterator[tuple[int, Ranges]]:
        """Yields the parts of one engine's ranks."""
        if weight.expert is not None:
            yield _owner(model, weight.expert, self.tp), _whole(weight)
            return
        for rank in range(self.tp):
            yield rank, _part(weight, rank, self.tp, _ENGINE_WORDS)


def _whole(weight: Weight) -> Ranges:
    return tuple((0, extent) for extent in weight.shape)


def _owner(model: Model, expert: int, parts: int) -> int:
    assert model.experts % parts == 0, (model.name, parts)
    return expert // (model.experts // parts)


def _part(weight: Weight, index: int, parts: int, words: int) -> Ranges:
    if weight.cut is None:
        return _whole(weight)
    extent = weight.shape[weight.cut]
    if 0 < weight.kv_heads < parts:  # several ranks have the same head
        index, parts = index * weight.kv_heads // parts, weight.kv_heads
    padded = -(-extent // words) * words if weight.words else extent
    assert padded % parts == 0, (weight.name, padded, parts)
    size = padded // parts
    part = (min(index * size, extent), min((index + 1) * size, extent))
    return tuple(part if dim == weight.cut else whole for dim, whole in enumerate(_whole(weight)))
