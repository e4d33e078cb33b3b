"""What training on demand does not support, or how it must not be used: each is refused by name, and leaves it usable."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

import dws
from dws.on_demand import sharding
from tools.real.trainers.on_demand_model import Minibatch


def refuses(kind: type[dws.DwsError], words: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), f"expected '{words}': {error}"
        return
    raise AssertionError(f"not refused: '{words}'")


def _reset(model: nn.Module) -> None:
    """Makes FSDP2 usable after a forward pass that was refused; unlike what it calls, keeps gradients."""
    held = [parameter.grad for parameter in model.parameters()]
    sharding.reset(model)
    for parameter, gradient in zip(model.parameters(), held):
        parameter.grad = gradient


def _pair() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def _cut(model: nn.Module, unit: Optional[nn.Module] = None, **options: Any) -> Callable[[], Any]:
    od = dws.on_demand.Training("/nowhere/{rank}.sock", "job")
    return lambda: od.fully_shard(model, [unit] if unit else [], start=False, **options)


def models() -> int:
    """Models and options. Nothing is cut by a call that is refused."""
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()))
    two, compiled, whole = _pair(), _pair(), _pair()
    two[1].weight = two[0].weight
    compiled[1].compile()
    fully_shard(whole[0])
    scalar, halves = _pair(), _pair().to(torch.bfloat16)
    scalar.gain = nn.Parameter(torch.tensor(1.0))
    cases = [
        (dws.InvalidArgumentError, "a mesh of 2 dimensions", _cut(_pair(), mesh=mesh)),
        (dws.InvalidArgumentError, "CPU offload", _cut(_pair(), offload_policy=CPUOffloadPolicy())),
        (dws.InvalidArgumentError, "shard_placement_fn", _cut(_pair(), shard_placement_fn=lambda _: Shard(1))),
        (dws.InvalidArgumentError, "param_dtype=", _cut(_pair(), mp_policy=object())),
        (dws.InvalidArgumentError, "expected BF16 or F32", _cut(_pair(), param_dtype=torch.float16)),
        (dws.DTypeError, "param_dtype=: I32", _cut(_pair(), param_dtype=torch.int32, reduce_dtype=torch.float32)),
        (dws.LayoutError, "module '1', a Linear, is compiled", _cut(compiled)),
        (dws.LayoutError, "is compiled", _cut(torch.compile(_pair()))),
        (dws.LayoutError, "module '0', a FSDPLinear, is cut already", _cut(whole)),
        (dws.LayoutError, "'0.weight' is in the units '0' and '(the model)'", _cut(two, two[0])),
        (dws.LayoutError, "not a part of the model", _cut(_pair(), nn.Linear(2, 2))),
        (dws.LayoutError, "'0.weight' is on meta, expected the host or a CUDA device", _cut(_pair().to("meta"))),
        (dws.LayoutError, "parameter 'gain' has no dimension", _cut(scalar)),
        (dws.DTypeError, "'0.weight' is torch.bfloat16: expected float32", _cut(halves)),
    ]
    for kind, words, call in cases:
        refuses(kind, words, call)
    assert not hasattr(two[0].weight, "placements")
    return len(cases)


def check(run: Any) -> str:
    """A run of on_demand_run, which this ends."""
    count = models()
    od, model = run.od, run.model
    minibatch = Minibatch(3, 4)
    plan = [[(0, 1)] for _ in range(dist.get_world_size())]

    def passes() -> None:
        for attempt in od.minibatch(plan):
            with attempt:
                for samples in attempt.microbatches:
                    run.microbatch(minibatch, samples)
                attempt.finish()

    refuses(dws.StateError, "need an attempt", lambda: run.microbatch(minibatch, (0,)))
    _reset(model)
    refuses(dws.StateError, "start once", od.start)
    refuses(dws.StateError, "no step is decided", od.publish)
    refuses(dws.StateError, "skip() is for", od.skip)
    refuses(dws.InvalidArgumentError, "for 1 ranks", lambda: next(od.minibatch(plan[:1])))
    model.layers[1].without_second_part = True
    refuses(dws.LayoutError, "the gradients of unit 'layers.1'", passes)
    model.layers[1].without_second_part = False
    dist.barrier()  # a rank that is still at the refused attempts would end the next one
    run.gradient(minibatch, plan)
    refuses(dws.StateError, "publish() or skip()", lambda: model(minibatch.tokens((0,))))
    _reset(model)
    refuses(dws.StateError, "publish() or skip()", lambda: next(od.minibatch(plan)))
    run.step()
    held = model.layers[2].up.bias.to_local().detach()
    before = held.clone()
    held += 1.0
    refuses(dws.StateError, "'layers.2.up.bias': this rank's part is not", passes)
    held.copy_(before)
    dist.barrier()
    run.gradient(minibatch, plan)
    run.step()
    run.close()
    return f"{count} models and options, and 9 ways of use"
