"""The numbers of a model's Hugging Face config.json, and the shapes of its tensors. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Optional

from dws.errors import LayoutError

# model_type.
FAMILIES = (
    "deepseek_v3",
    "glm4_moe",
    "gpt_oss",
    "kimi_k2",
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
)


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """Attributes:
    experts: 0 if all layers are dense.
    latent: whether keys and values are compressed (multi-head latent attention); `q_rank`, `kv_rank`, `nope`, `rope`
      and `value` are then the sizes of its parts, and `head_dim` has no meaning.
    """

    family: str
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    tied: bool
    experts: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    latent: bool = False
    q_rank: Optional[int] = None
    kv_rank: int = 0
    nope: int = 0
    rope: int = 0
    value: int = 0

    @property
    def stacked(self) -> bool:
        """Returns whether the checkpoint has all experts of a layer in one tensor, each matrix
        transposed, with columns of gate and up in turn."""
        return self.family == "gpt_oss"

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """Args:
          config: a mapping, as of config.json, or an object with its attributes, as of transformers.

        Raises:
          LayoutError: a family that is not in FAMILIES, or a number is missing.
        """
        read = _Config(config)
        family = read.optional("model_type")
        if family not in FAMILIES:
            raise LayoutError(
                f"model_type {family!r}: expected one of {', '.join(FAMILIES)}, whose tensors dws.declare knows"
            )
        heads, hidden = read.number("num_attention_heads"), read.number("hidden_size")
        kv_heads = read.first("num_key_value_heads") or heads
        if heads % kv_heads:
            raise LayoutError(f"{kv_heads} key-value heads do not divide the {heads} query heads")
        experts = read.first("n_routed_experts", "num_experts", "num_local_experts")
        # gpt_oss has no dense layer, and its experts' size under the name of theirs.
        wide = read.first("moe_intermediate_size", "intermediate_size") if experts else 0
        latent = family in ("deepseek_v3", "kimi_k2")
        return cls(
            family=str(family),
            layers=read.number("num_hidden_layers"),
            hidden=hidden,
            vocabulary=read.number("vocab_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=read.first("head_dim") or hidden // heads,
            intermediate=read.number("intermediate_size"),
            tied=bool(read.optional("tie_word_embeddings")),
            experts=experts,
            expert_intermediate=wide,
            shared_intermediate=read.first("n_shared_experts") * wide,
            latent=latent,
            q_rank=(read.first("q_lora_rank") or None) if latent else None,
            kv_rank=read.number("kv_lora_rank") if latent else 0,
            nope=read.number("qk_nope_head_dim") if latent else 0,
            rope=read.number("qk_rope_head_dim") if latent else 0,
            value=read.number("v_head_dim") if latent else 0,
        )

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of a layer's tensors, dense and with experts, by their names in
        model.layers.N; {} is an expert's number."""
        hidden = self.hidden
        found: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            **(self._latent_attention() if self.latent else self._grouped_attention()),
            **self._feed_forward("mlp", self.intermediate),
            **self._feed_forward("mlp.shared_experts", self.shared_intermediate),
        }
        if self.stacked:
            wide, count = self.expert_intermediate, self.experts
            found["mlp.router.weight"] = (count, hidden)
            found["mlp.router.bias"] = (count,)
            found["mlp.experts.gate_up_proj"] = (count, hidden, 2 * wide)
            found["mlp.experts.gate_up_proj_bias"] = (count, 2 * wide)
            found["mlp.experts.down_proj"] = (count, wide, hidden)
            found["mlp.experts.down_proj_bias"] = (count, hidden)
        else:
            found["mlp.gate.weight"] = (self.experts, hidden)
            found["mlp.gate.e_score_correction_bias"] = (self.experts,)
            found.update(self._feed_forward("mlp.experts.{}", self.expert_intermediate))
        return found

    def missing(self, names: Iterable[str]) -> list[str]:
        """Every such model has certain tensors in every layer, and others in layers with experts.
        Returns those that are not in `names`: then the processes of a trainer state their places
        wrongly."""
        have, wanted = set(names), {"model.embed_tokens.weight", "model.norm.weight"}
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            wanted |= {f"{at}.input_layernorm.weight", f"{at}.self_attn.o_proj.weight"}
            if self.experts and not self.stacked and f"{at}.mlp.gate.weight" in have:
                for expert in range(self.experts):
                    wanted.add(f"{at}.mlp.experts.{expert}.gate_proj.weight")
                    wanted.add(f"{at}.mlp.experts.{expert}.down_proj.weight")
        return sorted(wanted - have)

    def _grouped_attention(self) -> dict[str, tuple[int, ...]]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {
            "self_attn.q_norm.weight": (self.head_dim,),
            "self_attn.k_norm.weight": (self.head_dim,),
            "self_attn.o_proj.weight": (self.hidden, q),
            "self_attn.o_proj.bias": (self.hidden,),
            "self_attn.sinks": (self.heads,),
        }
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            found[f"self_attn.{name}_proj.weight"] = (rows, self.hidden)
            found[f"self_attn.{name}_proj.bias"] = (rows,)
        return found

    def _latent_attention(self) -> dict[str, tuple[int, ...]]:
        hidden, q = self.hidden, self.heads * (self.nope + self.rope)
        found: dict[str, tuple[int, ...]] = {
            "self_attn.kv_a_proj_with_mqa.weight": (self.kv_rank + self.rope, hidden),
            "self_attn.kv_a_layernorm.weight": (self.kv_rank,),
            "self_attn.kv_b_proj.weight": (self.heads * (self.nope + self.value), self.kv_rank),
            "self_attn.o_proj.weight": (hidden, self.heads * self.value),
        }
        if self.q_rank is None:
            return {**found, "self_attn.q_proj.weight": (q, hidden)}
        return {
            **found,
            "self_attn.q_a_proj.weight": (self.q_rank, hidden),
            "self_attn.q_a_layernorm.weight": (self.q_rank,),
            "self_attn.q_b_proj.weight": (q, self.q_rank),
        }

    def _feed_forward(self, module: str, rows: int) -> dict[str, tuple[int, ...]]:
        return {
            f"{module}.gate_proj.weight": (rows, self.hidden),
            f"{module}.up_proj.weight": (rows, self.hidden),
            f"{module}.down_proj.weight": (self.hidden, rows),
        }


class _Config:
    def __init__(self, config: Any) -> None:
        self._config = config

    def optional(self, name: str) -> Any:
        if hasattr(self._config, "keys"):
            return self._config.get(name)
        return getattr(self._config, name, None)

    def first(self, *names: str) -> int:
        """Returns the first of them that it has; 0 if it has none."""
        return next((int(found) for found in map(self.optional, names) if found is not None), 0)

    def number(self, name: str) -> int:
        """Raises LayoutError if there is none."""
        found = self.optional(name)
        if found is None:
            raise LayoutError(
                f"the config has no '{name}': pass that of the Hugging Face checkpoint"
            )
        return int(found)
