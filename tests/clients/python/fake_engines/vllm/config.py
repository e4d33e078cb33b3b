"""The settings that decide whether weights can be updated in place, with vLLM's names and defaults."""

from __future__ import annotations

import contextlib
import types
from typing import Any


def vllm_config(parallel: dict[str, Any], **settings: Any) -> types.SimpleNamespace:
    """Args:
    parallel: of parallel_config, beside the defaults.
    settings: in place of defaults; hf_text_config: the model's.
    """
    Namespace = types.SimpleNamespace
    model = Namespace(hf_text_config=settings.pop("hf_text_config", None), enable_sleep_mode=False)
    defaults = {
        "cache_config": Namespace(enable_prefix_caching=False),
        "compilation_config": Namespace(inductor_compile_config={}),
        "device_config": Namespace(device_type="cpu"),
        "lora_config": None,
        "model_config": model,
        "offload_config": Namespace(
            uva=Namespace(cpu_offload_gb=0), prefetch=Namespace(offload_group_size=0)
        ),
        "parallel_config": Namespace(**{**_PARALLEL, **parallel}),
        "speculative_config": None,
    }
    return Namespace(**{**defaults, **settings})


_PARALLEL = {
    "data_parallel_index": 0,
    "data_parallel_size": 1,
    "distributed_executor_backend": None,
    "enable_eplb": False,
    "enable_expert_parallel": False,
    "expert_placement_strategy": "linear",
    "pipeline_parallel_size": 1,
    "prefill_context_parallel_size": 1,
    "tensor_parallel_size": 1,
    "worker_cls": "vllm.v1.worker.gpu_worker.Worker",
    "worker_extension_cls": "dws.vllm.WorkerExtension",
    "world_size": 1,
}


def set_current_vllm_config(config: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()
