"""A torch module's tensors under the names of its checkpoint, as views of its own memory."""

from __future__ import annotations

import math
from typing import Any, Iterator, Mapping, Optional, Sequence

from dws.arrays import is_torch, require_plain, storage_of
from dws.declare.conversion import converted
from dws.declare.experts import pieces_of
from dws.declare.pieces import Piece
from dws.device_tensor import row_major_strides
from dws.errors import LayoutError
from dws.torch_module import bind, holders, is_module, named_tensors


class ModuleTensors(Mapping[str, Any]):
    """Canonical name -> tensor: a view of each part of a stacked tensor, every other tensor itself.

    Nothing is copied. Views are made again when a parameter has moved (`.to()`, `.data =`).

    Lifecycle: as the module's, which keeps its names and shapes. One thread at a time.
    """

    def __init__(self, module: Any, pieces: Mapping[str, Sequence[Piece]]) -> None:
        """Use from_module.

        Args:
          pieces: in each of its tensors, in the order of their elements.

        Raises:
          LayoutError: as places_of.
        """
        self.module = module
        self._shapes = {name: tuple(t.shape) for name, t in named_tensors(module).items()}
        self._holders = holders(module)
        self._pieces = pieces
        self._places = places_of(pieces)
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
            view = piece.view(tensor)
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
            if pieces and pieces[0].index:
                whole[source] = self._joined(source, views)
            elif pieces and pieces[0].name in views:
                whole[source] = views[pieces[0].name]
        self._views.clear()  # they would keep the old memory
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

    For a model of transformers 5 they are what its save_pretrained would write, by transformers' own conversion: one tensor
    for each expert if the checkpoint has one, renamed ones under their names there, tied ones once. For other modules, the
    experts of the families in dws.declare.experts are known; all other names are those of the module.

    Args:
      module: a torch.nn.Module: the whole model, not a wrapper that adds to the names.
      model_type: how its experts are laid out, by dws.declare.experts and not by transformers; by default that of module.config.

    Raises:
      LayoutError: not a module; or the checkpoint has something else than parts of the module's tensors, or the layout of a
        tensor of experts is unknown (the message names it).
    """
    if not is_module(module):
        raise LayoutError(f"from_module got a {type(module).__name__}, expected a torch module")
    tensors = named_tensors(module)
    for name, tensor in tensors.items():
        require_plain(name, tensor, values=False)
    pieces = converted(module, tensors) if model_type is None else {}
    if model_type is None:
        model_type = getattr(getattr(module, "config", None), "model_type", None)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name not in pieces}
    return ModuleTensors(module, {**pieces, **pieces_of(shapes, model_type)})


def places_of(pieces: Mapping[str, Sequence[Piece]]) -> dict[str, tuple[str, Piece]]:
    """By canonical name, the module's tensor and the piece of it.

    Args:
      pieces: in each of a module's tensors.

    Raises:
      LayoutError: two have one name.
    """
    found: dict[str, tuple[str, Piece]] = {}
    for source, of_source in pieces.items():
        for piece in of_source:
            if piece.name in found:
                raise LayoutError(
                    f"'{found[piece.name][0]}' and '{source}' are both '{piece.name}' in a checkpoint"
                )
            found[piece.name] = (source, piece)
    return found
