"""SHA-256 over weights: the same function in the trainer (its own cast) and the engines (their
modules)."""

from __future__ import annotations

import hashlib
from typing import Iterable

import torch


def weights_sha256(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Hashes names, types, shapes and bytes, in the order of the names.

    Args:
      named: (name, BF16 tensor), contiguous.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda item: item[0]):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(memoryview(tensor.detach().view(torch.int16).numpy()).cast("B"))
    return digest.hexdigest()
