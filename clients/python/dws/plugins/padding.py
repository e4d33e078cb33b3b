"""Parameters of which load_weights leaves elements as they are, or sets them to a constant: padding, such as that of the
experts of gpt-oss in MXFP4, whose extents vLLM rounds up for its kernels.

A commit leaves these elements as they are too. So they must be what a fresh engine has there, whatever the weights are:
zeros, with which the engine has made the parameter. If the engine has processed the parameter, its zeros can be seen no
more; then the engine's own checkpoint is processed again, with zeros, and compared, before anything is written.
"""

from __future__ import annotations

import importlib
from typing import Any, Mapping

from dws.errors import LayoutError
from dws.mapping import Mapped, Source, as_viewed, boxes_of, source_of
from dws.torch_module import named_tensors


def with_zeros(target: Any, model: Any, mapping: Mapped, padded: Mapping[str, int]) -> list[str]:
    """Sets what commits do not write of tensors that are kept beside the engine's to zeros: padding and constants.

    Args:
      target: the module that is attached in the place of `model`.
      padded: parameters that have padding, with the number of its elements.

    Returns:
      the names of the kept tensors that have such elements.

    Raises:
      LayoutError: the engine's own padding is not zero, by the parameter's name.
    """
    live = {id(tensor) for tensor in named_tensors(model).values()}
    kept = []
    for name, tensor in named_tensors(target).items():
        source = source_of(name, mapping)
        if id(tensor) not in live:
            if _covered(tensor, source, name) < tensor.numel():
                tensor.data.zero_()
                kept.append(name)
        elif name in padded and _has_others(tensor, source, name):
            raise LayoutError(
                f"parameter '{name}' {list(tensor.shape)}: load_weights leaves {padded[name]} of its elements as they "
                "are, expected zeros there (padding), and found others: what a fresh engine has there is not known. Name "
                "its source in the option given, or the parameter in own if only the engine uses it"
            )
    return kept


def _covered(tensor: Any, source: Source, name: str) -> int:
    """How many elements the source gives."""
    torch: Any = importlib.import_module("torch")
    if source is None:
        return 0
    viewed = as_viewed(torch.empty(tuple(tensor.shape), device="meta"), source)
    return sum(int(viewed[box].numel()) for _, box in boxes_of(name, source, tuple(viewed.shape)))


def _has_others(tensor: Any, source: Source, name: str) -> bool:
    """Returns whether an element that the source does not give is no zero."""
    torch: Any = importlib.import_module("torch")
    viewed = as_viewed(tensor.detach(), source)
    rest = torch.ones(tuple(viewed.shape), dtype=torch.bool, device=viewed.device)
    for _, box in boxes_of(name, source, tuple(viewed.shape)):
        rest[box] = False
    return bool((viewed[rest] != 0).any())
