"""The models of torch_check.py, and whether there is a PyTorch for them. It is imported when it is
needed, never before."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any


def make_model(device: str) -> Any:
    """A small transformer in bfloat16, the same every time, ready to generate with."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            shares = functional.softmax(scores.masked_fill(later, -math.inf), dim=-1)
            x = x + self.out(shares @ v)
            return x + self.down(functional.silu(self.up(x)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(2000, 256)
            self.blocks = nn.ModuleList(Block(256) for _ in range(4))
            self.head = nn.Linear(256, 2000, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    torch.manual_seed(5)
    return Model().to(device=device, dtype=torch.bfloat16).eval().requires_grad_(False)


def optimizer_step(model: Any, share: float) -> None:
    """Changes about `share` of all weights, by little."""
    import torch

    for weight in model.parameters():
        chosen = torch.rand(weight.shape, device=weight.device) < share
        weight.copy_(torch.where(chosen, weight * 1.01 + 1e-4, weight))


def tokens_for(device: str) -> Any:
    import torch

    torch.manual_seed(9)
    return torch.randint(0, 2000, (2, 64), device=device)


def require_same(engine_output: Any, trained: Any, tokens: Any, version: int) -> None:
    """The engine's outputs are those of a fresh model with the trainer's weights."""
    import torch

    reference = make_model(str(tokens.device))
    reference.load_state_dict({k: v.to(tokens.device) for k, v in trained.state_dict().items()})
    if not torch.equal(engine_output, reference(tokens)):
        raise AssertionError(f"outputs at version {version} differ from the trainer's")


def why_not(device: str) -> str:
    """Returns why nothing can be checked here; empty: it can."""
    asking = "import torch, sys; sys.exit(0 if {} else 3)".format(
        "True" if device == "cpu" else "torch.cuda.is_available()"
    )
    asked = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True)
    if asked.returncode == 3:
        return "PyTorch finds no GPU"
    if asked.returncode != 0:
        return f"PyTorch cannot be imported: {asked.stderr.strip().splitlines()[-1:]}"
    return ""
