"""Small models with random weights, made here: nothing is downloaded. The same kind and seed give the same weights."""

from __future__ import annotations

import hashlib
from typing import Any, Mapping

import torch

WORDS = ("red", "green", "blue", "one", "two", "three", "four", "of", "the", "and")
VOCABULARY = 67  # no number of ranks divides it

if not torch.cuda.is_available():
    # transformers asks this before every pass; a torch for GPUs would ask a driver that is not there.
    torch.cuda.is_current_stream_capturing = lambda: False


class Uneven(torch.nn.Module):
    """Extents that two or three ranks cannot share evenly, a weight of which some ranks have nothing,
    and a buffer, which fully_shard leaves whole."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 24)
        self.first = torch.nn.Linear(24, 37)
        self.second = torch.nn.Linear(37, 5, bias=False)
        self.last = torch.nn.Linear(5, 1)
        self.register_buffer("scale", torch.full((3,), 0.5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(self.embedding(tokens)))
        return self.last(torch.tanh(self.second(hidden))).mean() * self.scale.sum()


class Wide(torch.nn.Module):
    """Weights of several blocks, which replicas divide; tied ones; and a buffer that each process changes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 256)
        self.norm = torch.nn.LayerNorm(256)
        self.first = torch.nn.Linear(256, 1032)
        self.second = torch.nn.Linear(1032, 256)
        self.head = torch.nn.Linear(256, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embedding(tokens))
        logits = self.head(hidden + self.second(torch.tanh(self.first(hidden))))
        return torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        )


def make(kind: str, seed: int, dtype: str = "float32") -> torch.nn.Module:
    """Makes a model. `kind`: "uneven", "wide", or a causal language model of transformers: "qwen3", with tied embeddings,
    or "qwen3-moe"."""
    torch.manual_seed(seed)
    if kind in ("uneven", "wide"):
        return (Uneven() if kind == "uneven" else Wide()).to(getattr(torch, dtype))
    import transformers

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    family = "Qwen3Moe" if kind == "qwen3-moe" else "Qwen3"
    config = getattr(transformers, f"{family}Config")(
        architectures=[f"{family}ForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # the smallest that vLLM has on the CPU
        max_position_embeddings=64,
        tie_word_embeddings=kind == "qwen3",
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        **(experts if kind == "qwen3-moe" else {}),
    )
    return getattr(transformers, f"{family}ForCausalLM")(config).to(getattr(torch, dtype))


def engine_cuts(tensors: Mapping[str, torch.Tensor], parts: int) -> dict[str, Any]:
    """Where an engine of `parts` ranks cuts the weights of "wide": the embedding and `first` by rows, `second` by columns."""
    from dws.layout import Cut

    dims = {"embedding.weight": 0, "first.weight": 0, "first.bias": 0, "second.weight": 1}
    return {name: Cut.even(tensors[name].shape[dim], parts, dim) for name, dim in dims.items()}


def tokenizer() -> Any:
    """A tokenizer of words, with the special tokens of a chat template."""
    import tokenizers
    import transformers

    words = ["<bos>", "<eos>", "<pad>", "<unk>", *WORDS]
    words += [f"w{i}" for i in range(VOCABULARY - len(words))]
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
    )


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """The SHA-256 of names, types, shapes and bits."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
