"""What is checked: models, and how they are spread over ranks. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

# On the CPU, engines pad what is narrower than 32 on a rank.
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 130,
    "max_position_embeddings": 256,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}

# What differs from the default config, by transformers' model_type.
MODELS: dict[str, dict[str, Any]] = {
    "llama": _SMALL,
    "qwen3_moe": {**_SMALL, **_EXPERTS, "num_experts": 4},
    "mixtral": {**_SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma2": {**_SMALL, "query_pre_attn_scalar": 16},
    "phi3": {**_SMALL, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "glm4_moe": {
        **_SMALL,
        **_EXPERTS,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
    },
    # Many tensors, to measure the time.
    "qwen3_moe-long": {**_SMALL, **_EXPERTS, "num_experts": 64, "num_hidden_layers": 16},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """`model`: of MODELS. `experts`: how they are placed; None: every rank has a part of each. `tp`, `pp`, `dp`: sizes of
    tensor, pipeline and data parallelism."""

    engine: str
    model: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    experts: str | None = None

    @property
    def name(self) -> str:
        more = [f"{name}{size}" for name, size in (("pp", self.pp), ("dp", self.dp)) if size > 1]
        parts = [f"tp{self.tp}", *more, *([self.experts] if self.experts else [])]
        return f"{self.engine}/{self.model}/{'-'.join(parts)}"

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp


_NAMES = ("llama", "qwen3_moe", "mixtral", "gemma2", "phi3", "glm4_moe")

CASES = (
    *(Case("vllm", model, tp) for model in _NAMES for tp in (1, 2)),
    Case("vllm", "qwen3_moe-long"),
    Case("vllm", "qwen3_moe", 2, experts="linear"),
    Case("vllm", "glm4_moe", 2, experts="round_robin"),
    Case("vllm", "qwen3_moe", pp=2),
    Case("vllm", "qwen3_moe", dp=2),
    Case("vllm", "qwen3_moe", dp=2, experts="linear"),
    *(Case("sglang", model, tp) for model in ("llama", "qwen3_moe", "glm4_moe") for tp in (1, 2)),
    Case("sglang", "qwen3_moe-long"),
    Case("sglang", "qwen3_moe", 2, experts="linear"),
    Case("sglang", "qwen3_moe", 2, experts="redundant"),
    Case("sglang", "qwen3_moe", 2, experts="listed"),
)
