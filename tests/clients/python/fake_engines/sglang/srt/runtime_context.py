"""Settings in force, and the ranks of this process; a test sets them."""

from __future__ import annotations

import types
from typing import Any, Optional

_SETTINGS: dict[str, Any] = {}
_PARALLEL: list[Any] = []
DEFAULTS = {
    "attn_cp_size": 1,
    "api_key": None,
    "admin_api_key": None,
    "cpu_offload_gb": 0,
    "device": "cuda",
    "disable_radix_cache": False,
    "dp_size": 1,
    "enable_dp_attention": False,
    "enable_eplb": False,
    "enable_lora": None,
    "enable_lora_overlap_loading": None,
    "enable_memory_saver": False,
    "enable_pdmux": False,
    "enable_torch_compile": False,
    "ep_num_redundant_experts": 0,
    "ep_size": 1,
    "host": "127.0.0.1",
    "init_expert_location": "trivial",
    "load_format": "auto",
    "model_path": "none",
    "moe_dp_size": 1,
    "offload_group_size": -1,
    "port": 1,
    "pp_size": 1,
    "revision": None,
    "speculative_algorithm": None,
    "ssl_certfile": None,
    "startup_weight_load_mode": "serial",
    "weight_cache_mode": "off",
}


class _Context:
    def config_leaf(self, name: str) -> Any:
        if name not in _SETTINGS:
            raise ValueError(f"{name!r} is not a config leaf (no namespace)")
        return _SETTINGS[name]


def get_context() -> Any:
    return _Context()


def get_parallel() -> Any:
    return _PARALLEL[0]


def publish(
    tp_rank: int = 0, tp_size: int = 1, dp_rank: Optional[int] = None, **settings: Any
) -> None:
    _SETTINGS.clear()
    _SETTINGS.update(DEFAULTS, **settings)
    group = types.SimpleNamespace(cpu_group="gloo")
    _PARALLEL[:] = [
        types.SimpleNamespace(
            tp_rank=tp_rank, tp_size=tp_size, tp_group=group, dp_rank=dp_rank
        )
    ]
