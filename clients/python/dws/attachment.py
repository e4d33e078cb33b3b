"""An engine's weights in shared memory: made from what the engine has, and described to the
receiver."""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional

from dws._proto import engine_pb2
from dws.arrays import is_torch, raw_bits, spec_of
from dws.errors import LayoutError
from dws.mapping import Mapped, Placed, check_mapping, parameter_views, source_of
from dws.memory import SharedRegion, ViewKind, aligned
from dws.torch_module import bind, is_module, named_tensors


class Attachment:
    """One region with a row-major place for each mapped tensor. The target changes only in `bind`.

    Attributes:
      region: the memory, with the target's values copied in.
      views: name -> view of it, torch or numpy as the target's tensor is.
      request: an AttachRequest with everything about memory and mapping filled in.
    """

    def __init__(self, target: Any, mapping: Optional[Mapped]) -> None:
        """Args:
          target: a torch module, or name -> numpy array or torch tensor.
          mapping: as for Engine.attach.

        Raises:
          LayoutError, DTypeError: a tensor or its mapping cannot be attached, by name.
        """
        tensors = _tensors_of(target)
        check_mapping(mapping, list(tensors))
        chosen = {n: t for n, t in tensors.items() if source_of(n, mapping) is not None}
        if not chosen:
            raise LayoutError("nothing to attach: the target has no mapped tensors")
        self._target = target
        placed, size_bytes = _place(chosen)
        self.region = SharedRegion("dws-engine", size_bytes)
        self.views: dict[str, Any] = {}
        self.request = engine_pb2.AttachRequest(
            region_bytes=[size_bytes], client=f"dws-python, pid {os.getpid()}"
        )
        for item in placed:
            tensor = chosen[item.name]
            kind: ViewKind = "torch" if is_torch(tensor) else "numpy"
            view = self.region.view(kind, item.dtype, item.shape, item.offset_bytes)
            self.views[item.name] = view
            bits = raw_bits(item.name, tensor, item.dtype)
            self.region.raw(item.dtype, bits.size, item.offset_bytes)[:] = bits.reshape(-1)
            self.request.views.extend(parameter_views(item, source_of(item.name, mapping)))

    def bind(self) -> None:
        """Puts a module's parameters and buffers into the region; nothing for a dict."""
        if is_module(self._target):
            bind(self._target, self.views)


def _tensors_of(target: Any) -> dict[str, Any]:
    if is_module(target):
        return named_tensors(target)
    if isinstance(target, Mapping):
        return dict(target)
    raise LayoutError(f"attach() got a {type(target).__name__}, expected a torch module or a dict")


def _place(tensors: Mapping[str, Any]) -> tuple[list[Placed], int]:
    """Each tensor's place in one region, and the region's size in bytes."""
    placed, end = [], 0
    for name, tensor in tensors.items():
        spec = spec_of(name, tensor)
        placed.append(Placed(name, spec.dtype, spec.shape, 0, end))
        end = aligned(end + spec.size_bytes)
    return placed, max(end, 1)
