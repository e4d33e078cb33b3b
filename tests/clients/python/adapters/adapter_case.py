"""A small adapter, its checkpoint as peft writes it, and a receiver that commits versions of it."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

import numpy as np
import torch

from dws._proto import engine_pb2
from tests.clients.python.fake_daemons import FakeReceiver, pause, resume

FOUND = 20.0  # seconds for what a background thread does
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "use_rslora": False, "bias": "none"}
MODULES = {"model.layers.0.q_proj": (6, 4), "model.layers.0.down_proj": (4, 8)}


def tensors(seed: int = 0, r: int = 2, modules: Any = None) -> dict[str, torch.Tensor]:
    """A and B by the names that peft saves."""
    random = torch.Generator().manual_seed(seed)
    found = {}
    for name, (rows, columns) in (modules or MODULES).items():
        found[f"base_model.model.{name}.lora_A.weight"] = torch.randn(r, columns, generator=random)
        found[f"base_model.model.{name}.lora_B.weight"] = torch.randn(rows, r, generator=random)
    return found


def save(folder: str, weights: dict[str, torch.Tensor], **config: Any) -> str:
    """Writes a checkpoint in float32; returns its folder."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({**CONFIG, **config}, file)
    header, data = {}, b""
    for name, tensor in weights.items():
        bits = tensor.numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(bits)]}
        data += bits
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    return folder


class Receiver(FakeReceiver):
    """With commits. Lifecycle: the engine attaches; then `commit`."""

    pauses = 0
    lease: Any = None

    def commit(self, version: int, weights: dict[str, torch.Tensor]) -> str:
        """Writes a version; returns the error of the engine's hook."""
        if self.lease is None:
            self.lease = self.leases.get(timeout=FOUND)
        down, up = self.lease
        self.pauses += 1
        down.put(pause(self.pauses))
        while not up.get(timeout=FOUND).HasField("paused"):
            pass
        memory = np.frombuffer(self.writable_region(), np.uint8)
        for view in self.attached.views:
            if view.tensor in weights:
                bits = np.frombuffer(weights[view.tensor].numpy().tobytes(), np.uint8)
                memory[view.offset_bytes :][: bits.size] = bits
        down.put(engine_pb2.LeaseDown(post_commit=engine_pb2.PostCommit(pause_id=self.pauses, version=version)))
        while not (message := up.get(timeout=FOUND)).HasField("post_commit_done"):
            pass
        if not message.post_commit_done.error:
            down.put(resume(version, self.pauses))
        return str(message.post_commit_done.error)
