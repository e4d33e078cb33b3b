"""Llama-shaped models of any size, made of plain PyTorch modules. Only imported if PyTorch exists.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
from typing import Any, Iterable, NamedTuple

import torch
from torch import nn
from torch.nn import functional

HEAD_WIDTH = 128
DIGEST_THREADS = 8


class Shape(NamedTuple):
    width: int
    layers: int
    vocabulary: int

    @property
    def hidden(self) -> int:
        return self.width * 11 // 4


def shape_of(billions: float) -> Shape:
    """A shape of about so many parameters."""
    width, vocabulary = 128, 2000
    for at_least, wider in ((0.05, 768), (0.5, 2048), (2.0, 2560)):
        if billions >= at_least:
            width, vocabulary = wider, 32000
    # Attention with half as many heads of keys and values, and three matrices of the hidden width.
    per_layer = 3 * width * width + 3 * width * (width * 11 // 4)
    left = billions * 1e9 - 2 * vocabulary * width
    return Shape(width, max(1, round(left / per_layer)), vocabulary)


class RmsNorm(nn.Module):
    def __init__(self, width: int, made: dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, **made))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (wide * scale).to(x.dtype) * self.weight


def rotated(x: Any) -> Any:
    """Rotary positions: `x` is [batch, heads, tokens, head width]."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, device=x.device, dtype=torch.float32) / half
    places = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
    angles = places[:, None] * torch.pow(torch.tensor(10000.0, device=x.device), -steps)[None, :]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, width: int, made: dict[str, Any]) -> None:
        super().__init__()
        self.heads = max(2, width // HEAD_WIDTH // 2 * 2)
        self.q_proj = nn.Linear(width, width, bias=False, **made)
        self.k_proj = nn.Linear(width, width // 2, bias=False, **made)
        self.v_proj = nn.Linear(width, width // 2, bias=False, **made)
        self.o_proj = nn.Linear(width, width, bias=False, **made)

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape

        def by_head(y: Any) -> Any:
            return y.view(batch, tokens, -1, width // self.heads).transpose(1, 2)

        q = rotated(by_head(self.q_proj(x)))
        k = rotated(by_head(self.k_proj(x))).repeat_interleave(2, dim=1)
        v = by_head(self.v_proj(x)).repeat_interleave(2, dim=1)
        scores = (q @ k.transpose(-2, -1)).float() * (q.shape[-1] ** -0.5)
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        shares = scores.masked_fill(later, float("-inf")).softmax(dim=-1).to(x.dtype)
        return self.o_proj((shares @ v).transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    def __init__(self, shape: Shape, made: dict[str, Any]) -> None:
        super().__init__()
        self.input_norm = RmsNorm(shape.width, made)
        self.attention = Attention(shape.width, made)
        self.post_norm = RmsNorm(shape.width, made)
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=False, **made)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=False, **made)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=False, **made)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.input_norm(x))
        y = self.post_norm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nn.Module):
    """The same weights every time, on one machine."""

    def __init__(self, shape: Shape, device: str, dtype: Any = torch.bfloat16) -> None:
        super().__init__()
        torch.manual_seed(11)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.shape = shape
        self.embed = nn.Embedding(shape.vocabulary, shape.width, **made)
        self.layers = nn.ModuleList(Layer(shape, made) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width, made)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False, **made)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)  # as Llama's, on which the share that a step changes depends

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def language_loss(model: Any, shape: Shape, device: str) -> Any:
    """The loss of predicting random tokens: it is only for its gradients."""
    tokens = torch.randint(0, shape.vocabulary, (4, 128), device=device)
    logits = model(tokens)[:, :-1].float()
    return functional.cross_entropy(
        logits.reshape(-1, shape.vocabulary), tokens[:, 1:].reshape(-1)
    )


def digest(weights: Iterable[tuple[str, Any]]) -> str:
    """SHA-256 over names and bytes of all weights."""

    def of_one(named: tuple[str, Any]) -> bytes:
        name, weight = named
        content = weight.detach().cpu().contiguous().view(torch.uint8).numpy()
        return hashlib.sha256(name.encode() + hashlib.sha256(content.data).digest()).digest()

    with concurrent.futures.ThreadPoolExecutor(DIGEST_THREADS) as pool:
        parts = pool.map(of_one, sorted(weights, key=lambda named: named[0]))
        return hashlib.sha256(b"".join(parts)).hexdigest()
