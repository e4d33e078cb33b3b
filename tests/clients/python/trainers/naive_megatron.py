"""A Megatron trainer's parameters, cut from a checkpoint in the plainest way: whole tensors are joined as one rank of
Megatron would have them, then cut. It shares nothing with dws.declare.

Configurations have the numbers that the models' public config.json have.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterator, Mapping

import torch

Config = Mapping[str, Any]
Tensors = dict[str, torch.Tensor]


def _dense(
    family: str, layers: int, hidden: int, heads: int, kv: int, wide: int, words: int, **more: Any
) -> Config:
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": wide,
        "vocab_size": words,
        "tie_word_embeddings": False,
        **more,
    }


def _latent(family: str, heads: int, experts: int, dense: int, words: int) -> Config:
    return _dense(
        family,
        61,
        7168,
        heads,
        heads,
        18432,
        words,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=experts,
        n_shared_experts=1,
        moe_intermediate_size=2048,
        first_k_dense_replace=dense,
    )


def _glm(layers: int, hidden: int, wide: int, experts: int, expert: int, dense: int) -> Config:
    return _dense(
        "glm4_moe",
        layers,
        hidden,
        96,
        8,
        wide,
        151552,
        head_dim=128,
        n_routed_experts=experts,
        n_shared_experts=1,
        moe_intermediate_size=expert,
        first_k_dense_replace=dense,
    )


_QWEN3_MOE = {"head_dim": 128, "num_experts": 128}
MODELS: dict[str, Config] = {
    "llama-3-8b": _dense("llama", 32, 4096, 32, 8, 14336, 128256),
    "llama-3-70b": _dense("llama", 80, 8192, 64, 8, 28672, 128256),
    "qwen2-0.5b": _dense("qwen2", 24, 896, 14, 2, 4864, 151936, tie_word_embeddings=True),
    "qwen2-7b": _dense("qwen2", 28, 3584, 28, 4, 18944, 152064),
    "qwen3-0.6b": _dense(
        "qwen3", 28, 1024, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True
    ),
    "qwen3-8b": _dense("qwen3", 36, 4096, 32, 8, 12288, 151936, head_dim=128),
    "qwen3-30b-a3b": _dense(
        "qwen3_moe", 48, 2048, 32, 4, 6144, 151936, **_QWEN3_MOE, moe_intermediate_size=768
    ),
    "qwen3-235b-a22b": _dense(
        "qwen3_moe", 94, 4096, 64, 4, 12288, 151936, **_QWEN3_MOE, moe_intermediate_size=1536
    ),
    "glm-4.5": _glm(92, 5120, 12288, 160, 1536, 3),
    "glm-4.5-air": _glm(46, 4096, 10944, 128, 1408, 1),
    "deepseek-v3": _latent("deepseek_v3", 128, 256, 3, 129280),
    "kimi-k2": _latent("kimi_k2", 64, 384, 1, 163840),
    "gpt-oss-20b": _dense(
        "gpt_oss", 24, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=32
    ),
    "gpt-oss-120b": _dense(
        "gpt_oss", 36, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=128
    ),
}
_SMALLER = {
    "num_hidden_layers": 4,
    "hidden_size": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "intermediate_size": 16,
    "vocab_size": 37,  # nothing divides it
    "q_lora_rank": 4,
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 1,
}


def smaller(config: Config) -> Config:
    """The same structure with a few elements; heads of latent attention are all key-value heads."""
    found = {name: _SMALLER.get(name, value) for name, value in config.items()}
    if "kv_lora_rank" in found:
        found["num_key_value_heads"] = found["num_attention_heads"]
    return found


@dataclasses.dataclass(frozen=True)
class Place:
    """A rank of a trainer: tp changes fastest, then dp, then pp; experts are over the ranks of tp and dp.

    Attributes:
      repeat_heads: with more ranks than key-value heads, each has a copy of its own; else qkv is just cut.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    rank: int = 0
    repeat_heads: bool = False

    def __post_init__(self) -> None:
        assert self.tp * self.dp % (self.ep * self.etp) == 0, self

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp

    @property
    def pp_rank(self) -> int:
        return self.rank // (self.tp * self.dp)

    @property
    def etp_rank(self) -> int:
        return self.rank % self.etp

    @property
    def ep_rank(self) -> int:
        return self.rank % (self.tp * self.dp) // self.etp % self.ep

    def ranks(self) -> list[Place]:
        return [dataclasses.replace(self, rank=rank) for rank in range(self.tp * self.pp * self.dp)]


def checkpoint_shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Without layers of multi-token prediction."""
    family, hidden = config["model_type"], config["hidden_size"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim", hidden // heads)
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        attention = f"{at}.self_attn"
        if "kv_lora_rank" in config:
            q, latent = config["q_lora_rank"], config["kv_lora_rank"]
            nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
            yield f"{attention}.q_a_proj.weight", (q, hidden)
            yield f"{attention}.q_a_layernorm.weight", (q,)
            yield f"{attention}.q_b_proj.weight", (heads * (nope + rope), q)
            yield f"{attention}.kv_a_proj_with_mqa.weight", (latent + rope, hidden)
            yield f"{attention}.kv_a_layernorm.weight", (latent,)
            yield f"{attention}.kv_b_proj.weight", (heads * (nope + config["v_head_dim"]), latent)
            yield f"{attention}.o_proj.weight", (hidden, heads * config["v_head_dim"])
        else:
            for name, rows in (("q", heads * size), ("k", kv * size), ("v", kv * size)):
                yield f"{attention}.{name}_proj.weight", (rows, hidden)
                if family in ("qwen2", "glm4_moe", "gpt_oss"):
                    yield f"{attention}.{name}_proj.bias", (rows,)
            yield f"{attention}.o_proj.weight", (hidden, heads * size)
            if family in ("qwen3", "qwen3_moe") or (family == "glm4_moe" and hidden != 4096):
                yield f"{attention}.q_norm.weight", (size,)
                yield f"{attention}.k_norm.weight", (size,)
            if family == "gpt_oss":
                yield f"{attention}.o_proj.bias", (hidden,)
                yield f"{attention}.sinks", (heads,)
        yield from _feed_forward_shapes(config, layer, f"{at}.mlp")


def _feed_forward_shapes(
    config: Config, layer: int, at: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = config["hidden_size"]

    def matrices(module: str, rows: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{module}.gate_proj.weight", (rows, hidden)
        yield f"{module}.up_proj.weight", (rows, hidden)
        yield f"{module}.down_proj.weight", (hidden, rows)

    if config["model_type"] == "gpt_oss":
        experts, wide = config["num_local_experts"], config["intermediate_size"]
        yield f"{at}.router.weight", (experts, hidden)
        yield f"{at}.router.bias", (experts,)
        yield f"{at}.experts.gate_up_proj", (experts, hidden, 2 * wide)
        yield f"{at}.experts.gate_up_proj_bias", (experts, 2 * wide)
        yield f"{at}.experts.down_proj", (experts, wide, hidden)
        yield f"{at}.experts.down_proj_bias", (experts, hidden)
        return
    experts = config.get("n_routed_experts", config.get("num_experts", 0))
    if not experts or layer < config.get("first_k_dense_replace", 0):
        yield from matrices(at, config["intermediate_size"])
        return
    yield f"{at}.gate.weight", (experts, hidden)
    for expert in range(experts):
        yield from matrices(f"{at}.experts.{expert}", config["moe_intermediate_size"])
    if "n_shared_experts" in config:
        yield f"{at}.gate.e_score_correction_bias", (experts,)
        wide = config["n_shared_experts"] * config["moe_intermediate_size"]
        yield from matrices(f"{at}.shared_experts", wide)


def parameters(config: Config, whole: Tensors, place: Place, grouped: bool = True) -> Tensors:
    """The tensors of a rank. Layers are numbered from its first.

    Args:
      grouped: whether experts, norms and words are as with Transformer Engine.
    """
    found: Tensors = {}
    layers = config["num_hidden_layers"] // place.pp
    if place.pp_rank == 0:
        words = whole["model.embed_tokens.weight"]
        found["embedding.word_embeddings.weight"] = _words(words, place)
    if place.pp_rank == place.pp - 1:
        found["decoder.final_layernorm.weight"] = whole["model.norm.weight"]
        if not config["tie_word_embeddings"]:
            found["output_layer.weight"] = _words(whole["lm_head.weight"], place)
        elif place.pp > 1:
            found["output_layer.weight"] = _words(whole["model.embed_tokens.weight"], place)
    own: dict[int, Tensors] = {local: {} for local in range(layers)}
    for name, each in whole.items():
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        local = int(match[1]) - place.pp_rank * layers if match else -1
        if match and local in own:
            own[local][match[2]] = each
    for local, layer in own.items():
        for name, each in _layer(config, layer, place, grouped):
            found[f"decoder.layers.{local}.{name}"] = each
    return found


def _words(words: torch.Tensor, place: Place) -> torch.Tensor:
    padding = -len(words) % (8 * place.tp)
    padded = torch.cat([words, words.new_full((padding, words.shape[1]), -7)])
    return padded.chunk(place.tp)[place.tp_rank]


def _layer(
    config: Config, layer: Tensors, place: Place, grouped: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    latent, dense = "kv_lora_rank" in config, "mlp.gate_proj.weight" in layer
    qkv_norm = "self_attention.linear_qkv.layer_norm_weight"
    yield qkv_norm if grouped and not latent else "input_layernorm.weight", layer.pop(
        "input_layernorm.weight"
    )
    mlp_norm = (
        "mlp.linear_fc1.layer_norm_weight" if grouped and dense else "pre_mlp_layernorm.weight"
    )
    yield mlp_norm, layer.pop("post_attention_layernorm.weight")
    attention = {
        name[len("self_attn.") :]: layer.pop(name)
        for name in list(layer)
        if name.startswith("self_attn.")
    }
    for name, each in (_latent_attention if latent else _grouped_attention)(
        config, attention, place, grouped
    ):
        yield f"self_attention.{name}", each
    assert not attention, list(attention)
    for name, each in _feed_forward(config, layer, place, grouped):
        yield f"mlp.{name}", each
    assert not layer, list(layer)


def _grouped_attention(
    config: Config, attention: Tensors, place: Place, grouped: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    for what in ("weight", "bias"):
        if f"q_proj.{what}" not in attention:
            continue
        q, k, v = (attention.pop(f"{each}_proj.{what}") for each in "qkv")
        size, inner = len(q) // heads, q.shape[1:]
        groups = max(kv, place.tp) if place.repeat_heads else kv
        times = groups // kv
        parts = [q.reshape(groups, heads // groups * size, *inner)]
        for each in (k, v):
            copies = each.reshape(kv, 1, size, *inner).expand(kv, times, size, *inner)
            parts.append(copies.reshape(groups, size, *inner))
        qkv = torch.cat(parts, 1).reshape(-1, *inner)
        yield f"linear_qkv.{what}", qkv.chunk(place.tp)[place.tp_rank]
    yield "linear_proj.weight", attention.pop("o_proj.weight").chunk(place.tp, 1)[place.tp_rank]
    if "o_proj.bias" in attention:
        yield "linear_proj.bias", attention.pop("o_proj.bias")
        sinks = attention.pop("sinks").chunk(place.tp)[place.tp_rank]
        yield "core_attention.softmax_offset", sinks
    for each in "qk":
        if f"{each}_norm.weight" in attention:
            yield f"{each}_layernorm.weight", attention.pop(f"{each}_norm.weight")


def _latent_attention(
    config: Config, attention: Tensors, place: Place, grouped: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    del config
    for canonical, name in (("q", "q"), ("kv", "kv")):
        norm = attention.pop(f"{canonical}_a_layernorm.weight")
        yield (
            f"linear_{name}_up_proj.layer_norm_weight" if grouped else f"{name}_layernorm.weight"
        ), norm
        up = attention.pop(f"{canonical}_b_proj.weight")
        yield f"linear_{name}_up_proj.weight", up.chunk(place.tp)[place.tp_rank]
        down = attention.pop("q_a_proj.weight" if canonical == "q" else "kv_a_proj_with_mqa.weight")
        # Without Transformer Engine it is parallel too, where the ranks divide it.
        if not grouped and len(down) % place.tp == 0:
            down = down.chunk(place.tp)[place.tp_rank]
        yield f"linear_{name}_down_proj.weight", down
    yield "linear_proj.weight", attention.pop("o_proj.weight").chunk(place.tp, 1)[place.tp_rank]


def _feed_forward(
    config: Config, layer: Tensors, place: Place, grouped: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    def gate_up(module: str, ranks: int, rank: int) -> torch.Tensor:
        sides = [layer.pop(f"{module}.{side}_proj.weight") for side in ("gate", "up")]
        return torch.cat([side.chunk(ranks)[rank] for side in sides])

    def down(module: str, ranks: int, rank: int) -> torch.Tensor:
        return layer.pop(f"{module}.down_proj.weight").chunk(ranks, 1)[rank]

    def expert(fc: int, number: int, what: str = "weight") -> str:
        if grouped:
            return f"experts.linear_fc{fc}.{what}{number}"
        return f"experts.local_experts.{number}.linear_fc{fc}.{what}"

    if "mlp.gate_proj.weight" in layer:
        yield "linear_fc1.weight", gate_up("mlp", place.tp, place.tp_rank)
        yield "linear_fc2.weight", down("mlp", place.tp, place.tp_rank)
        return
    if config["model_type"] == "gpt_oss":
        yield from _stacked_experts(layer, place, expert)
        return
    yield "router.weight", layer.pop("mlp.gate.weight")
    if "mlp.gate.e_score_correction_bias" in layer:
        yield "router.expert_bias", layer.pop("mlp.gate.e_score_correction_bias")
        yield "shared_experts.linear_fc1.weight", gate_up(
            "mlp.shared_experts", place.tp, place.tp_rank
        )
        yield "shared_experts.linear_fc2.weight", down(
            "mlp.shared_experts", place.tp, place.tp_rank
        )
    experts = config.get("n_routed_experts", config.get("num_experts", 0))
    for number in range(experts):
        module = f"mlp.experts.{number}"
        if number * place.ep // experts == place.ep_rank:
            own = number % (experts // place.ep)
            yield expert(1, own), gate_up(module, place.etp, place.etp_rank)
            yield expert(2, own), down(module, place.etp, place.etp_rank)
        for matrix in ("gate", "up", "down"):
            layer.pop(f"{module}.{matrix}_proj.weight", None)


def _stacked_experts(layer: Tensors, place: Place, name: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield "router.weight", layer.pop("mlp.router.weight")
    yield "router.bias", layer.pop("mlp.router.bias")
    stacks = {
        what: layer.pop(f"mlp.experts.{what}")
        for what in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
    }
    each = len(stacks["down_proj"]) // place.ep
    for own in range(each):
        expert = place.ep_rank * each + own
        for what, suffix in (("weight", ""), ("bias", "_bias")):
            gate_up = stacks[f"gate_up_proj{suffix}"][expert]
            if not suffix:
                gate_up = gate_up.T
            sides = (gate_up[0::2], gate_up[1::2])
            yield name(1, own, what), torch.cat(
                [side.chunk(place.etp)[place.etp_rank] for side in sides]
            )
        down = stacks["down_proj"][expert].T
        yield name(2, own), down.chunk(place.etp, 1)[place.etp_rank]
        yield name(2, own, "bias"), stacks["down_proj_bias"][expert]
