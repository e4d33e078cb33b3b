"""dws.vllm's worker extension for a try without a GPU: importing it keeps linear weights as parameters, where oneDNN would pack
them away. For `--worker-extension-cls vllm_on_cpu.WorkerExtension`; on a GPU use dws.vllm.WorkerExtension.
"""

import torch
import vllm._custom_ops

from dws.vllm import WorkerExtension

__all__ = ["WorkerExtension"]

vllm._custom_ops._supports_onednn = False
setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)  # a virtual machine may report AMX and refuse it
