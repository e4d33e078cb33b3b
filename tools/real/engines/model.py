"""The models of the check: their configs, and the weights of their versions.

`trained_weights` are for comparisons with fresh engines: every tensor changes.

`version_weights` are for the search for torn passes in requests of several tokens. The two versions differ behind
the last layer's attention only, in every weight there. What an earlier token left in the KV cache is then the same
in both, and the logits of every step are those of one version, exactly, whatever the steps before ran with. Greedy
sampling always takes NEXT_TOKEN, so that every request is the same sequence, whichever version samples: one element
of the hidden state is large, and only that token's logit looks at it.
"""

from __future__ import annotations

import fnmatch
import json
import os
import struct
from typing import Any, NamedTuple, Optional

import numpy as np
import torch

from dws.dtypes import DType
from tests.common.quantise import oracle
from tools.real.engines.tensor_shapes import shapes_of

NEXT_TOKEN = 17
CHANGED_SHARE = 0.05  # from one step of training to the next
_LARGE = 200.0  # element 0 of each embedding
_LIKING = 1.0  # weight of that element for NEXT_TOKEN: its logit is about 10, the others' at most 6

_COMMON: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
# Sizes that give whole tiles of 128 on each of two ranks.
_TILED = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "moe_intermediate_size": 256,
}
# The tensors that neither the view nor engines' quantization_config quantises.
_NOT_QUANTISED = ("lm_head.weight", "*embed_tokens.weight", "*.mlp.gate.weight")
_FP8: dict[str, Any] = {
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": [
            "lm_head",
            *(f"model.layers.{layer}.mlp.gate" for layer in range(_COMMON["num_hidden_layers"])),
        ],
    }
}
_INT4: dict[str, Any] = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": 128,
                },
            }
        },
        "ignore": ["lm_head"],
    }
}
_MXFP4: dict[str, Any] = {
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    }
}
# The recipe, by quant_method.
_RECIPES = {
    "fp8": "fp8-block128/deepseek",
    "compressed-tensors": "int4-g128/amax7",
    "mxfp4": "mxfp4-gpt-oss/triton-kernels",
}
# Configs, by the model's kind.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_COMMON},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **_COMMON},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **_COMMON},
    "qwen3-moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **_COMMON,
        **_MOE,
    },
}
CONFIGS["deepseek"] = {
    **{name: value for name, value in _COMMON.items() if name != "head_dim"},
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 512,  # with the next one, what kernels have
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "first_k_dense_replace": _COMMON["num_hidden_layers"],
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
# Engines keep its router in FP32; its checkpoint has the router in BF16 and the router's bias in FP32.
CONFIGS["glm4-moe"] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    **_COMMON,
    "partial_rotary_factor": 0.5,
    "attention_bias": False,
    "use_qk_norm": True,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_group": 2,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
}
# Its experts are transposed in engines. Layers have a sliding window in turns, and all have attention sinks.
CONFIGS["gpt-oss"] = {
    **{name: value for name, value in _COMMON.items() if name != "rope_theta"},
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "intermediate_size": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"],
    "swiglu_limit": 7.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
}
# vLLM keeps its router in FP32. Its checkpoint has the router in BF16, the router's bias in FP32, and each layer's experts in
# three tensors.
CONFIGS["step3p5"] = {
    **_COMMON,
    "architectures": ["Step3p5ForCausalLM"],
    "model_type": "step3p5",
    "num_attention_groups": _COMMON["num_key_value_heads"],
    "rope_theta": [10000.0, 50000.0],
    "use_head_wise_attn_gate": True,
    "use_qk_norm": True,
    "sliding_window": 32,
    "layer_types": ["full_attention", "sliding_attention"],
    "attention_other_setting": {
        "attention_type": "sliding_attention",
        **{name: _COMMON[name] for name in ("num_attention_heads", "head_dim")},
        "num_attention_groups": _COMMON["num_key_value_heads"],
    },
    "yarn_only_types": [],
    "partial_rotary_factors": [0.5, 1.0],
    "moe_layers_enum": "0,1",
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_intermediate_size": 64,
    "share_expert_dim": 64,
    "moe_router_activation": "softmax",  # vLLM computes no other on the CPU; SGLang does not ask
    "moe_router_scaling_factor": 1.0,
    "use_moe_router_bias": True,
    "need_fp32_gate": True,
    "swiglu_limits": [0.0, 0.0],
    "swiglu_limits_shared": [0.0, 0.0],
}
# SGLang keeps its router in FP32; its checkpoint has the router in BF16, and the router's bias in FP32.
CONFIGS["minimax-m2"] = {
    **_COMMON,
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "intermediate_size": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "use_routing_bias": True,
    "scoring_func": "sigmoid",
    "use_qk_norm": False,  # SGLang computes these norms on GPUs alone
    "rotary_dim": 16,
}
# On two ranks vLLM pads its experts: the second one has half as many groups of 32 as the first.
CONFIGS["gpt-oss-mxfp4"] = {**CONFIGS["gpt-oss"], **_MXFP4, "intermediate_size": 96}
CONFIGS["qwen3-fp8"] = {**CONFIGS["qwen3"], **_TILED, **_FP8}
CONFIGS["qwen3-int4"] = {**CONFIGS["qwen3"], **_TILED, **_INT4}
CONFIGS["qwen3-moe-fp8"] = {**CONFIGS["qwen3-moe"], **_TILED, **_FP8}
CONFIGS["deepseek-fp8"] = {
    **CONFIGS["deepseek"],
    **_FP8,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "first_k_dense_replace": 1,
}
_LAST_LAYER = f"model.layers.{_COMMON['num_hidden_layers'] - 1}"
_CHANGING = (
    f"{_LAST_LAYER}.self_attn.o_proj",
    f"{_LAST_LAYER}.post_attention",
    f"{_LAST_LAYER}.mlp",
    "model.norm",
    "lm_head",
)


def view_of(kind: str) -> Optional[str]:
    """The --view of a receiver whose engine has this kind of model; None: the trainer's own tensors."""
    recipe = _recipe(kind)
    if recipe is None:
        return None
    if oracle.is_transposed(recipe):  # it takes the experts alone
        return recipe
    return ",".join([recipe, *(f"except={pattern}" for pattern in _NOT_QUANTISED)])


def _recipe(kind: str) -> Optional[str]:
    config = CONFIGS[kind].get("quantization_config")
    return None if config is None else _RECIPES[config["quant_method"]]


class _Stored(NamedTuple):
    """A tensor of a checkpoint. torch of the system has no type for F8."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes


def _stored(kind: str, weights: dict[str, torch.Tensor]) -> dict[str, _Stored]:
    """The checkpoint's tensors for a trainer's weights. The numpy definition of the recipe does the quantisation."""
    found = {}
    recipe = _recipe(kind)
    for name, tensor in weights.items():
        if tensor.dtype is torch.float32:
            found[name] = _Stored(DType.F32, tuple(tensor.shape), tensor.numpy().tobytes())
            continue
        bits = tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
        excluded = any(fnmatch.fnmatchcase(name, pattern) for pattern in _NOT_QUANTISED)
        turned = recipe is not None and oracle.is_transposed(recipe)
        if recipe is None or tensor.dim() != (3 if turned else 2) or excluded:
            found[name] = _Stored(DType.BF16, tuple(tensor.shape), bits.tobytes())
            continue
        if turned:
            made = oracle.quantise(recipe, bits)
            experts, rows, columns = tensor.shape
            shape = (experts, columns, rows // 32)
            found[f"{name}_blocks"] = _Stored(DType.U8, (*shape, 16), made["codes"].tobytes())
            found[f"{name}_scales"] = _Stored(DType.U8, shape, made["scales"].tobytes())
            continue
        made = oracle.quantise(recipe, bits[None])
        rows, columns = tensor.shape
        if recipe.startswith("int4"):
            stem = name.removesuffix("weight")
            extents = np.array([rows, columns], np.int32).tobytes()
            packed, scales = made["codes"].tobytes(), made["scales"].tobytes()
            found[f"{stem}weight_packed"] = _Stored(DType.I32, (rows, columns // 8), packed)
            found[f"{stem}weight_scale"] = _Stored(DType.BF16, (rows, columns // 128), scales)
            found[f"{stem}weight_shape"] = _Stored(DType.I32, (2,), extents)
            continue
        rows, columns = -(-rows // 128), -(-columns // 128)
        found[name] = _Stored(DType.F8_E4M3, tuple(tensor.shape), made["codes"].tobytes())
        found[f"{name}_scale_inv"] = _Stored(DType.F32, (rows, columns), made["scales"].tobytes())
    return found


def write_config(folder: str, kind: str) -> None:
    """Writes a model folder without weights for an engine; weights come from the trainer."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(CONFIGS[kind], file)


def write_tokenizer(folder: str) -> None:
    """Writes a tokenizer with one word for each token."""
    words = {token_text(token): token for token in range(int(_COMMON["vocab_size"]))}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": token_text(0)},
    }
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump(tokenizer, file)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": token_text(2)}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump(settings, file)


def token_text(token: int) -> str:
    """The token's word. All words have one length, so no word is the beginning of another."""
    return f"t{token:04d}"


def version_weights(kind: str, version: int) -> dict[str, torch.Tensor]:
    """The weights of version 0 or 1, by the names of a checkpoint."""
    weights = {}
    for number, (name, shape) in enumerate(shapes_of(CONFIGS[kind])):
        changes = name.startswith(_CHANGING)
        random = torch.Generator().manual_seed(2 * number + (version if changes else 0))
        noise = torch.randn(shape, generator=random)
        # Norms around 1, matrices that keep the size of what goes through them.
        gain = 1.0 if name.endswith(("o_proj.weight", "down_proj.weight")) else 3.0
        value = noise / 4 if len(shape) == 1 else gain * noise / shape[1] ** 0.5
        if name.endswith("norm.weight"):
            value[1:] += 1.0
            value[0] = 1.0
        if name == "model.embed_tokens.weight":
            value[:, 0] = _LARGE
        if name == "lm_head.weight":
            value[:, 0] = 0.0
            value[NEXT_TOKEN, 0] = _LIKING
        weights[name] = value.to(_type_of(name))
    return weights


def trained_weights(kind: str, step: int) -> dict[str, torch.Tensor]:
    """The weights of step 0, or of a later step: each step changes CHANGED_SHARE of the elements of every tensor, at
    least one."""
    weights = {}
    growth = 1.0 if view_of(kind) is None else 1.25  # so that scales change
    for number, (name, shape) in enumerate(shapes_of(CONFIGS[kind])):
        random = torch.Generator().manual_seed(number)
        noise = torch.randn(shape, generator=random)
        value = noise / 4 + 1 if len(shape) == 1 else noise * (2 / shape[1] ** 0.5)
        for place in range(step):
            changed = torch.rand(shape, generator=random) < CHANGED_SHARE
            changed.view(-1)[place] = True  # of small tensors, too
            value = torch.where(changed, -value * growth, value)
        weights[name] = value.to(_type_of(name))
    return weights


def _type_of(name: str) -> torch.dtype:
    return torch.float32 if name.endswith(("e_score_correction_bias", "router_bias")) else torch.bfloat16


def write_checkpoint(folder: str, kind: str, weights: dict[str, torch.Tensor]) -> None:
    """Writes a model folder that engines load from disk.

    Args:
      weights: a trainer's.
    """
    write_config(folder, kind)
    write_tokenizer(folder)
    stored = _stored(kind, weights)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, data) in stored.items():
        header[name] = {"dtype": dtype.name, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in stored.values():
            file.write(tensor.data)
