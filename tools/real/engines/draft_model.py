"""Small models that speculate, for the check of drafts: their configs, and the weights of the steps of a training.

The target likes some tokens far more than the others. Each likes to follow another one of them, and the context may decide
otherwise. So it is with each draft, by weights of its own: some of its proposals are accepted, and which ones depends on
these weights.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Optional, Sequence

import torch

from tools.real.engines.model import CHANGED_SHARE, CONFIGS, write_tokenizer

PREFIX = "draft."
MTP = "model.mtp_layers."  # layers of a draft in the target's checkpoint
_LIKED = range(10, 14)
_LARGE = 200.0  # element 0 of each embedding, at which only the logits of liked tokens look
# An element of a liked token's embedding, at which the logit of the liked token that follows it looks.
_NEXT, _FOLLOWS = 100.0, 0.5
_SPREAD = 20.0  # of the other elements of an embedding
_QUIET = 0.02
_HIDDEN = int(CONFIGS["llama"]["hidden_size"])
_VOCAB = int(CONFIGS["llama"]["vocab_size"])
_LEFT_OUT = 7  # EAGLE-3's draft knows all tokens but every seventh; which ones depends on the step
Weights = dict[str, torch.Tensor]
_Shapes = dict[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Speculation:
    """A way to speculate. `target`, `draft`: configs; `draft` is None if the target's checkpoint has the draft's layers."""

    method: str
    tokens: int
    target: dict[str, Any]
    draft: Optional[dict[str, Any]] = None


def _known(step: int) -> list[int]:
    """The tokens of EAGLE-3's draft: as many in each step, and all liked ones. A training would leave them as they are; here
    the table of them has to follow, too."""
    return [token for token in range(_VOCAB) if token % _LEFT_OUT != step % (min(_LIKED) % _LEFT_OUT)]


_LLAMA = CONFIGS["llama"]
_STATES = int(_LLAMA["num_hidden_layers"]) + 1
SPECULATIONS = {
    "eagle": Speculation("eagle", 2, _LLAMA, {**_LLAMA, "num_hidden_layers": 1}),
    # Its draft reads the target's embedding and what comes out of each layer.
    "eagle3": Speculation(
        "eagle3",
        2,
        _LLAMA,
        {
            **_LLAMA,
            "num_hidden_layers": 1,
            "draft_vocab_size": len(_known(0)),
            "eagle_aux_hidden_state_layer_ids": list(range(_STATES)),
        },
    ),
    # vLLM reads MiMo's layers as Qwen2's.
    "mtp": Speculation("mtp", 1, {**CONFIGS["qwen2"], "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}),
    "draft_model": Speculation("draft_model", 2, _LLAMA, {**_LLAMA, "num_hidden_layers": 1}),
}


def weights_of(name: str, step: int, draft_step: Optional[int] = None) -> tuple[Weights, Weights]:
    """The weights of step 0 or of a later one, by the names of checkpoints: the target's, and those of a draft with a
    checkpoint of its own.

    Args:
      draft_step: the draft's, wherever it is; None: `step`.
    """
    speculation = SPECULATIONS[name]
    biased = name == "mtp"
    target, draft = _whole(speculation.target, biased), {}
    if name == "eagle":
        draft = {"fc.weight": (_HIDDEN, 2 * _HIDDEN), **_layer("layers.0", biased)}
        del draft["layers.0.input_layernorm.weight"]  # its first layer has none
    elif name == "eagle3":
        draft = _reading_layer()
    elif name == "mtp":
        at = f"{MTP}0"
        target.update(_layer(at, biased))
        target[f"{at}.input_proj.weight"] = (_HIDDEN, 2 * _HIDDEN)
        target.update({f"{at}.{norm}_layernorm.weight": (_HIDDEN,) for norm in ("token", "hidden", "final")})
    else:
        assert speculation.draft is not None
        draft = _whole(speculation.draft, biased)
    then = step if draft_step is None else draft_step
    found, own = _values(target, step, seed=0), _values(draft, then, seed=1000)
    found.update({key: tensor for key, tensor in _values(target, then, seed=0).items() if key.startswith(MTP)})
    if name == "eagle3":
        own["d2t"] = torch.tensor([token - row for row, token in enumerate(_known(then))])
    return found, own


def write_models(name: str, folder: str, step: int, draft_step: Optional[int] = None) -> tuple[str, Optional[str]]:
    """Writes the checkpoints of a step. Returns the folders of the target's and of the draft's, if it has one.

    Args:
      draft_step: as of weights_of.
    """
    from safetensors.torch import save_file

    speculation = SPECULATIONS[name]
    found: list[Optional[str]] = []
    both = weights_of(name, step, draft_step)
    if "d2t" in both[1]:  # such checkpoints have this table, too, and vLLM leaves it aside
        known = torch.zeros(_VOCAB, dtype=torch.bool)
        known[both[1]["d2t"] + torch.arange(len(both[1]["d2t"]))] = True
        both[1]["t2d"] = known
    for part, config, weights in zip(("target", "draft"), (speculation.target, speculation.draft), both):
        if config is None:
            found.append(None)
            continue
        path = os.path.join(folder, f"{part}-{step}")
        os.makedirs(path)
        with open(os.path.join(path, "config.json"), "w") as file:
            json.dump(config, file)
        write_tokenizer(path)
        save_file(weights, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
        found.append(path)
    assert found[0] is not None
    return found[0], found[1]


def _values(shapes: _Shapes, step: int, seed: int) -> Weights:
    """Random ones; each step changes CHANGED_SHARE of the elements of each tensor, at least one."""
    weights = {}
    for number, (name, shape) in enumerate(shapes.items()):
        random = torch.Generator().manual_seed(seed + number)
        noise = torch.randn(shape, generator=random)
        value = noise / 4 + 1 if name.endswith("norm.weight") else noise * (2 / shape[-1] ** 0.5)
        for place in range(1, step + 1):
            changed = torch.rand(shape, generator=random) < CHANGED_SHARE
            changed.view(-1)[place] = True  # of small tensors, too
            value = torch.where(changed, -value, value)
        known = _known(step) if len(value) == len(_known(step)) else range(_VOCAB)
        _shape(name, value, known, is_draft=seed > 0)
        weights[name] = value.to(torch.bfloat16)
    return weights


def _shape(name: str, value: torch.Tensor, known: Sequence[int], is_draft: bool) -> None:
    """Sets the elements that make tokens likely; they are the same in every step.

    Args:
      known: the tokens of an lm_head.
    """
    ring = [(at, token, _LIKED[(at + 1) % len(_LIKED)]) for at, token in enumerate(_LIKED)]
    if name.endswith("norm.weight"):
        value[: len(ring) + 1] = 1.0
    elif name.endswith("embed_tokens.weight"):
        value *= _SPREAD
        value[:, 0] = _LARGE
        for at, token, _ in ring:
            value[token, 1 + at] = _NEXT
    elif name.endswith("lm_head.weight"):
        value[:, 0] = 0.0
        value[[known.index(token) for token in _LIKED], 0] = 1.0
        for at, _, follows in ring:
            # EAGLE-3's draft, whose tokens are others, has the embedding of the token before.
            later = follows if len(known) == _VOCAB else ring[_LIKED.index(follows)][2]
            value[known.index(later), 1 + at] = _FOLLOWS
    elif name.endswith(("fc.weight", "input_proj.weight")):
        # The embedding passes through: EAGLE's comes first, MiMo's last.
        first, gain = (0, 1.0) if name.endswith("fc.weight") else (_HIDDEN, _LARGE / 10)
        value[: len(ring) + 1], value[:, ::_HIDDEN] = 0.0, 0.0
        for at in range(len(ring) + 1):
            value[at, first + at] = gain
    elif is_draft and name.endswith(("o_proj.weight", "down_proj.weight")):
        value *= _QUIET  # EAGLE's layer gets what is large as it is


def _whole(config: dict[str, Any], biased: bool) -> _Shapes:
    vocab = int(config["vocab_size"])
    shapes: _Shapes = {"model.embed_tokens.weight": (vocab, _HIDDEN)}
    for layer in range(int(config["num_hidden_layers"])):
        shapes.update(_layer(f"model.layers.{layer}", biased))
    return {**shapes, "model.norm.weight": (_HIDDEN,), "lm_head.weight": (vocab, _HIDDEN)}


def _reading_layer() -> _Shapes:
    """The draft of EAGLE-3: one layer, whose attention reads the embedding beside the states of the target."""
    at = "midlayer"
    shapes: _Shapes = {"fc.weight": (_HIDDEN, _STATES * _HIDDEN), f"{at}.hidden_norm.weight": (_HIDDEN,), "norm.weight": (_HIDDEN,)}
    for name, shape in _layer(at, biased=False).items():
        shapes[name] = (shape[0], 2 * _HIDDEN) if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) else shape
    return {**shapes, "lm_head.weight": (len(_known(0)), _HIDDEN)}


def _layer(at: str, biased: bool) -> _Shapes:
    dim, middle = int(_LLAMA["head_dim"]), int(_LLAMA["intermediate_size"])
    query, key_value = (int(_LLAMA[k]) * dim for k in ("num_attention_heads", "num_key_value_heads"))
    shapes: _Shapes = {}
    for letter, rows in (("q", query), ("k", key_value), ("v", key_value)):
        shapes[f"{at}.self_attn.{letter}_proj.weight"] = (rows, _HIDDEN)
        if biased:
            shapes[f"{at}.self_attn.{letter}_proj.bias"] = (rows,)
    shapes[f"{at}.self_attn.o_proj.weight"] = (_HIDDEN, query)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"{at}.{norm}.weight"] = (_HIDDEN,)
    shapes.update({f"{at}.mlp.{letter}_proj.weight": (middle, _HIDDEN) for letter in ("gate", "up")})
    return {**shapes, f"{at}.mlp.down_proj.weight": (_HIDDEN, middle)}
