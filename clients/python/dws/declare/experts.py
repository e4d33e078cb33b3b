"""How a checkpoint names the experts that a module stacks in one tensor, family by family: for modules that are not of
transformers 5, whose own conversion dws.declare.conversion takes.

A module in the form of transformers 5 has two tensors for all experts of a layer: mlp.experts.gate_up_proj [E, 2I, H],
where the gate's rows come before those of up, and mlp.experts.down_proj [E, H, I]. Checkpoints differ:

    model_type                     a checkpoint's names for expert N
    qwen*, deepseek*, glm*, olmoe  mlp.experts.N.gate_proj.weight, .up_proj, .down_proj
    mixtral, minimax_m2            block_sparse_moe.experts.N.w1.weight (gate), .w3 (up), .w2 (down);
                                   the router is in block_sparse_moe, too
    gpt_oss                        stacked, as in the module

Experts in another form are refused by name: nothing is guessed. Pure: names and shapes only.
tools/real.sh declare compares all of these with what transformers itself saves.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Mapping, Optional, Sequence

from dws.declare.pieces import Piece
from dws.errors import LayoutError

Shape = Sequence[int]


@dataclasses.dataclass(frozen=True)
class _Family:
    """Attributes:
    block: the checkpoint's name for what the module calls `mlp`.
    gate, up, down: the checkpoint's names for an expert's matrices; None if experts are stacked.
    """

    block: str = "mlp"
    gate: Optional[str] = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


_SEPARATE = _Family()
_MIXTRAL = _Family("block_sparse_moe", "w1", "w3", "w2")
# By model_type.
FAMILIES = {
    "deepseek_v2": _SEPARATE,
    "deepseek_v3": _SEPARATE,
    "deepseek_v32": _SEPARATE,
    "glm4_moe": _SEPARATE,
    "glm4_moe_lite": _SEPARATE,
    "glm_moe_dsa": _SEPARATE,
    "gpt_oss": _Family(gate=None),
    "minimax_m2": _MIXTRAL,
    "mixtral": _MIXTRAL,
    "olmoe": _SEPARATE,
    "qwen2_moe": _SEPARATE,
    "qwen3_moe": _SEPARATE,
    "qwen3_next": _SEPARATE,
}

_STACK = re.compile(r"(?P<prefix>(?:.*\.)?)mlp\.experts\.(?P<stack>gate_up_proj|down_proj)")
_STACKED_BIAS = re.compile(r"(?:.*\.)?mlp\.experts\.(?:gate_up_proj|down_proj)_bias")
# Tensors that a module named `experts` holds itself, and others of experts with a dimension for them.
_OF_ALL_EXPERTS = re.compile(r"(?:.*\.)?experts\.[^.]*")
_NAMES_EXPERTS = re.compile(r"expert|moe", re.IGNORECASE)


def pieces_of(shapes: Mapping[str, Shape], model_type: Optional[str]) -> dict[str, list[Piece]]:
    """Returns the canonical tensors in each tensor of a module, in the order of their elements in
    it.

    Args:
      shapes: of the module's tensors.
      model_type: of its Hugging Face config; None if it has none.

    Raises:
      LayoutError: the layout of a tensor of experts is unknown; the message names it.
    """
    family = FAMILIES.get(model_type or "")
    found = {}
    for name, shape in shapes.items():
        stack = _STACK.fullmatch(name)
        if family is not None and stack is not None:
            found[name] = _stacked(family, stack, shapes, model_type)
            continue
        as_it_is = family is not None and family.gate is None and _STACKED_BIAS.fullmatch(name)
        if not as_it_is and _holds_experts(name, shape):
            raise LayoutError(
                f"'{name}' {list(shape)} has experts in a layout that dws.declare does not know for "
                f"model_type {model_type!r} (known: {', '.join(sorted(FAMILIES))}): register a dict "
                "of views under a checkpoint's names, or pass model_type= of a family that has this "
                "layout"
            )
        found[name] = [Piece(_renamed(family, name))]
    return found


def _holds_experts(name: str, shape: Shape) -> bool:
    if _OF_ALL_EXPERTS.fullmatch(name):
        return True
    return len(shape) > 2 and _NAMES_EXPERTS.search(name) is not None


def _renamed(family: Optional[_Family], name: str) -> str:
    if family is None:
        return name
    return re.sub(r"(^|\.)mlp\.", rf"\g<1>{family.block}.", name)


def _stacked(
    family: _Family, stack: re.Match[str], shapes: Mapping[str, Shape], model_type: Optional[str]
) -> list[Piece]:
    if family.gate is None:
        return [Piece(stack[0])]
    experts, inner = _sizes(stack["prefix"], shapes, model_type)
    at = f"{stack['prefix']}{family.block}.experts"
    if stack["stack"] == "down_proj":
        return [Piece(f"{at}.{n}.{family.down}.weight", (n,)) for n in range(experts)]
    halves = ((family.gate, slice(0, inner)), (family.up, slice(inner, 2 * inner)))
    return [
        Piece(f"{at}.{n}.{matrix}.weight", (n, rows))
        for n in range(experts)
        for matrix, rows in halves
    ]


def _sizes(
    prefix: str, shapes: Mapping[str, Shape], model_type: Optional[str]
) -> tuple[int, int]:
    """The number of experts, and the rows of an expert's gate.

    Raises:
      LayoutError: the two stacks are not [E, 2I, H] and [E, H, I].
    """
    names = [f"{prefix}mlp.experts.{stack}" for stack in ("gate_up_proj", "down_proj")]
    gate_up, down = (tuple(shapes.get(name, ())) for name in names)
    if len(gate_up) != 3 or len(down) != 3 or gate_up != (down[0], 2 * down[2], down[1]):
        raise LayoutError(
            f"'{names[0]}' {list(gate_up)} and '{names[1]}' {list(down)}: expected [E, 2I, H] and "
            f"[E, H, I], as modules of model_type {model_type!r} have them"
        )
    return down[0], down[2]
