"""The names and shapes of the tensors that a model of the check has in its checkpoint, from its config. Pure."""

from __future__ import annotations

from typing import Any, Iterator

_Shapes = Iterator[tuple[str, tuple[int, ...]]]


def shapes_of(config: dict[str, Any]) -> _Shapes:
    """Each tensor of the checkpoint."""
    hidden, vocab = int(config["hidden_size"]), int(config["vocab_size"])
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(int(config["num_hidden_layers"])):
        at = f"model.layers.{layer}"
        attention = _latent_attention if "kv_lora_rank" in config else _attention
        yield from attention(f"{at}.self_attn", config)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{norm}.weight", (hidden,)
        experts = _EXPERTS.get(config["model_type"])
        if experts is not None:
            yield from experts(at, config)
            continue
        dense = layer < int(config.get("first_k_dense_replace", 0))
        yield from _mlp(f"{at}.mlp", {**config, "n_routed_experts": 0} if dense else config)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def _attention(at: str, config: dict[str, Any]) -> _Shapes:
    hidden, dim = int(config["hidden_size"]), int(config["head_dim"])
    query, key_value = (
        int(config[k]) * dim for k in ("num_attention_heads", "num_key_value_heads")
    )
    for letter, rows in (("q", query), ("k", key_value), ("v", key_value)):
        yield f"{at}.{letter}_proj.weight", (rows, hidden)
        if config["model_type"] in ("qwen2", "gpt_oss"):
            yield f"{at}.{letter}_proj.bias", (rows,)
    yield f"{at}.o_proj.weight", (hidden, query)
    if config["model_type"] == "gpt_oss":
        yield f"{at}.o_proj.bias", (hidden,)
        yield f"{at}.sinks", (int(config["num_attention_heads"]),)
    if config["model_type"].startswith("qwen3") or config.get("use_qk_norm"):
        for letter in "qk":
            yield f"{at}.{letter}_norm.weight", (dim,)
    if config.get("use_head_wise_attn_gate"):
        yield f"{at}.g_proj.weight", (int(config["num_attention_heads"]), hidden)


def _latent_attention(at: str, config: dict[str, Any]) -> _Shapes:
    hidden, heads, rank = (int(config[k]) for k in ("hidden_size", "num_attention_heads", "kv_lora_rank"))
    plain, turned, value = (int(config[k]) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    query = heads * (plain + turned)
    if config["q_lora_rank"] is None:
        yield f"{at}.q_proj.weight", (query, hidden)
    else:
        yield f"{at}.q_a_proj.weight", (config["q_lora_rank"], hidden)
        yield f"{at}.q_a_layernorm.weight", (config["q_lora_rank"],)
        yield f"{at}.q_b_proj.weight", (query, config["q_lora_rank"])
    yield f"{at}.kv_a_proj_with_mqa.weight", (rank + turned, hidden)
    yield f"{at}.kv_a_layernorm.weight", (rank,)
    yield f"{at}.kv_b_proj.weight", (heads * (plain + value), rank)
    yield f"{at}.o_proj.weight", (hidden, heads * value)


def _mlp(at: str, config: dict[str, Any]) -> _Shapes:
    hidden = int(config["hidden_size"])
    experts = int(config.get("num_experts") or config.get("n_routed_experts") or 0)
    middle = int(config["moe_intermediate_size" if experts else "intermediate_size"])
    if experts:
        yield f"{at}.gate.weight", (experts, hidden)
        if config["model_type"] == "glm4_moe":
            yield f"{at}.gate.e_score_correction_bias", (experts,)
    shared = [f"{at}.shared_experts"] if config.get("n_shared_experts") else []
    for one in [*(f"{at}.experts.{e}" for e in range(experts)), *shared] if experts else [at]:
        for letter in ("gate", "up"):
            yield f"{one}.{letter}_proj.weight", (middle, hidden)
        yield f"{one}.down_proj.weight", (hidden, middle)


def _gpt_oss_experts(at: str, config: dict[str, Any]) -> _Shapes:
    hidden, middle, experts = (int(config[k]) for k in ("hidden_size", "intermediate_size", "num_local_experts"))
    yield f"{at}.mlp.router.weight", (experts, hidden)
    yield f"{at}.mlp.router.bias", (experts,)
    yield f"{at}.mlp.experts.gate_up_proj", (experts, hidden, 2 * middle)
    yield f"{at}.mlp.experts.gate_up_proj_bias", (experts, 2 * middle)
    yield f"{at}.mlp.experts.down_proj", (experts, middle, hidden)
    yield f"{at}.mlp.experts.down_proj_bias", (experts, hidden)


def _step_experts(at: str, config: dict[str, Any]) -> _Shapes:
    hidden, middle, experts = (int(config[k]) for k in ("hidden_size", "moe_intermediate_size", "moe_num_experts"))
    yield f"{at}.moe.gate.weight", (experts, hidden)
    yield f"{at}.moe.router_bias", (experts,)
    for letter in ("gate", "up"):
        yield f"{at}.moe.{letter}_proj.weight", (experts, middle, hidden)
    yield f"{at}.moe.down_proj.weight", (experts, hidden, middle)
    yield from _mlp(f"{at}.share_expert", {"hidden_size": hidden, "intermediate_size": config["share_expert_dim"]})


def _minimax_experts(at: str, config: dict[str, Any]) -> _Shapes:
    hidden, middle, experts = (int(config[k]) for k in ("hidden_size", "intermediate_size", "num_local_experts"))
    yield f"{at}.block_sparse_moe.gate.weight", (experts, hidden)
    yield f"{at}.block_sparse_moe.e_score_correction_bias", (experts,)
    for expert in range(experts):
        for number in (1, 3):
            yield f"{at}.block_sparse_moe.experts.{expert}.w{number}.weight", (middle, hidden)
        yield f"{at}.block_sparse_moe.experts.{expert}.w2.weight", (hidden, middle)


# By model_type, where experts have names of their own.
_EXPERTS = {"gpt_oss": _gpt_oss_experts, "step3p5": _step_experts, "minimax_m2": _minimax_experts}
