"""How the parameters of one rank of an inference engine are made of a checkpoint's tensors.

Canonical tensors are those of a Hugging Face checkpoint: q_proj, k_proj and v_proj apart, one tensor
for each expert. Engines fuse, stack and cut them; vLLM and SGLang do it the same way:

    checkpoint                              engine's parameter          cut on, by
    q_proj k_proj v_proj                    qkv_proj                    rows, heads; a KV head of several
                                                                        ranks is whole on each of them
    gate_proj up_proj                       gate_up_proj                rows
    o_proj down_proj                        the same                    columns; their biases are whole
    embed_tokens lm_head                    the same, rows padded       rows
    experts.N.gate_proj, .up_proj           experts.w13_weight          rows, or experts
    experts.N.down_proj                     experts.w2_weight           columns, or experts
    norms, routers, shared_expert_gate      the same                    whole on every rank

A parameter of another kind is refused by name: nothing is guessed. Pure: names and shapes only.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Callable, Optional, Sequence

from dws.errors import LayoutError
from dws.mapping import Fused, Mapped, Part, Parts, Slice, Source
from dws.plugins.canonical import (
    VOCAB_PADDING,
    Kind,
    ModelShape,
    Parallel,
    Shapes,
    even,
    kind_of,
    padded_rows,
    part_range,
)

# Tensors that engines register in addition to weights; no checkpoint has them.
_ENGINES_OWN = re.compile(
    r"\.(_[qkv]_scale|_prob_scale|[qkv]_scale|_?expert_map|expert_mask|cos_sin_cache|inv_freq)$"
)


def rank_mapping(
    shapes: Shapes, model: ModelShape, rank: Parallel, given: Optional[Mapped] = None
) -> dict[str, Source]:
    """The mapping= of dws.Engine.attach for one rank.

    Args:
      shapes: of the rank's live parameters, with their names in named_parameters().
      given: mappings that take precedence, or are for parameters unknown to this module.

    Returns:
      a Source for every name in `shapes`.

    Raises:
      LayoutError: a parameter of an unknown kind, or of another shape than follows from the model
        and the rank, by name.
    """
    mapping: dict[str, Source] = dict(given or {})
    for name in shapes:
        if name not in mapping:
            mapping[name] = parameter_source(name, shapes[name], model, rank)
    return mapping


def is_engines_own(name: str) -> bool:
    """Returns whether engines register it in addition to weights."""
    return bool(_ENGINES_OWN.search(name))


def parameter_source(name: str, shape: Sequence[int], model: ModelShape, rank: Parallel) -> Source:
    """What one parameter of a rank is made of. Raises as rank_mapping."""
    live = _Live(name, tuple(int(extent) for extent in shape), model, rank)
    build = next((make for pattern, make in _BUILDERS if re.search(pattern, name)), None)
    try:
        if build is not None:
            return build(live)
        if is_engines_own(name):
            return None
        if kind_of(name) in (Kind.WHOLE, Kind.ROW, Kind.VOCAB):
            return _plain(live)
        raise LayoutError(
            "of a kind this mapping does not know (quantised, or another architecture?): "
            "name its source in given=, or None for what only the engine uses"
        )
    except LayoutError as error:
        raise LayoutError(f"parameter '{name}' {list(shape)}: {error}") from None


@dataclasses.dataclass(frozen=True)
class _Live:
    name: str
    shape: tuple[int, ...]
    model: ModelShape
    rank: Parallel

    def sibling(self, fused: str, part: str) -> str:
        """The canonical name of the part: this name with `part` in place of `fused`."""
        head, _, tail = self.name.rpartition(fused)
        return f"{head}{part}{tail}"

    def slice(self, name: str, kind: Kind, extent: int) -> Slice:
        begin, end = part_range(kind, extent, self.model, self.rank)
        return Slice(name, kind.dim, begin, end)

    def expect(self, dim: int, extent: int, what: str) -> None:
        if len(self.shape) <= dim or self.shape[dim] != extent:
            raise LayoutError(f"expected {extent} on dimension {dim}, {what}")

    def expect_dimensions(self, count: int) -> None:
        if len(self.shape) != count:
            raise LayoutError(f"expected {count} dimensions")


def _plain(live: _Live) -> Source:
    kind = kind_of(live.name)
    name = live.name
    if kind is Kind.VOCAB:
        if live.model.tied and re.search(r"(^|\.)lm_head\.weight$", name):
            name = live.sibling("lm_head", "model.embed_tokens")
        return _vocab(live, name)
    if kind is Kind.ROW:
        live.expect_dimensions(2)
        return live.slice(name, Kind.ROW, live.shape[1] * live.rank.tp_size)
    return name


def _vocab(live: _Live, name: str) -> Source:
    begin, end = part_range(Kind.VOCAB, live.model.vocab, live.model, live.rank)
    live.expect(
        0,
        padded_rows(live.model.vocab, live.rank),
        f"the rank's part of {live.model.vocab} rows padded to a multiple of {VOCAB_PADDING}",
    )
    if begin == end:
        return None  # all padding
    return Parts([Part(Slice(name, 0, begin, end), [(0, end - begin)])])


def _qkv(live: _Live) -> Source:
    model = live.model
    parts = [
        live.slice(live.sibling("qkv_proj", "q_proj"), Kind.COLUMN, model.heads * model.head_dim)
    ]
    for part in ("k_proj", "v_proj"):
        rows = model.kv_heads * model.head_dim
        parts.append(live.slice(live.sibling("qkv_proj", part), Kind.KEY_VALUE, rows))
    even(model.heads, live.rank.tp_size, Kind.COLUMN)
    rows = sum(part.end - part.begin for part in parts)
    live.expect(0, rows, f"the rank's rows of {model.heads} heads and {model.kv_heads} KV heads")
    return Fused(parts)


def _gate_up(live: _Live) -> Source:
    rows = even(live.shape[0], 2, Kind.COLUMN) * live.rank.tp_size
    names = [live.sibling("gate_up_proj", part) for part in ("gate_proj", "up_proj")]
    return Fused([live.slice(name, Kind.COLUMN, rows) for name in names])


def _stack(live: _Live, stack: str, projections: Sequence[str], kind: Kind) -> Source:
    """Experts on dimension 0, their matrices on the other dimensions."""
    live.expect_dimensions(3)
    experts = live.rank.local_experts(live.model.experts)
    live.expect(0, len(experts), f"the rank's share of {live.model.experts} experts")
    per_projection = even(live.shape[1], len(projections), kind)
    extent = per_projection if kind is Kind.EXPERT_COLUMN else live.shape[2]
    prefix = re.sub(rf"(\.routed_experts)?\.{stack}$", "", live.name)
    parts = []
    for index, expert in enumerate(experts):
        for number, projection in enumerate(projections):
            name = f"{prefix}.{expert}.{projection}.weight"
            source = live.slice(name, kind, extent * live.rank.expert_tp_size)
            rows = (number * per_projection, (number + 1) * per_projection)
            parts.append(Part(source, [index, rows]))
    return Parts(parts)


_BUILDERS: tuple[tuple[str, Callable[[_Live], Source]], ...] = (
    (r"\.qkv_proj\.(weight|bias)$", _qkv),
    (r"\.gate_up_proj\.(weight|bias)$", _gate_up),
    (
        r"\.experts(\.routed_experts)?\.w13_weight$",
        lambda live: _stack(live, "w13_weight", ("gate_proj", "up_proj"), Kind.EXPERT_COLUMN),
    ),
    (
        r"\.experts(\.routed_experts)?\.w2_weight$",
        lambda live: _stack(live, "w2_weight", ("down_proj",), Kind.EXPERT_ROW),
    ),
)
