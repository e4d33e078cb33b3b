"""The model of the check: its config, and the weights of its two versions.

Versions differ behind the last layer's attention only, in every weight there. What an earlier token left in
the KV cache is then the same in both, and the logits of every step are those of one version, exactly, whatever
the steps before ran with.
"""

from __future__ import annotations

import json
import os
from typing import Iterator

import torch

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
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
_LAST_LAYER = f"model.layers.{CONFIG['num_hidden_layers'] - 1}"
_CHANGING = (
    f"{_LAST_LAYER}.self_attn.o_proj",
    f"{_LAST_LAYER}.post_attention",
    f"{_LAST_LAYER}.mlp",
    "model.norm",
    "lm_head",
)


def write_config(folder: str) -> None:
    """A model folder as vLLM takes one; weights come from the trainer."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(CONFIG, file)


def write_tokenizer(folder: str) -> None:
    """One word for each token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {token_text(token): token for token in range(int(CONFIG["vocab_size"]))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=token_text(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": token_text(2)}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump(kind, file)


def token_text(token: int) -> str:
    """All of one length: no token begins another one."""
    return f"t{token:04d}"


def version_weights(version: int) -> dict[str, torch.Tensor]:
    """Of the versions 0 and 1, under the names of a checkpoint."""
    weights = {}
    for number, (name, shape) in enumerate(_shapes()):
        changes = name.startswith(_CHANGING)
        random = torch.Generator().manual_seed(2 * number + (version if changes else 0))
        noise = torch.randn(shape, generator=random)
        # Norms around 1, matrices that keep the size of what goes through them.
        value = 1.0 + noise / 4 if len(shape) == 1 else 3.0 * noise / shape[1] ** 0.5
        weights[name] = value.to(torch.bfloat16)
    return weights


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, middle, dim = (int(CONFIG[k]) for k in ("hidden_size", "intermediate_size", "head_dim"))
    query, key_value = (
        int(CONFIG[k]) * dim for k in ("num_attention_heads", "num_key_value_heads")
    )
    vocab = int(CONFIG["vocab_size"])
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(int(CONFIG["num_hidden_layers"])):
        at = f"model.layers.{layer}"
        for letter, rows in (("q", query), ("k", key_value), ("v", key_value)):
            yield f"{at}.self_attn.{letter}_proj.weight", (rows, hidden)
        yield f"{at}.self_attn.o_proj.weight", (hidden, query)
        for letter in "qk":
            yield f"{at}.self_attn.{letter}_norm.weight", (dim,)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{norm}.weight", (hidden,)
        for letter in ("gate", "up"):
            yield f"{at}.mlp.{letter}_proj.weight", (middle, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, middle)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)
