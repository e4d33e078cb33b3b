"""A rollout engine of on_demand_faults.py: holds the model in BF16, or its bytes behind an FP8 view, and says for each version, in
lines of JSON, the digest of all its weights. Ended by a signal.
"""

from __future__ import annotations

import argparse
from typing import Any, Mapping

import torch

import dws
from tests.common.quantise import oracle
from tools.demo.engine_versions import new_versions
from tools.demo.on_demand.processes import say
from tools.real.trainers import models, on_demand_model

RECIPE = "fp8-channel/vllm"


def quantised(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What an engine behind the view has, by the oracle of tests, which shares nothing with the sender's kernels.

    Args:
      weights: whole ones, in BF16.
    """
    found = {}
    for name, weight in weights.items():
        if weight.dim() < 2 or not name.endswith("weight"):
            found[name] = weight
            continue
        made = oracle.quantise(RECIPE, weight.contiguous().view(torch.uint16).numpy()[None])
        found[name] = torch.from_numpy(made["codes"].reshape(weight.shape).copy())
        scales = torch.from_numpy(made["scales"].copy()).view(torch.float32)
        found[f"{name.removesuffix('weight')}weight_scale"] = scales.reshape(weight.shape[0], 1)
    return found


def digests(weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The digests that engines have to have, by kind of engine, for the trainer's whole weights."""
    cast = {name: each.detach().to(torch.bfloat16) for name, each in weights.items()}
    return {"plain": models.digest(cast), "fp8": models.digest(quantised(cast))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--receiver", required=True)
    parser.add_argument("--kind", choices=("plain", "fp8"), required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    weights = {name: torch.zeros_like(each, dtype=torch.bfloat16) for name, each in on_demand_model.make().named_parameters()}
    tensors: Any = weights if options.kind == "plain" else quantised(weights)
    with dws.Engine(options.receiver) as engine:
        views = engine.attach(tensors, timeout=120)
        for grant in new_versions(engine):
            say(sees=grant.version, stream=grant.stream.incarnation, sha256=models.digest(views))


if __name__ == "__main__":
    main()
