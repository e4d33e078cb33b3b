"""Checks that live parameters match their mapping, by the checkpoint the engine was started with.

This is the only proof that an engine has not rearranged weights after loading. Compared once,
before the first version is written. Elements are compared to the bit. If the engine keeps another
type than the file has, such as the router of GLM-4-MoE in FP32, they are compared with torch's
cast, as loaders make it.
"""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from dws.arrays import raw_bits
from dws.dtypes import DType, loaded_torch
from dws.errors import LayoutError
from dws.mapping import CanonicalPart, Mapped, as_viewed, boxes_of, ranges_of
from dws.plugins.checkpoint_files import CheckpointFiles as CheckpointFiles


def require_as_loaded(
    tensors: Mapping[str, Any], mapping: Mapped, checkpoint: CheckpointFiles
) -> None:
    """Compares every mapped element with the checkpoint, cast to the engine's type.

    Args:
      tensors: live parameters, torch or numpy.

    Raises:
      LayoutError: some differ, by name: the engine keeps them in another form than the mapping
        says, or has not loaded this checkpoint; or the checkpoint lacks a tensor.
    """
    differ = []
    for name, tensor in tensors.items():
        source = mapping.get(name, name)
        if source is None:
            continue
        on_host = tensor.detach().cpu().contiguous() if hasattr(tensor, "detach") else tensor
        dtype = DType.of(tensor.dtype)
        live = as_viewed(raw_bits(name, on_host, dtype), source)
        for part, picked in boxes_of(name, source, live.shape):
            if not np.array_equal(live[picked], _range_of(part, checkpoint, dtype)):
                differ.append(f"'{name}' ({_described(part, checkpoint, dtype)})")
                break
    if differ:
        raise LayoutError(
            f"{len(differ)} parameters differ from what checkpoint '{checkpoint.folder}' and the "
            f"mapping give: {', '.join(differ[:5])}{' ...' if len(differ) > 5 else ''}. Either the "
            "engine has loaded another checkpoint, or it keeps weights in a form that cannot be "
            "written in place"
        )


def fill(tensors: Mapping[str, Any], mapping: Mapped, checkpoint: CheckpointFiles) -> None:
    """Copies from the checkpoint what the mapping says, cast to the types of `tensors`; the rest becomes zero.

    Args:
      tensors: of torch.

    Raises:
      LayoutError: the checkpoint lacks a tensor.
    """
    torch: Any = loaded_torch()
    for name, tensor in tensors.items():
        dtype = DType.of(tensor.dtype)
        bits, source = np.zeros(tuple(tensor.shape), dtype.raw), mapping.get(name, name)
        viewed = as_viewed(bits, source)
        for part, picked in boxes_of(name, source, viewed.shape):
            viewed[picked] = _range_of(part, checkpoint, dtype)
        signed = torch.from_numpy(bits.reshape(-1).view(f"i{dtype.itemsize}"))
        tensor.data.copy_(signed.view(tensor.dtype).reshape(tensor.shape))


def _range_of(
    part: CanonicalPart, checkpoint: CheckpointFiles, dtype: DType
) -> np.ndarray[Any, Any]:
    """The bits of a part's elements, cast to `dtype`; as they are, if one of the types is an integer of the other's size:
    engines keep FP8 and packed weights as bytes."""
    name = part if isinstance(part, str) else part.tensor
    whole, ranges = checkpoint.bits(name), ranges_of(part)
    picked: np.ndarray[Any, Any] = whole[
        tuple(slice(*ranges.get(dim, (0, None))) for dim in range(whole.ndim))
    ]
    own = checkpoint.dtype(name)
    are_bits = own.itemsize == dtype.itemsize and (own.name[0] in "IU" or dtype.name[0] in "IU")
    return picked if own is dtype or are_bits else _cast(picked, own, dtype)


def _cast(bits: np.ndarray[Any, Any], own: DType, dtype: DType) -> np.ndarray[Any, Any]:
    torch: Any = loaded_torch()
    flat = np.array(bits).reshape(-1)  # torch takes no read-only memory
    elements = torch.from_numpy(flat.view(f"i{own.itemsize}")).view(own.torch).to(dtype.torch)
    found: np.ndarray[Any, Any] = elements.view(DType[f"I{8 * dtype.itemsize}"].torch).numpy()
    return found.view(dtype.raw).reshape(bits.shape)


def _described(part: CanonicalPart, checkpoint: CheckpointFiles, dtype: DType) -> str:
    name = part if isinstance(part, str) else part.tensor
    own = checkpoint.dtype(name)
    return name if own is dtype else f"{name}, {own.name} in the file, {dtype.name} in the engine"
