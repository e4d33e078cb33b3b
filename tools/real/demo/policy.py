"""The policy of the demo: a small Qwen3 of transformers, which vLLM knows too."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from tools.demo import task

if not torch.cuda.is_available():
    # transformers asks this before every pass; a torch for GPUs would ask a driver that is not there.
    torch.cuda.is_current_stream_capturing = lambda: False


def write_config(folder: str) -> None:
    """Writes the config for vLLM; weights come from the trainer."""
    _config().save_pretrained(folder)


def _config() -> Qwen3Config:
    return Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=task.VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )


class Policy(nn.Module):
    """tokens [batch, length] -> logits [batch, length, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Qwen3ForCausalLM(_config())

    def _apply(self, change: Callable[..., Any], recurse: bool = True) -> Policy:
        """Like nn.Module, but the rotary embedding stays float32, because vLLM computes it so."""
        rotary = self.model.model.rotary_emb
        frequencies = rotary.inv_freq
        super()._apply(change, recurse)
        rotary.inv_freq = frequencies
        return self

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits
