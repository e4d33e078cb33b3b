"""Parameters of which load_weights leaves elements as they are: padding, such as that of the experts of gpt-oss in MXFP4,
whose extents vLLM rounds up for its kernels.

A commit leaves these elements as they are too. So they must be what a fresh engine has there, whatever the weights are:
zeros, with which the engine has made the parameter. If the engine has processed the parameter, its zeros can be seen no
more; then the engine's own checkpoint is processed again, with zeros, and compared, before anything is written.
"""

from __future__ import annotations

import importlib
from typing import Any, Mapping

from dws.errors import LayoutError
from dws.mapping import Mapped, Source, as_viewed, boxes_of
from dws.torch_module import named_tensors


def with_zeros(target: Any, model: Any, mapping: Mapped, padded: Mapping[str, int]) -> list[str]:
    """Sets the padding of tensors that are kept beside the engine's to zeros.

    Args:
      target: the module that is attached in the place of `model`.
      padded: parameters that have padding, with the number of its elements.

    Returns:
      the names of these.

    Raises:
      LayoutError: the engine's own padding is not zero, by the parameter's name.
    """
    live = {id(tensor) for tensor in named_tensors(model).values()}
    tensors = named_tensors(target)
    kept = [name for name in padded if id(tensors[name]) not in live]
    for name in padded:
        if name in kept:
            tensors[name].data.zero_()
        elif _has_others(tensors[name], mapping[name], name):
            raise LayoutError(
                f"parameter '{name}' {list(tensors[name].shape)}: load_weights leaves {padded[name]} of its elements as they "
                "are, expected zeros there (padding), and found others: what a fresh engine has there is not known. Name "
                "its source in the option given, or the parameter in own if only the engine uses it"
            )
    return kept


def _has_others(tensor: Any, source: Source, name: str) -> bool:
    """Returns whether an element that the source does not give is no zero."""
    torch: Any = importlib.import_module("torch")
    viewed = as_viewed(tensor.detach(), source)
    rest = torch.ones(tuple(viewed.shape), dtype=torch.bool, device=viewed.device)
    for _, box in boxes_of(name, source, tuple(viewed.shape)):
        rest[box] = False
    return bool((viewed[rest] != 0).any())
