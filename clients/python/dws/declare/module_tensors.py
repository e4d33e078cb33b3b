"""A torch module's tensors under the names of its checkpoint, as views of its own memory."""

from __future__ import annotations

import math
from typing import Any, Iterator, Mapping, Optional

from dws.arrays import is_torch, require_plain, storage_of
from dws.declare.experts import Piece, pieces_of
from dws.device_tensor import row_major_strides
from dws.errors import LayoutError
from dws.torch_module import bind, holders, is_module, named_tensors


class ModuleTensors(Mapping[str, Any]):
    """Canonical name -> tensor: a view of each part of a stacked tensor, every other tensor itself.

    Nothing is copied. Views are made again when a parameter has moved (`.to()`, `.data =`).

    Lifecycle: as the module's, which keeps its names and shapes. One thread at a time.
    """

    def __init__(self, module: Any, model_type: Optional[str]) -> None:
        """Use from_module.

        Raises:
          LayoutError: as from_module.
        """
        self.module = module
        for name, tensor in named_tensors(module).items():
            require_plain(name, tensor, values=False)
        self._shapes = {name: tuple(t.shape) for name, t in named_tensors(module).items()}
        self._holders = holders(module)
        self._pieces = pieces_of(self._shapes, model_type)
        self._places: dict[str, tuple[str, Piece]] = {}
        for source, pieces in self._pieces.items():
            for piece in pieces:
                if piece.name in self._places:
                    raise LayoutError(
                        f"'{self._places[piece.name][0]}' and '{source}' are both '{piece.name}' "
                        "in a checkpoint"
                    )
                self._places[piece.name] = (source, piece)
        self._views: dict[str, tuple[Any, int, Any]] = {}

    def __getitem__(self, name: str) -> Any:
        """Raises:
        LayoutError: the module's tensor is gone, or has another shape than before.
        """
        source, piece = self._places[name]
        holder, key = self._holders[source]
        tensor = holder.get(key)
        if tensor is None or tuple(tensor.shape) != self._shapes[source]:
            raise LayoutError(
                f"the module's '{source}' was {list(self._shapes[source])} and is now "
                f"{'gone' if tensor is None else list(tensor.shape)}: call from_module again"
            )
        if not piece.index:
            return tensor
        if not tensor.is_meta and not hasattr(tensor, "placements"):  # these have shapes, for a ring
            require_plain(source, tensor)
        known, address, view = self._views.get(name, (None, 0, None))
        if known is not tensor or address != tensor.data_ptr():
            view = tensor.detach()[piece.index]
            self._views[name] = (tensor, tensor.data_ptr(), view)
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def bind(self, views: Mapping[str, Any]) -> None:
        """Makes the module use the memory of `views`, as dws.bind does, stacked tensors included.

        Args:
          views: what Trainer.register has returned for this object, of a rank that owns it whole.

        Raises:
          LayoutError: the parts of a stacked tensor do not follow each other in memory as they do
            in the module; or as dws.bind.
        """
        whole = {}
        for source, pieces in self._pieces.items():
            if pieces[0].index:
                whole[source] = self._joined(source, views)
            elif pieces[0].name in views:
                whole[source] = views[pieces[0].name]
        bind(self.module, whole)

    def _joined(self, source: str, views: Mapping[str, Any]) -> Any:
        """One view over all parts of a stacked tensor."""
        pieces, shape = self._pieces[source], self._shapes[source]
        first: Any = views.get(pieces[0].name)
        if not is_torch(first):
            raise LayoutError(
                f"views has no torch tensor '{pieces[0].name}', a part of the module's '{source}': "
                "pass all that register() returned"
            )
        memory = storage_of(first)
        end = first.data_ptr() + math.prod(shape) * first.element_size()
        whole: Any = None
        if end <= memory.data_ptr() + memory.nbytes():
            whole = first.as_strided(shape, row_major_strides(shape))
        for piece in pieces:
            view = views.get(piece.name)
            if whole is None or view is None or view.data_ptr() != whole[piece.index].data_ptr():
                raise LayoutError(
                    f"the view of '{piece.name}' does not lie where the module's '{source}' needs it: "
                    "register what from_module returned, on a rank that owns it whole"
                )
        return whole


def from_module(module: Any, model_type: Optional[str] = None) -> ModuleTensors:
    """A module's parameters and persistent buffers under the names of its Hugging Face checkpoint.

    Layers whose experts are stacked in one tensor, as in transformers 5, give a tensor for each
    expert if checkpoints have one, and stay stacked if checkpoints do (gpt_oss);
    dws.declare.experts has the families. All other names are those of the module.

    Args:
      module: a torch.nn.Module: the whole model, not a wrapper that adds to the names.
      model_type: how its experts are laid out; by default that of module.config.

    Raises:
      LayoutError: not a module; or the layout of a tensor of experts is unknown (the message names
        it).
    """
    if not is_module(module):
        raise LayoutError(f"from_module got a {type(module).__name__}, expected a torch module")
    if model_type is None:
        model_type = getattr(getattr(module, "config", None), "model_type", None)
    return ModuleTensors(module, model_type)
