"""A mixed-precision trainer with FP32 masters, whose cast lists what it changes: by Triton's kernel, run by its interpreter, as
there is no device, and by torch's own operations in turn. The engine has to have the plain cast of the masters, and the
sender takes every list.
"""

from __future__ import annotations

import argparse
import os

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

import torch

from dws.trainers import cast_and_list, cast_kernel
from dws.trainers.publisher import Publisher
from tools.real.trainers import models
from tools.real.trainers.comparison import Comparison

STEPS = 6


def held(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights and buffers, tied ones once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    model = models.make("wide", seed=3).to(torch.bfloat16)
    weights = {name: each.data for name, each in model.named_parameters()}
    masters = {
        name: (each.float() + torch.randn(each.shape) * 1e-4).requires_grad_()
        for name, each in weights.items()
    }
    optimizer = torch.optim.AdamW(masters.values(), lr=1e-6)
    publisher = Publisher(options.sender.replace("{rank}", "0"), options.job_id)
    cast_and_list(list(masters.values()), list(weights.values()))
    publisher.register(model, lists=True)
    weights = {name: each.data for name, each in model.named_parameters()}  # where they are now
    publisher.publish(1)
    publisher.wait(1, "all", timeout=60)
    comparison = Comparison(options.seen, options.dtype)
    comparison.check(1, held(model))
    listed = 0
    for version in range(2, STEPS + 2):
        model(torch.randint(models.VOCABULARY, (4, 9))).backward()
        for name, each in model.named_parameters():
            assert each.grad is not None
            masters[name].grad = each.grad.float()
            each.grad = None
        optimizer.step()
        plain = {name: master.detach().to(torch.bfloat16) for name, master in masters.items()}
        cast = cast_kernel.cast_and_list if version % 2 == 0 else cast_and_list
        with torch.no_grad():
            lists = cast(list(masters.values()), list(weights.values()))
        for name, wanted in plain.items():
            assert torch.equal(weights[name].view(torch.int16), wanted.view(torch.int16)), name
        stats = publisher.publish(version, changes=dict(zip(masters, lists)))
        assert stats is not None and all(each is not None for each in lists)
        listed += stats.changed_elements
        assert stats.changed_elements == sum(len(each.position) for each in lists if each), version
        publisher.wait(version, "all", timeout=60)
        comparison.check(version, held(model))
    publisher.close()
    print(f"ok: {comparison.report()}, {listed} changes listed by casts")


if __name__ == "__main__":
    main()
