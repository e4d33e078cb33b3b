"""A trainer of one process with FSDP2: FP32 weights in DTensors, computed with and published in BF16. With one process
nothing is cut, but all of it goes the way of sharded weights: it is cast on the device, and compared there."""

from __future__ import annotations

import tempfile
import time
from typing import Any, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from dws.trainers.publisher import Publisher
from tools.gpu_check.job.llama_model import Llama, Shape, language_loss, synchronize
from tools.gpu_check.job.plain_training import BETAS, LEARNING_RATE, fused


class FsdpTraining:
    """See PlainTraining. One in a process."""

    def __init__(self, shape: Shape, device: str) -> None:
        self._shape = shape
        self._device = device
        self._folder = tempfile.TemporaryDirectory()
        dist.init_process_group(
            "gloo" if device == "cpu" else "nccl",
            init_method=f"file://{self._folder.name}/store",
            rank=0,
            world_size=1,
        )
        self._model = Llama(shape, device, torch.float32)
        mesh = init_device_mesh(device, (1,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for layer in self._model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self._model, mesh=mesh, mp_policy=policy)
        synchronize(device)
        self.parameters = sum(weight.numel() for weight in self._model.parameters())

    def register(self, socket: str, job_id: str) -> float:
        """Returns the seconds that dws needed for it."""
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=LEARNING_RATE,
            betas=BETAS,
            weight_decay=0.0,
            **fused(self._device),
        )
        self.publisher = Publisher(socket, job_id, dtype=torch.bfloat16)
        started = time.monotonic()
        self.publisher.register(self._model)
        return time.monotonic() - started

    def why_on_host(self) -> str:
        """Returns why the sender reads some of the weights in host memory; "": it reads all of them on the device."""
        memory = self.publisher.memory
        return str(memory) if memory is None or memory.host_copies else ""

    def step(self) -> None:
        language_loss(self._model, self._shape, self._device).backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        synchronize(self._device)

    def scale(self) -> None:
        with torch.no_grad():
            for weight in self._model.parameters():
                weight.mul_(1.5)
        synchronize(self._device)

    def replace(self) -> None:
        with torch.no_grad():
            for weight in self._model.parameters():
                weight.to_local().normal_(std=0.02)
        synchronize(self._device)

    def weights(self) -> Iterable[tuple[str, Any]]:
        for name, weight in self._model.named_parameters():
            yield name, weight.detach().full_tensor().bfloat16()

    def close(self) -> None:
        dist.destroy_process_group()
        self._folder.cleanup()
