"""dws.vllm's extension, in worker processes of vLLM on the CPU. Importing it, which happens before the model is
built, keeps vLLM's linear weights where builds for GPUs have them: as parameters."""

from __future__ import annotations

import torch
import vllm._custom_ops

from dws.vllm import WorkerExtension

__all__ = ["WorkerExtension"]

# oneDNN would pack them into its own memory.
vllm._custom_ops._supports_onednn = False
# A virtual machine may report the tile instructions and still not let a process use them.
torch.cpu._is_amx_tile_supported = lambda: False
