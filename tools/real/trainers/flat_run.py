"""Trainers that cut weights as flat arrays, inside of rows, by torchrun: every rank publishes the rows that begin in its
part through its own sender. The engine has to have what the framework gathers.

    fsdp1         FullyShardedDataParallel of all at once, mixed precision
    fsdp1-flat    the same without original parameters and in one precision; each layer is wrapped
    fsdp1-hybrid  HYBRID_SHARD over a mesh of 2 x 2
    zero3         DeepSpeed's ZeRO-3: also rows over three ranks, and small weights, which stay gathered
    zero3-offload the same with partitions in the host's memory
    zero2         DeepSpeed's ZeRO-2, whose weights are whole
"""

from __future__ import annotations

import argparse
import contextlib
import os
import warnings
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)

from dws.errors import StateError
from dws.trainers.publisher import Publisher
from tools.real.trainers import models
from tools.real.trainers.comparison import Comparison

STEPS = 5
State = dict[str, torch.Tensor]
# What is trained; a step of the optimizer for a batch; the whole weights, by a collective call.
Trained = tuple[Any, Callable[[torch.Tensor], None], Callable[[], State]]


def fsdp1(model: torch.nn.Module, layout: str, dtype: torch.dtype) -> Trained:
    options: dict[str, Any] = {"device_id": torch.device("cpu"), "use_orig_params": True}
    if layout == "fsdp1-hybrid":
        options["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        options["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD
    elif layout == "fsdp1-flat":
        options.update(use_orig_params=False, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
        for name, child in list(model.named_children()):
            setattr(model, name, FullyShardedDataParallel(child, **options))
    else:
        options["mixed_precision"] = MixedPrecision(param_dtype=dtype)
        model.steps = model.steps.to(dtype)  # buffers are published as they are
    wrapped = FullyShardedDataParallel(model, **options)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)

    def step(tokens: torch.Tensor) -> None:
        wrapped(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    def gathered() -> State:
        config = FullStateDictConfig(rank0_only=False)
        with FullyShardedDataParallel.state_dict_type(
            wrapped, StateDictType.FULL_STATE_DICT, config
        ):
            return dict(wrapped.state_dict())

    return wrapped, step, gathered


def deepspeed_engine(model: torch.nn.Module, layout: str, dtype: torch.dtype) -> Trained:
    from tools.real.trainers import zero

    assert dtype is torch.bfloat16
    zero.deepspeed.init_distributed("gloo")
    offload = {"offload_param": {"device": "cpu"}} if layout == "zero3-offload" else {}
    engine = zero.deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        config=zero.configuration(stage=2 if layout == "zero2" else 3, **offload),
    )[0]

    def step(tokens: torch.Tensor) -> None:
        engine.backward(engine(tokens))
        engine.step()

    return engine, step, lambda: zero.gathered(engine.module)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype", "kind", "layout"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    dtype = getattr(torch, options.dtype)
    zero = options.layout.startswith("zero")
    model = models.make(options.kind, seed=3, dtype=options.dtype if zero else "float32")
    trained, step, gathered = (deepspeed_engine if zero else fsdp1)(model, options.layout, dtype)
    publisher = Publisher(options.sender, options.job_id)
    publisher.register(trained)
    assert publisher.trainer is not None
    sizes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, publisher.trainer.layout.size_bytes)
    comparison = Comparison(options.seen, options.dtype)
    torch.manual_seed(dist.get_rank())
    for version in range(1, STEPS + 1):
        publisher.publish(version)
        publisher.wait(version, "all", timeout=60)
        whole = gathered()
        if options.kind == "wide":
            del whole["head.weight"]  # tied
        if dist.get_rank() == 0:
            comparison.check(version, whole)
        step(torch.randint(models.VOCABULARY, (4, 9)))
    if not zero:
        with FullyShardedDataParallel.summon_full_params(trained), contextlib.suppress(StateError):
            publisher.publish(STEPS + 1)
            raise AssertionError("gathered weights were published")
    publisher.close()
    if dist.get_rank() == 0:
        size = torch.empty(0, dtype=dtype).element_size()
        whole_bytes = sum(tensor.numel() * size for tensor in whole.values())
        assert sum(sizes) == whole_bytes, (sizes, whole_bytes)
        print(f"ok: {comparison.report()}, {sizes} bytes of ranks", flush=True)
    dist.barrier()
    os._exit(0)  # threads of DeepSpeed go on


if __name__ == "__main__":
    main()
