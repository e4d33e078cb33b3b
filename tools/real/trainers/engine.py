"""The engine of the check, a process of its own: plain torch, attached to a dws-receiver. For each version in
memory it writes one line into a file, the version and the digest of all of its weights. Ended by a signal.

With --parts=N it holds each weight of models.engine_cuts in N tensors of their own, as the ranks of an engine with
tensor parallelism do, and puts them together for the digest.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import dws
from tools.demo.engine_versions import new_versions
from tools.real.trainers import models

ENGINE_SEED = 99  # other weights than the trainer's


def split(tensors: dict[str, Any], parts: int) -> tuple[dict[str, Any], dict[str, dws.Slice]]:
    """(what the engine holds, where it is in the trainer's tensors)."""
    held, mapping = dict(tensors), {}
    for name, cut in models.engine_cuts(tensors, parts).items():
        whole = held.pop(name)
        bounds = [0, *cut.boundaries, whole.shape[cut.dim]]
        for i, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            held[f"{name}.{i}"] = whole.narrow(cut.dim, begin, end - begin).clone()
            mapping[f"{name}.{i}"] = dws.Slice(name, cut.dim, begin, end)
    return held, mapping


def joined(held: dict[str, Any], mapping: dict[str, dws.Slice]) -> dict[str, Any]:
    """The trainer's tensors."""
    whole = {name: tensor for name, tensor in held.items() if name not in mapping}
    for name in {part.tensor for part in mapping.values()}:
        parts = [key for key, part in mapping.items() if part.tensor == name]
        whole[name] = torch.cat([held[key] for key in parts], mapping[parts[0]].dim)
    return whole


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("receiver", "kind", "dtype", "seen"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--parts", type=int, default=1)
    options = parser.parse_args()
    tensors: Any = dws.declare.from_module(models.make(options.kind, ENGINE_SEED, options.dtype))
    mapping: dict[str, dws.Slice] = {}
    if options.parts > 1:
        tensors, mapping = split(tensors, options.parts)
    with dws.Engine(options.receiver) as engine, open(options.seen, "a", buffering=1) as seen:
        views = engine.attach(tensors, mapping=mapping, timeout=300)
        for grant in new_versions(engine):
            digest = models.digest(joined(views, mapping) if mapping else views)
            seen.write(f"{grant.version} {digest}\n")


if __name__ == "__main__":
    main()
