"""dws.vllm's extension, in workers of vLLM on the CPU. Importing it, which happens before the model is built, keeps
linear weights where builds for GPUs have them: as parameters, not packed by oneDNN."""

from __future__ import annotations

import torch
import vllm._custom_ops

from dws.vllm import WorkerExtension

__all__ = ["WorkerExtension"]

vllm._custom_ops._supports_onednn = False
# A virtual machine may report tile instructions that a process cannot use.
torch.cpu._is_amx_tile_supported = lambda: False
