"""Writes what layout_bench reads: for each model, what trainer ranks declare and what views engine ranks attach.

dws.trainers.shares decides what each rank declares, as in a Publisher: ranks with the same part of a tensor divide it.

A file has lines of words. First `job MODEL SHARES_SECONDS ENGINES RANKS HOST_RANKS`: of RANKS ranks an engine, HOST_RANKS
a receiver. Then, where LIST is its length and its items:
  tensor NAME DTYPE LIST(extent) LIST(dim LIST(boundary))   tensors are numbered in this order, which is that of names
  holders LIST(trainer rank)                                numbered too
  shard RANK TENSOR HOLDERS LIST(first count)               what a trainer rank owns, and all that have the same part
  view ENGINE_RANK TENSOR LIST(dim begin end)               of each engine
"""

from __future__ import annotations

import math
import sys
import time
from typing import Iterable, TextIO

from dws.layout import TensorSpec
from dws.trainers.shares import Declared, shares_of
from tools.bench.layouts.models import DEEPSEEK_V3, GLM_4_5, KIMI_K2, QWEN3_30B, Model, Weight, weights_of
from tools.bench.layouts.placed import EngineMesh, Ranges, TrainerMesh

# 256 trainer ranks, 128 engine ranks.
JOBS = (
    (KIMI_K2, TrainerMesh(tp=8, pp=8, dp=4, ep=32), EngineMesh(tp=32, engines=4)),
    (DEEPSEEK_V3, TrainerMesh(tp=8, pp=8, dp=4, ep=32), EngineMesh(tp=32, engines=4)),
    (GLM_4_5, TrainerMesh(tp=8, pp=4, dp=8, ep=32), EngineMesh(tp=32, engines=4)),
    (QWEN3_30B, TrainerMesh(tp=4, pp=4, dp=16, ep=64), EngineMesh(tp=8, engines=16)),
)


def _list(*items: object) -> str:
    return " ".join(map(str, (len(items), *items)))


def _cut_dims(weight: Weight, ranges: Iterable[tuple[int, int]]) -> str:
    cut = [
        f"{dim} {begin} {end}"
        for dim, ((begin, end), extent) in enumerate(zip(ranges, weight.shape))
        if (begin, end) != (0, extent)
    ]
    return _list(*cut)


def write_job(model: Model, trainer: TrainerMesh, engine: EngineMesh, out: TextIO) -> None:
    weights = sorted(weights_of(model), key=lambda weight: weight.name)
    parameters = sum(math.prod(weight.shape) for weight in weights)
    if not 0.99 < parameters / model.published_parameters < 1.01:
        raise ValueError(f"{model.name} has {parameters} parameters, published are {model.published_parameters}")
    declared: list[dict[str, Declared]] = [{} for _ in range(trainer.ranks)]
    holders: list[dict[Ranges, list[int]]] = []  # by weight
    for weight in weights:
        spec = TensorSpec(weight.name, weight.dtype, weight.shape)
        parts: dict[Ranges, list[int]] = {}
        for rank, ranges in trainer.parts(model, weight):
            declared[rank][weight.name] = Declared(spec, ranges)
            parts.setdefault(ranges, []).append(rank)
        holders.append(parts)
    begin = time.monotonic()
    shares = shares_of(declared)
    seconds = time.monotonic() - begin
    print("job", model.name, seconds, engine.engines, engine.tp, engine.host_ranks, file=out)

    numbers: dict[tuple[int, ...], int] = {}
    lines: list[str] = []
    for number, (weight, parts) in enumerate(zip(weights, holders)):
        cuts = "0"
        for ranks in parts.values():
            same = numbers.setdefault(tuple(ranks), len(numbers))
            for rank in ranks:
                share = shares[rank].get(weight.name)
                if share is not None:
                    cuts = _list(*(f"{cut.dim} {_list(*cut.boundaries)}" for cut in share.spec.cuts))
                    cells = _list(*(f"{first} {count}" for first, count in share.cells))
                    lines.append(f"shard {rank} {number} {same} {cells}")
        print("tensor", weight.name, weight.dtype, _list(*weight.shape), cuts, file=out)
        for rank, held in engine.parts(model, weight):
            lines.append(f"view {rank} {number} {_cut_dims(weight, held)}")
    for same in numbers:
        print("holders", _list(*same), file=out)
    print("\n".join(lines), file=out)


def main() -> None:
    """Writes a file for each job into the folder that is named, biggest model first."""
    for number, (model, trainer, engine) in enumerate(JOBS):
        assert (trainer.ranks, engine.ranks) == (256, 128)
        with open(f"{sys.argv[1]}/{number}.job", "w", encoding="ascii") as out:
            write_job(model, trainer, engine, out)


if __name__ == "__main__":
    main()
