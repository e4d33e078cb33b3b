"""Checks that live parameters match their mapping, by the checkpoint the engine was started with.

This is the only proof that an engine has not rearranged weights after loading. Compared once,
before the first version is written. Only bytes, no element type is interpreted.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import numpy as np

from dws.arrays import raw_bits
from dws.dtypes import DType, loaded_torch
from dws.errors import LayoutError
from dws.mapping import CanonicalPart, Fused, Mapped, Parts, ranges_of
from dws.plugins.checkpoint_files import CheckpointFiles as CheckpointFiles


def require_as_loaded(
    tensors: Mapping[str, Any], mapping: Mapped, checkpoint: CheckpointFiles
) -> None:
    """Compares every mapped element with the checkpoint.

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
        live = raw_bits(name, on_host, DType.of(tensor.dtype))
        for part, picked in _boxes(name, source, live.shape):
            wanted = _range_of(part, checkpoint)
            if not np.array_equal(live[picked], wanted):
                differ.append(f"'{name}' ({part if isinstance(part, str) else part.tensor})")
                break
    if differ:
        raise LayoutError(
            f"{len(differ)} parameters differ from what checkpoint '{checkpoint.folder}' and the "
            f"mapping give: {', '.join(differ[:5])}{' ...' if len(differ) > 5 else ''}. Either the "
            "engine has loaded another checkpoint, or it keeps weights in a form that cannot be "
            "written in place"
        )


def fill(tensors: Mapping[str, Any], mapping: Mapped, checkpoint: CheckpointFiles) -> None:
    """Copies from the checkpoint what the mapping says; the rest becomes zero.

    Args:
      tensors: of torch.

    Raises:
      LayoutError: the checkpoint lacks a tensor.
    """
    torch: Any = loaded_torch()
    for name, tensor in tensors.items():
        dtype = DType.of(tensor.dtype)
        bits = np.zeros(tuple(tensor.shape), dtype.raw)
        for part, picked in _boxes(name, mapping.get(name, name), bits.shape):
            bits[picked] = _range_of(part, checkpoint)
        signed = torch.from_numpy(bits.reshape(-1).view(f"i{dtype.itemsize}"))
        tensor.data.copy_(signed.view(tensor.dtype).reshape(tensor.shape))


def _boxes(
    name: str, source: Any, shape: tuple[int, ...]
) -> Iterator[tuple[CanonicalPart, tuple[Any, ...]]]:
    """The parts of a parameter, each with its index in the parameter."""
    if isinstance(source, Parts):
        for box in source.parts:
            yield box.source, tuple(slice(*b) if isinstance(b, tuple) else b for b in box.box)
    elif isinstance(source, Fused):
        begin = 0
        extents = source.extents(name, shape[source.dim])
        for part, extent in zip(source.parts, extents):
            yield part, (slice(None),) * source.dim + (slice(begin, begin + extent),)
            begin += extent
    else:
        yield source, ()


def _range_of(part: CanonicalPart, checkpoint: CheckpointFiles) -> np.ndarray[Any, Any]:
    whole = checkpoint.bits(part if isinstance(part, str) else part.tensor)
    ranges = ranges_of(part)
    picked: np.ndarray[Any, Any] = whole[
        tuple(slice(*ranges.get(dim, (0, None))) for dim in range(whole.ndim))
    ]
    return picked
