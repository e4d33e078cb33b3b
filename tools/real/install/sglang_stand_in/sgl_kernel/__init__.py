"""Stands in for SGLang's compiled kernels, which PyPI has for GPUs only. On a CPU without AMX SGLang calls one
of them, the rotary embedding: here in torch. Any other kernel fails by name.

Before SGLang's own package on PYTHONPATH."""

from __future__ import annotations

from typing import Any, Callable

import torch

__version__ = "0.4.10"  # SGLang asks for this one or newer

_SIGNATURE = (
    "rotary_embedding_cpu(Tensor positions, Tensor query, Tensor key, int head_size, "
    "Tensor cos_sin_cache, bool is_neox) -> (Tensor, Tensor)"
)


def _rotated(
    heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, is_neox: bool
) -> torch.Tensor:
    """Args:
    heads: (tokens, heads, head size); the first 2 * cosines.shape[-1] elements of a head turn.
    """
    half = cosines.shape[-1]
    turning, rest = heads[..., : 2 * half].float(), heads[..., 2 * half :]
    cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
    if is_neox:
        x, y = turning[..., :half], turning[..., half:]
    else:
        x, y = turning[..., 0::2], turning[..., 1::2]
    pair = (x * cosines - y * sines, y * cosines + x * sines)
    turned = torch.cat(pair, -1) if is_neox else torch.stack(pair, -1).flatten(-2)
    return torch.cat((turned.to(heads.dtype), rest), -1)


def _rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    cosines, sines = cos_sin_cache[positions.flatten()].float().chunk(2, -1)

    def turn(tensor: torch.Tensor) -> torch.Tensor:
        heads = tensor.reshape(tensor.shape[0], -1, head_size)
        return _rotated(heads, cosines, sines, is_neox).reshape(tensor.shape)

    return turn(query), turn(key)


_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define(_SIGNATURE)
_library.impl("rotary_embedding_cpu", _rotary_embedding, "CPU")


def __getattr__(name: str) -> Callable[..., Any]:
    """Any kernel that is imported; it fails when it is called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*arguments: Any, **named: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in on the CPU")

    return kernel
