"""FSDP2 by torchrun: every rank publishes its own parts through its own sender. The engine has to have what
full_tensor() gathers.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from dws.trainers.publisher import Publisher
from tools.real.trainers import models
from tools.real.trainers.comparison import Comparison

STEPS = 5


def gathered(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The full state. A collective call."""
    return {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        for name, tensor in model.state_dict().items()
    }


def sharded(dtype: str) -> Any:
    """A model and its optimizer."""
    model = models.make("uneven", seed=dist.get_rank())  # rank 0's are taken
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype))
    for module in (model.embedding, model.first, model.second):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    model, optimizer = sharded(options.dtype)
    dtype = None if options.dtype == "float32" else options.dtype
    dtypes = {"scale": dtype} if dtype else {}  # the engine's buffer is of its type
    publisher = Publisher(options.sender, options.job_id, dtype=dtype, dtypes=dtypes)
    publisher.register(model)
    comparison = Comparison(options.seen, options.dtype)
    torch.manual_seed(dist.get_rank())
    for version in range(1, STEPS + 1):
        publisher.publish(version)
        publisher.wait(version, "all", timeout=60)
        whole = gathered(model)
        if dist.get_rank() == 0:
            comparison.check(version, whole)
        model(torch.randint(models.VOCABULARY, (4, 9))).backward()
        optimizer.step()
        optimizer.zero_grad()
    publisher.close()
    if dist.get_rank() == 0:
        print(f"ok: {comparison.report()}, {dist.get_world_size()} ranks with a sender each")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
