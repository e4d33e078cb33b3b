"""The workers of verl_run.py: Ray imports them by name in their processes."""

from __future__ import annotations

import hashlib
import inspect
import types
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from verl.checkpoint_engine import CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.rollout import BaseRollout


def digests(weights: dict[str, torch.Tensor]) -> dict[str, str]:
    found = {}
    for name, tensor in weights.items():
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        found[name] = f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(content).hexdigest()}"
    return found


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Small(torch.nn.Module):
    """Sizes that two processes do not divide evenly, two types, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(101, 16, dtype=torch.bfloat16)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 33 + i) for i in range(3))
        self.register_buffer("steps", torch.arange(5))


class Trainer(Worker):
    """As ActorRolloutRefWorker, with a small model."""

    def __init__(self, config: CheckpointEngineConfig) -> None:
        super().__init__()
        torch.distributed.init_process_group("gloo", rank=self.rank, world_size=self.world_size)
        torch.manual_seed(1)
        self.model = Small()
        mesh = init_device_mesh("cpu", (self.world_size,))
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.actor = types.SimpleNamespace(engine=types.SimpleNamespace(get_per_tensor_param=self._weights))
        self.config = types.SimpleNamespace(rollout=types.SimpleNamespace(checkpoint_engine=config))
        import_external_libs(config.custom_backend_module)
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend, is_master=self.rank == 0, bucket_size=1 << 20, **config.engine_kwargs[config.backend]
        )
        self.gathered, self.extra = 0, False

    def _weights(self) -> Any:
        """FSDPEngine.get_per_tensor_param."""

        def each() -> Any:
            if self.extra:
                self.gathered += 1
                yield "other.weight", torch.zeros(3)
            for name, tensor in self.model.state_dict().items():
                self.gathered += 1
                yield name, whole(tensor)

        return each(), None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int = None, mode: str = "auto") -> Any:
        return await inspect.unwrap(ActorRolloutRefWorker.update_weights)(self, global_steps=global_steps, mode=mode)

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def step(self, number: int) -> dict[str, str]:
        """Changes some weights. Returns the digests of all of them."""
        with torch.no_grad():
            for index, parameter in enumerate(self.model.parameters()):
                local = parameter.to_local()
                if local.numel() > number:
                    local.view(-1)[number::17] += 0.125 * (index + 1)
        return digests({name: whole(tensor) for name, tensor in self.model.state_dict().items()})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def send_another(self, extra: bool) -> int:
        """Returns how many tensors were gathered so far."""
        self.extra = extra
        return self.gathered


class Keeping(BaseRollout):
    """The adapter of an inference engine that keeps what it is given."""

    def __init__(self, config: Any) -> None:  # there is no model
        self.config = config
        self.weights: dict[str, torch.Tensor] = {}

    async def resume(self, tags: Any) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, global_steps: Any = None, wire_format: str = "named_tensors", **others: Any) -> None:
        assert wire_format == "named_tensors", wire_format
        self.weights = {name: tensor.clone() async for name, tensor in weights}

    def generate_sequences(self, prompts: Any) -> Any:
        raise NotImplementedError


class Rollout(CheckpointEngineWorker):
    def __init__(self, rollout_config: Any) -> None:
        super().__init__(rollout_config, None, Keeping(rollout_config))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def loaded(self) -> dict[str, str]:
        return digests(self.server_adapter.weights)
