"""Replicas, tensor parallelism and their combinations with FSDP2, by torchrun: every rank publishes its share through
its own sender. The engine has to have what full_tensor() gathers. On the same processes, what dws.trainers makes of
DTensors of many meshes is compared with what torch says of them.

    ddp        DistributedDataParallel
    hsdp       fully_shard over a mesh of 2 x 2; sharded parameters on the CPU, as with CPUOffloadPolicy
    tp         parallelize_module: `first` by columns, `second` by rows
    fsdp2-tp   like tp, but in a mesh of 2 x 2 with fully_shard, which cuts all on dimension 0: `second` on both dimensions
    fsdp2-tp-by-rows  like fsdp2-tp, but fully_shard cuts `second` on the dimension of its tensor parallelism
    fsdp2      fully_shard over four ranks, for an engine of three ranks with tensor parallelism, see engine.py
    experts    fully_shard of `first` over two of the ranks with two replicas, of the rest over all
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from dws.errors import LayoutError
from dws.layout import TensorSpec
from dws.trainers.placement import ranges_of
from dws.trainers.publisher import Publisher
from dws.trainers.shares import Declared, shares_of
from tools.real.trainers import models
from tools.real.trainers.comparison import Comparison
from tools.real.trainers.fsdp_run import gathered

STEPS = 5


def parallel(model: torch.nn.Module, layout: str) -> Any:
    """The model, distributed."""
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    if layout == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if layout == "tp":
        return parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    if layout == "fsdp2":
        return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    if layout == "hsdp":
        return fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    if layout == "experts":
        fully_shard(model.first, mesh=mesh)
        return fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    parallelize_module(model, mesh["b"], plan)
    by_rows = {model.second.weight} if layout == "fsdp2-tp-by-rows" else set()
    return fully_shard(
        model, mesh=mesh["a"], shard_placement_fn=lambda p: Shard(1) if p in by_rows else None
    )


def compare_with_torch(mesh: DeviceMesh, rows: int, dim: int, placements: Any) -> bool:
    """Returns whether dws supports the placements. A collective call.

    Raises:
      AssertionError: dws has other elements than torch.
    """
    whole = torch.arange(rows * 3).reshape(rows, 3)
    whole = whole.T.contiguous() if dim else whole
    tensor = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    try:
        part = ranges_of("w", tensor)
    except LayoutError:
        part = None
    declared: list[Any] = [None] * dist.get_world_size()
    spec = TensorSpec("w", "I64", tuple(whole.shape))
    own = TensorSpec("own", "U8", (dist.get_world_size(),))  # so that none has nothing
    dist.all_gather_object(declared, part and {"w": Declared(spec, part)})
    if None in declared:
        return False
    assert part is not None
    shape, offset = compute_local_shape_and_global_offset(whole.shape, mesh, placements)
    assert tuple(shape) == tuple(end - begin for begin, end in part), (placements, rows, part, shape)
    if 0 not in shape:
        assert tuple(offset) == tuple(begin for begin, _ in part), (placements, part, offset)
    for rank in range(dist.get_world_size()):
        declared[rank]["own"] = Declared(own, ((rank, rank + 1),))
    share = shares_of(declared)[dist.get_rank()].get("w")
    if share is not None:
        inside = [slice(low - o, high - o) for (low, high), (o, _) in zip(share.ranges, part)]
        wanted = whole[tuple(slice(*each) for each in share.ranges)]
        assert torch.equal(tensor.to_local()[tuple(inside)], wanted), (placements, rows, share)
    return True


def compare_placements() -> tuple[int, int]:
    """(supported, refused) of all placements of a tensor on a mesh of 2 x 2, and of some extents."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
    kinds = (Replicate(), Shard(0), Shard(1), _StridedShard(0, split_factor=2))
    found = [0, 0]
    for placements in itertools.product(kinds, kinds):
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 11):
            found[not compare_with_torch(mesh, rows, 1 in dims(placements), placements)] += 1
    return found[0], found[1]


def dims(placements: Any) -> set[int]:
    return {placement.dim for placement in placements if hasattr(placement, "dim")}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype", "layout"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    report = ""
    if options.layout == "fsdp2-tp":
        report = ", placements like torch's: %d, refused: %d" % compare_placements()
    model = parallel(models.make("wide", seed=3), options.layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    publisher = Publisher(options.sender, options.job_id)
    publisher.register(model)
    assert publisher.trainer is not None
    sizes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, publisher.trainer.layout.size_bytes)
    comparison = Comparison(options.seen, options.dtype)
    plain = getattr(model, "module", model)
    # Ranks of tensor parallelism get the same data.
    torch.manual_seed(
        0 if options.layout == "tp" else dist.get_rank() // (2 if "-tp" in options.layout else 1)
    )
    for version in range(1, STEPS + 1):
        publisher.publish(version)
        publisher.wait(version, "all", timeout=60)
        whole = gathered(plain)
        del whole["head.weight"]  # tied
        if dist.get_rank() == 0:
            comparison.check(version, whole)
        model(torch.randint(models.VOCABULARY, (4, 9))).backward()
        optimizer.step()
        optimizer.zero_grad()
        plain.steps += 1 + dist.get_rank()
    publisher.close()
    if dist.get_rank() == 0:
        whole_bytes = sum(tensor.numel() * tensor.element_size() for tensor in whole.values())
        assert sum(sizes) == whole_bytes, (sizes, whole_bytes)
        balance = max(sizes) * len(sizes) / whole_bytes
        print(
            f"ok: {comparison.report()}, busiest of {len(sizes)} ranks {balance:.3f} of the mean{report}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
