"""How Megatron-Core's parameters are fused from a checkpoint's tensors, and cut: a table from names to rules.

Names are those of GPTModel, with Transformer Engine and without. Layers are numbered from the first one of their
module; experts from the first one of their rank. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Optional, Sequence

from dws.declare import fused
from dws.declare.fused import Canonical, Fused
from dws.declare.model_shape import ModelShape
from dws.errors import LayoutError


@dataclasses.dataclass(frozen=True)
class Parallel:
    """The sizes of a Megatron trainer's axes, and where this process is in them.

    Attributes:
      tp, pp, ep, etp: tensor, pipeline, expert, and tensor inside of experts (None: as tp, Megatron's default). Axes of
        replicas, such as data and context, are not needed.
      tp_rank, pp_rank, ep_rank, etp_rank: this process's (etp_rank None: as tp_rank).

    Raises:
      LayoutError: a rank that is not in its axis.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    etp: Optional[int] = None
    tp_rank: int = 0
    pp_rank: int = 0
    ep_rank: int = 0
    etp_rank: Optional[int] = None

    def __post_init__(self) -> None:
        if self.etp is None and self.etp_rank is None:
            object.__setattr__(self, "etp", self.tp)
            object.__setattr__(self, "etp_rank", self.tp_rank)
        for axis in ("tp", "pp", "ep", "etp"):
            size, rank = getattr(self, axis), getattr(self, f"{axis}_rank")
            if size is None or rank is None or not 0 <= rank < size:
                raise LayoutError(f"{axis}={size}, {axis}_rank={rank}: expected a rank of the axis")


class _How(enum.Enum):
    ROWS = enum.auto()  # cut on dimension 0
    COLUMNS = enum.auto()  # cut on dimension 1
    WHOLE = enum.auto()
    GATE_UP = enum.auto()
    QKV = enum.auto()


@dataclasses.dataclass(frozen=True)
class _Rule:
    """Attributes:
    of: names of canonical tensors in model.layers.N.
    """

    how: _How
    of: tuple[str, ...]


def _gate_up(module: str) -> _Rule:
    return _Rule(_How.GATE_UP, (f"{module}.gate_proj.weight", f"{module}.up_proj.weight"))


def _qkv(what: str) -> _Rule:
    return _Rule(_How.QKV, tuple(f"self_attn.{each}_proj.{what}" for each in "qkv"))


# By the parameter's name in decoder.layers.N. A model need not have all of them.
_LAYER = {
    "input_layernorm.weight": _Rule(_How.WHOLE, ("input_layernorm.weight",)),
    "pre_mlp_layernorm.weight": _Rule(_How.WHOLE, ("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.layer_norm_weight": _Rule(_How.WHOLE, ("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.weight": _gate_up("mlp"),
    "mlp.linear_fc2.weight": _Rule(_How.COLUMNS, ("mlp.down_proj.weight",)),
    "mlp.shared_experts.linear_fc1.weight": _gate_up("mlp.shared_experts"),
    "mlp.shared_experts.linear_fc2.weight": _Rule(
        _How.COLUMNS, ("mlp.shared_experts.down_proj.weight",)
    ),
    "self_attention.linear_proj.weight": _Rule(_How.COLUMNS, ("self_attn.o_proj.weight",)),
}
_GROUPED_ATTENTION = {
    "self_attention.linear_qkv.layer_norm_weight": _Rule(_How.WHOLE, ("input_layernorm.weight",)),
    "self_attention.linear_qkv.weight": _qkv("weight"),
    "self_attention.linear_qkv.bias": _qkv("bias"),
    "self_attention.q_layernorm.weight": _Rule(_How.WHOLE, ("self_attn.q_norm.weight",)),
    "self_attention.k_layernorm.weight": _Rule(_How.WHOLE, ("self_attn.k_norm.weight",)),
    "self_attention.linear_proj.bias": _Rule(_How.WHOLE, ("self_attn.o_proj.bias",)),
    "self_attention.core_attention.softmax_offset": _Rule(_How.ROWS, ("self_attn.sinks",)),
}
_LATENT_ATTENTION = {
    f"self_attention.{name}": _Rule(how, (f"self_attn.{canonical}.weight",))
    for name, how, canonical in (
        ("linear_q_proj.weight", _How.ROWS, "q_proj"),
        ("linear_q_down_proj.weight", _How.ROWS, "q_a_proj"),
        ("linear_q_up_proj.weight", _How.ROWS, "q_b_proj"),
        ("linear_q_up_proj.layer_norm_weight", _How.WHOLE, "q_a_layernorm"),
        ("q_layernorm.weight", _How.WHOLE, "q_a_layernorm"),
        ("linear_kv_down_proj.weight", _How.ROWS, "kv_a_proj_with_mqa"),
        ("linear_kv_up_proj.weight", _How.ROWS, "kv_b_proj"),
        ("linear_kv_up_proj.layer_norm_weight", _How.WHOLE, "kv_a_layernorm"),
        ("kv_layernorm.weight", _How.WHOLE, "kv_a_layernorm"),
    )
}
_ROUTER = {
    "mlp.router.weight": _Rule(_How.WHOLE, ("mlp.gate.weight",)),
    "mlp.router.expert_bias": _Rule(_How.WHOLE, ("mlp.gate.e_score_correction_bias",)),
}
_STACKED_ROUTER = {
    "mlp.router.weight": _Rule(_How.WHOLE, ("mlp.router.weight",)),
    "mlp.router.bias": _Rule(_How.WHOLE, ("mlp.router.bias",)),
}

_IN_LAYER = re.compile(r"decoder\.layers\.(?P<layer>\d+)\.(?P<name>.*)")
_EXPERT = re.compile(
    r"mlp\.experts\.(?:linear_fc(?P<fc>[12])\.(?P<what>weight|bias)(?P<n>\d+)"
    r"|local_experts\.(?P<n2>\d+)\.linear_fc(?P<fc2>[12])\.(?P<what2>weight|bias))"
)


class Rules:
    """For parameters of one process.

    Args:
      first_layer: the number of the model's layer that is called decoder.layers.0.
    """

    def __init__(self, model: ModelShape, parallel: Parallel, first_layer: int) -> None:
        self._model = model
        self._parallel = parallel
        self._first_layer = first_layer
        self._shapes = model.layer_shapes()
        attention = _LATENT_ATTENTION if model.latent else _GROUPED_ATTENTION
        self._rules = {**_LAYER, **attention, **(_STACKED_ROUTER if model.stacked else _ROUTER)}

    def fused(self, name: str, shape: Sequence[int]) -> Fused:
        """Returns the parts of the checkpoint's tensors that a parameter has.

        Raises:
          LayoutError: a name or a shape that the rules do not have.
        """
        found = self._outside(name, shape) or self._inside(name, shape)
        if found is None:
            raise LayoutError(
                f"'{name}' {list(shape)}: dws.declare knows no such parameter of a {self._model.family} model. Layers of "
                "multi-token prediction and legacy grouped experts (weight1, weight2) are not supported; leave out what "
                "the checkpoint does not have"
            )
        if found.shape != tuple(shape):
            raise LayoutError(
                f"'{name}' {list(shape)}: expected {list(found.shape)} with {self._parallel} of a {self._model}"
            )
        return found

    def _outside(self, name: str, shape: Sequence[int]) -> Optional[Fused]:
        """The rules for parameters outside of layers."""
        model = self._model
        if name == "decoder.final_layernorm.weight":
            return fused.whole(Canonical("model.norm.weight", (model.hidden,)))
        if name not in ("embedding.word_embeddings.weight", "output_layer.weight"):
            return None
        own_head = name == "output_layer.weight" and not model.tied
        canonical = "lm_head.weight" if own_head else "model.embed_tokens.weight"
        words = fused.whole(Canonical(canonical, (model.vocabulary, model.hidden)))
        padded = (shape[0] if shape else 0) * self._parallel.tp
        if padded < model.vocabulary:
            raise LayoutError(
                f"'{name}' {list(shape)}: {self._parallel.tp} ranks of tensor parallelism have {padded} words, expected "
                f"{model.vocabulary} and padding"
            )
        return self._shard(name, fused.pad(words, padded), 0)

    def _inside(self, name: str, shape: Sequence[int]) -> Optional[Fused]:
        """The rules for parameters of layers."""
        match = _IN_LAYER.fullmatch(name)
        if match is None:
            return None
        layer = self._first_layer + int(match["layer"])
        if layer >= self._model.layers:
            raise LayoutError(
                f"'{name}' is of layer {layer}, and the model has {self._model.layers}: see first_layers="
            )
        expert = _EXPERT.fullmatch(match["name"])
        if expert is not None:
            return self._expert(name, shape, layer, expert)
        rule = self._rules.get(match["name"])
        if rule is None or any(each not in self._shapes for each in rule.of):
            return None
        parts = [fused.whole(self._canonical(layer, each)) for each in rule.of]
        if rule.how is _How.GATE_UP:
            return self._gate_up(name, parts, "tp")
        if rule.how is _How.QKV:
            return self._qkv(name, shape, parts)
        if rule.how is _How.WHOLE or tuple(shape) == parts[0].shape:
            return parts[0]
        return self._shard(name, parts[0], 1 if rule.how is _How.COLUMNS else 0)

    def _canonical(self, layer: int, name: str, shape_of: Optional[str] = None) -> Canonical:
        return Canonical(f"model.layers.{layer}.{name}", self._shapes[shape_of or name])

    def _expert(
        self, name: str, shape: Sequence[int], layer: int, match: re.Match[str]
    ) -> Optional[Fused]:
        model, parallel = self._model, self._parallel
        count, left = divmod(model.experts, parallel.ep)
        own = int(match["n"] or match["n2"])
        if left or own >= count:
            raise LayoutError(
                f"'{name}': the model's {model.experts} experts on {parallel.ep} ranks of expert parallelism make {count} "
                f"a rank{f', and {left} are left over' if left else ''}"
            )
        expert = parallel.ep_rank * count + own
        is_down, is_bias = (match["fc"] or match["fc2"]) == "2", "bias" in match[0]
        if model.stacked:
            return self._stacked_expert(name, layer, expert, is_down, is_bias)
        if is_bias:
            return None
        matrices = [
            fused.whole(
                self._canonical(
                    layer,
                    f"mlp.experts.{expert}.{matrix}_proj.weight",
                    f"mlp.experts.{{}}.{matrix}_proj.weight",
                )
            )
            for matrix in (("down",) if is_down else ("gate", "up"))
        ]
        if is_down:
            return self._shard(name, matrices[0], 1, "etp")
        return self._gate_up(name, matrices, "etp")

    def _stacked_expert(
        self, name: str, layer: int, expert: int, is_down: bool, is_bias: bool
    ) -> Fused:
        """Checkpoints have [expert, in, out], with columns of gate and up in turn."""
        stack = "down_proj" if is_down else "gate_up_proj"
        tensor = self._canonical(layer, f"mlp.experts.{stack}{'_bias' if is_bias else ''}")
        of_expert = fused.row(tensor, expert)
        if not is_bias:
            of_expert = fused.transpose(of_expert)
        if is_down:
            return of_expert if is_bias else self._shard(name, of_expert, 1, "etp")
        return self._gate_up(name, [fused.every(of_expert, 0, 2, side) for side in (0, 1)], "etp")

    def _gate_up(self, name: str, parts: Sequence[Fused], axis: str) -> Fused:
        """Each rank has its part of the gate before its part of up."""
        return fused.concat([self._shard(name, part, 0, axis) for part in parts])

    def _qkv(self, name: str, shape: Sequence[int], parts: Sequence[Fused]) -> Fused:
        """For each group: its query heads, its key head, its value head. If there are fewer groups than ranks, they are
        cut as if it were otherwise, or each rank has a copy of its group's key and value heads: the shape tells.
        """
        groups, ranks = self._model.kv_heads, self._parallel.tp
        query, key, value = parts
        together = fused.interleave(parts, groups)
        if groups < ranks and shape and shape[0] * ranks != together.shape[0]:
            if ranks % groups or query.shape[0] % ranks:
                raise LayoutError(
                    f"'{name}' {list(shape)}: {groups} key-value heads cannot be repeated for {ranks} ranks"
                )
            key, value = (fused.repeat(each, groups, ranks // groups) for each in (key, value))
            together = fused.interleave([query, key, value], ranks)
        return self._shard(name, together, 0)

    def _shard(self, name: str, tensor: Fused, dim: int, axis: str = "tp") -> Fused:
        parts = self._divisor(name, tensor, axis, dim)
        return fused.shard(tensor, parts, int(getattr(self._parallel, f"{axis}_rank")), dim)

    def _divisor(self, name: str, tensor: Fused, axis: str, dim: int = 0) -> int:
        """Returns the size of an axis that cuts a dimension.

        Raises:
          LayoutError: it does not divide it.
        """
        parts = int(getattr(self._parallel, axis))
        if tensor.shape[dim] % parts:
            raise LayoutError(
                f"'{name}': {axis}={parts} does not divide dimension {dim} of {list(tensor.shape)}"
            )
        return parts
