"""Small random models of transformers: dense ones, ones with experts, and ones that see."""

from __future__ import annotations

import types
from typing import Any, Mapping

import torch
import transformers
from transformers import AutoConfig

import dws

DENSE = (
    "gemma2", "gemma3_text", "glm4", "gpt_neox", "llama", "ministral", "mistral", "olmo2", "phi3", "qwen2", "qwen3",
    "qwen3_5_text", "smollm3",
)  # fmt: skip
EXPERTS = (
    "afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "flex_olmo", "glm4_moe",
    "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "granitemoe", "hunyuan_v1_moe", "jamba", "kimi_linear", "lfm2_moe",
    "llama4_text", "longcat_flash", "minimax_m2", "mixtral", "nemotron_h", "olmoe", "phimoe", "qwen2_moe",
    "qwen3_5_moe_text", "qwen3_moe", "qwen3_next",
)  # fmt: skip
VISION = (
    "aya_vision", "ernie4_5_vl_moe", "gemma3", "glm4v", "glm4v_moe", "idefics3", "internvl", "kimi_k25", "llava",
    "llava_next", "mistral3", "paligemma", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl",
    "qwen3_vl_moe",
)  # fmt: skip
# Tied, though the family's config is not.
TIED = {"llama-tied": "llama", "qwen2_moe-tied": "qwen2_moe"}

# Sizes that replace those of a config, of all configs in it, where they have them.
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "expert_ffn_hidden_size": 24,
    "ffn_hidden_size": 48,
    "shared_expert_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "intermediate_size_mlp": 48,
    "block_ff_dim": 48,
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "depth": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "zero_expert_num": 2,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "moe_layer_start_index": 1,
    "mamba_d_state": 8,
    "mamba_dt_rank": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "out_hidden_size": 64,
    "projection_dim": 64,
    "vision_output_dim": 64,
    "image_size": 28,
    "patch_size": 14,
    "num_position_embeddings": 16,
    "mtp_num_hidden_layers": 0,
    "num_nextn_predict_layers": 0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Sizes that a family needs, also in the place of None.
OF_FAMILY: dict[str, dict[str, Any]] = {
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "ernie4_5_vl_moe": {
        "moe_intermediate_size": [24, 24],
        "hidden_size": 128,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    },
    "hunyuan_v1_moe": {"head_dim": 16},
    "internvl": {"image_size": [28, 28], "patch_size": [14, 14]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "ministral": {"head_dim": 16},
}
CLASSES = {
    **{name: "AutoModelForCausalLM" for name in (*DENSE, *EXPERTS)},
    **{name: "AutoModelForImageTextToText" for name in VISION},
}


def random_model(name: str, sizes: Mapping[str, Any] = types.MappingProxyType({})) -> Any:
    """Makes a model whose tensors are all random, including those that start as zeros.

    Args:
      sizes: that replace others.
    """
    family = TIED.get(name, name)
    config = AutoConfig.for_model(family)
    _shrink(config, {**OF_FAMILY.get(family, {}), **sizes})
    if name in TIED:
        config.tie_word_embeddings = True
    model = getattr(transformers, CLASSES[family]).from_config(config, dtype=torch.bfloat16)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in dws.named_tensors(model).values():
            tensor.copy_(torch.randn(tensor.shape, generator=random) / 8)
    return model


def _shrink(config: Any, own: dict[str, Any]) -> None:
    """Args:
    own: of the family.
    """
    for name, value in SIZES.items():
        if name not in own and getattr(config, name, None) is not None:
            setattr(config, name, value)
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):  # one for each layer
        kinds = getattr(config, name, None)
        if isinstance(kinds, list) and kinds and name in vars(config):
            setattr(config, name, [kinds[0], kinds[-1]])
    for name, value in own.items():
        if hasattr(config, name):
            setattr(config, name, value)
    for part in vars(config).values():
        if isinstance(part, transformers.PretrainedConfig):
            _shrink(part, own)
