"""dws.vllm's extension, in workers of vLLM on the CPU, with a look at the slots of adapters."""

from __future__ import annotations

import hashlib
from typing import Any, Optional

from dws.plugins.tensor_memory import bytes_of
from tools.real.vllm_worker import WorkerExtension as Extension

__all__ = ["WorkerExtension"]


class WorkerExtension(Extension):
    def slot_digest(self, lora_int_id: int) -> Optional[str]:
        """Over what all buffers have in the adapter's slot; None: it has none."""
        runner: Any = self
        manager = runner.model_runner.lora_manager._adapter_manager
        if lora_int_id not in manager.lora_index_to_id:
            return None
        slot, digest = manager.lora_index_to_id.index(lora_int_id), hashlib.sha256()
        for name, module in sorted(manager.modules.items()):
            for stacked in (module.lora_a_stacked, module.lora_b_stacked):
                for buffer in stacked if isinstance(stacked, tuple) else (stacked,):
                    digest.update(name.encode() + bytes_of(buffer[slot]).numpy().tobytes())
        return digest.hexdigest()
