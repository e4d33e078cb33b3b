"""Published models by shape: the tensors of their checkpoints, and how tensor and expert parallelism cut each.

Layers for multi-token prediction are left out.
"""

from __future__ import annotations

import dataclasses
from typing import Iterator, Optional


@dataclasses.dataclass(frozen=True)
class Model:
    """A public configuration.

    Attributes:
      intermediate: of the `dense_layers` at the beginning; all others have experts.
      q_rank: of multi-head latent attention; 0 is grouped-query attention, without the four below.
    """

    name: str
    published_parameters: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    experts: int
    expert_intermediate: int
    head_dim: int = 128
    intermediate: int = 0
    dense_layers: int = 0
    shared_experts: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False
    q_rank: int = 0
    kv_rank: int = 512
    rope_dim: int = 64
    value_dim: int = 128


DEEPSEEK_V3 = Model(
    "DeepSeek-V3", 671e9, layers=61, hidden=7168, heads=128, kv_heads=128, vocabulary=129280, experts=256,
    expert_intermediate=2048, intermediate=18432, dense_layers=3, shared_experts=1, q_rank=1536,
)
KIMI_K2 = dataclasses.replace(
    DEEPSEEK_V3, name="Kimi-K2", published_parameters=1.03e12, heads=64, kv_heads=64, vocabulary=163840,
    experts=384, dense_layers=1,
)
GLM_4_5 = Model(
    "GLM-4.5", 355e9, layers=92, hidden=5120, heads=96, kv_heads=8, vocabulary=151552, experts=160,
    expert_intermediate=1536, intermediate=12288, dense_layers=3, shared_experts=1, qkv_bias=True, qk_norm=True,
)
QWEN3_30B = Model(
    "Qwen3-30B-A3B", 30.5e9, layers=48, hidden=2048, heads=32, kv_heads=4, vocabulary=151936, experts=128,
    expert_intermediate=768, qk_norm=True,
)


@dataclasses.dataclass(frozen=True)
class Weight:
    """A tensor of the checkpoint.

    Attributes:
      layer: whose pipeline stage has it.
      cut: the dimension that tensor parallelism cuts; None: each rank has all of it.
      words: whether its rows are words, whose number is padded before they are cut.
      kv_heads: of a key or value projection, how many heads its rows are; 0 for others.
      expert: that it is part of, whole; None: of none.
    """

    name: str
    shape: tuple[int, ...]
    layer: int
    cut: Optional[int] = None
    words: bool = False
    kv_heads: int = 0
    expert: Optional[int] = None
    dtype: str = "BF16"


def weights_of(model: Model) -> Iterator[Weight]:
    words = (model.vocabulary, model.hidden)
    yield Weight("model.embed_tokens.weight", words, 0, cut=0, words=True)
    for layer in range(model.layers):
        head = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield Weight(f"{head}{norm}.weight", (model.hidden,), layer)
        attention = _latent_attention if model.q_rank else _grouped_attention
        yield from attention(model, head + "self_attn.", layer)
        if layer < model.dense_layers:
            yield from _feed_forward(head + "mlp.", model.hidden, model.intermediate, layer)
        else:
            yield from _experts(model, head + "mlp.", layer)
    yield Weight("model.norm.weight", (model.hidden,), model.layers - 1)
    yield Weight("lm_head.weight", words, model.layers - 1, cut=0, words=True)


def _grouped_attention(model: Model, head: str, layer: int) -> Iterator[Weight]:
    query = model.heads * model.head_dim
    for name, heads, kv_heads in (
        ("q_proj", model.heads, 0),
        ("k_proj", model.kv_heads, model.kv_heads),
        ("v_proj", model.kv_heads, model.kv_heads),
    ):
        rows = heads * model.head_dim
        yield Weight(f"{head}{name}.weight", (rows, model.hidden), layer, cut=0, kv_heads=kv_heads)
        if model.qkv_bias:
            yield Weight(f"{head}{name}.bias", (rows,), layer, cut=0, kv_heads=kv_heads)
    if model.qk_norm:
        for norm in ("q_norm", "k_norm"):
            yield Weight(f"{head}{norm}.weight", (model.head_dim,), layer)
    yield Weight(head + "o_proj.weight", (model.hidden, query), layer, cut=1)


def _latent_attention(model: Model, head: str, layer: int) -> Iterator[Weight]:
    latent = model.kv_rank + model.rope_dim
    yield Weight(head + "q_a_proj.weight", (model.q_rank, model.hidden), layer)
    yield Weight(head + "kv_a_proj_with_mqa.weight", (latent, model.hidden), layer)
    yield Weight(head + "q_a_layernorm.weight", (model.q_rank,), layer)
    yield Weight(head + "kv_a_layernorm.weight", (model.kv_rank,), layer)
    query = model.heads * (model.head_dim + model.rope_dim)
    yield Weight(head + "q_b_proj.weight", (query, model.q_rank), layer, cut=0)
    keys = model.heads * (model.head_dim + model.value_dim)
    yield Weight(head + "kv_b_proj.weight", (keys, model.kv_rank), layer, cut=0)
    yield Weight(head + "o_proj.weight", (model.hidden, model.heads * model.value_dim), layer, cut=1)


def _feed_forward(
    head: str, hidden: int, wide: int, layer: int, expert: Optional[int] = None
) -> Iterator[Weight]:
    for name in ("gate_proj", "up_proj"):
        yield Weight(f"{head}{name}.weight", (wide, hidden), layer, cut=0, expert=expert)
    yield Weight(f"{head}down_proj.weight", (hidden, wide), layer, cut=1, expert=expert)


def _experts(model: Model, head: str, layer: int) -> Iterator[Weight]:
    yield Weight(head + "gate.weight", (model.experts, model.hidden), layer)
    for expert in range(model.experts):
        yield from _feed_forward(
            f"{head}experts.{expert}.", model.hidden, model.expert_intermediate, layer, expert
        )
    if model.shared_experts:
        bias = head + "gate.e_score_correction_bias"
        yield Weight(bias, (model.experts,), layer, dtype="F32")
        wide = model.shared_experts * model.expert_intermediate
        yield from _feed_forward(head + "shared_experts.", model.hidden, wide, layer)
