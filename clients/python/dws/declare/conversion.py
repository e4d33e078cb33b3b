"""The names and pieces that a model of transformers 5 has in its checkpoint, by transformers' own conversion.

save_pretrained converts a model's tensors to those of the checkpoint with revert_weight_conversion, which knows the
renamings and operations of all families. Here the same function runs on a skeleton of the model:

1. Its tensors are on the meta device, so that nothing is computed, whatever the size. Copies that keep the elements and
   their order (contiguous, clone) are left out.
2. What comes out is then a view of a tensor that went in, and offset and strides say which box of it; or it was computed.
   All that was computed, changed in place or made by an operation that is not in OPERATIONS is refused.
3. Each element of a tensor must be in one piece, once.

Nothing of transformers is imported: a model of it can only be there if transformers is.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Callable, Mapping, Optional

from dws.declare.pieces import Piece, cover, index_of_view
from dws.declare.skeleton import SavedNames, pretrained_class, skeleton_of, tensors_of
from dws.dtypes import loaded_torch
from dws.errors import LayoutError
from dws.torch_module import canonical_name

# The operations of transformers 5.19 that look at nothing but shapes and configs, so that what they do on the meta device
# is what they do with values. That says nothing about whether their results are views.
OPERATIONS = frozenset(
    (
        "Chunk",
        "Concatenate",
        "Conv3dToLinear",
        "ErnieFuseAndSplitTextVisionExperts",
        "ErnieSplitAndDecoupleTextVisionExperts",
        "Interleave",
        "LinearToConv3d",
        "MergeModulelist",
        "PermuteForRope",
        "SplitModulelist",
        "Transpose",
    )
)
Revert = Callable[[Any, dict[str, Any]], dict[str, Any]]


def converted(module: Any, tensors: Mapping[str, Any]) -> dict[str, list[Piece]]:
    """The pieces of each tensor in a model of transformers, in the order of their elements; none for a tensor that
    save_pretrained does not save. Nothing for tensors elsewhere, or if this transformers has no such conversion.

    Args:
      module: a model, or a module that has some, whose names then begin with that of the model in it.
      tensors: the module's, by its own names; only shapes and types are used.

    Raises:
      LayoutError: the checkpoint has something else than boxes of a tensor; with its name, the operation of transformers
        that makes it, and the model_type.
    """
    base = pretrained_class()
    revert = getattr(
        sys.modules.get("transformers.core_model_loading"), "revert_weight_conversion", None
    )
    if base is None or revert is None:
        return {}
    found: dict[str, list[Piece]] = {}
    roots: list[str] = []
    for path, part in module.named_modules():
        prefix = canonical_name(f"{path}.") if path else ""
        if not isinstance(part, base) or any(prefix.startswith(root) for root in roots):
            continue
        roots.append(prefix)
        names = {own: canonical_name(own) for own in tensors}
        mine = {
            own: name[len(prefix) :] for own, name in names.items() if name.startswith(prefix)
        }
        pieces = _Conversion(part, revert, {name: tensors[own] for own, name in mine.items()})
        for own, name in mine.items():
            found[own] = [
                dataclasses.replace(piece, name=prefix + piece.name) for piece in pieces.of(name)
            ]
    return found


class _Conversion:
    """Lifecycle: one conversion of one model."""

    def __init__(self, model: Any, revert: Revert, tensors: Mapping[str, Any]) -> None:
        """Args:
          model: of transformers.
          tensors: by name without wrappers; see converted.

        Raises:
          LayoutError: as converted.
        """
        torch = loaded_torch()
        assert torch is not None
        self._model_type = getattr(getattr(model, "config", None), "model_type", None)
        saved = SavedNames(model)
        self._saved = {name: saved.of(name) for name in tensors}
        buffers = {canonical_name(name) for name, _ in model.named_buffers()}
        metas = {
            kept: torch.empty(tuple(tensors[name].shape), dtype=tensors[name].dtype, device="meta")
            for name, kept in self._saved.items()
            if kept is not None
        }
        kept_buffers = {kept for name, kept in self._saved.items() if kept and name in buffers}
        skeleton = skeleton_of(model, metas, kept_buffers)
        self._sources = dict(tensors_of(skeleton))
        self._names = {id(tensor): name for name, tensor in self._sources.items()}
        self._made: dict[int, tuple[str, Any]] = {}  # by tensor: the operation that made it
        self._pieces: dict[str, list[tuple[int, Piece]]] = {name: [] for name in self._sources}
        self._take(self._run(revert, skeleton))

    def of(self, name: str) -> list[Piece]:
        kept = self._saved[name]
        return [] if kept is None else [piece for _, piece in self._pieces[kept]]

    def _run(self, revert: Revert, skeleton: Any) -> dict[str, Any]:
        torch: Any = loaded_torch()
        mode: Any = torch.overrides.TorchFunctionMode
        unknown: list[tuple[str, str]] = []

        class Watch(mode):  # type: ignore[misc]
            """Sees all calls of torch, and which operation of transformers makes them."""

            def __torch_function__(
                watch, func: Any, types: Any, args: Any = (), given: Optional[Any] = None
            ) -> Any:
                operation = _operation_at_work()
                if operation is not None and operation not in OPERATIONS:
                    unknown.append((operation, self._source_in(args)))
                if getattr(func, "__name__", "") in ("contiguous", "clone") and args:
                    return args[0]
                result = func(*args, **(given or {}))
                for each in result if isinstance(result, (tuple, list)) else [result]:
                    if isinstance(each, torch.Tensor):
                        root = _root(each)
                        self._made.setdefault(id(root), (operation or str(func), root))
                return result

        failure = None
        try:
            with Watch(), torch.no_grad():
                result = revert(skeleton, dict(self._sources))
        except Exception as error:
            failure = error
        if unknown:
            operation, source = unknown[0]
            raise LayoutError(
                f"{source}: dws.declare does not know {operation}, an operation of transformers' conversion for "
                f"model_type {self._model_type!r} (known: {', '.join(sorted(OPERATIONS))}): {_INSTEAD}"
            )
        if failure is not None:
            raise LayoutError(
                f"transformers cannot convert a model of model_type {self._model_type!r} to its checkpoint: "
                f"{type(failure).__name__}: {failure}: {_INSTEAD}"
            ) from failure
        return result

    def _take(self, result: Mapping[str, Any]) -> None:
        """Finds each tensor of the checkpoint in the module's.

        Raises:
          LayoutError: as converted.
        """
        for name, view in result.items():
            source = self._names.get(id(_root(view)))
            if source is None:
                operation, _ = self._made.get(id(_root(view)), (type(view).__name__, None))
                raise self._refused(f"'{name}'", f"makes it by {operation}")
            whole = self._sources[source]
            index = None
            if view.dtype == whole.dtype and not whole._version:
                index = self._index(whole, view)
            if index is None:
                at = f"{view.dtype} {list(view.shape)} with strides {list(view.stride())}"
                raise self._refused(
                    f"'{name}'", f"makes {at} of '{source}' {whole.dtype} {list(whole.shape)}"
                )
            self._pieces[source].append((view.storage_offset(), Piece(name, index)))
        for source, pieces in self._pieces.items():
            pieces.sort(key=lambda each: each[0])
            whole = self._sources[source]
            in_one = len(pieces) == 1 and not pieces[0][1].index
            if not in_one and not cover(whole.shape, (piece for _, piece in pieces)):
                raise self._refused(
                    f"'{source}' {list(whole.shape)}",
                    f"saves {len(pieces)} parts of it, {[piece.name for _, piece in pieces[:2]]}",
                )

    @staticmethod
    def _index(whole: Any, view: Any) -> Optional[tuple[Any, ...]]:
        if view is whole or not whole.numel():
            return () if view.shape == whole.shape else None
        return index_of_view(
            tuple(whole.shape), tuple(view.shape), view.stride(), view.storage_offset()
        )

    def _source_in(self, args: Any) -> str:
        """The name of the first of the model's tensors in the arguments of a call."""
        flat = [
            each for arg in args for each in (arg if isinstance(arg, (list, tuple)) else [arg])
        ]
        names = [self._names.get(id(_root(each))) for each in flat]
        return next((f"'{name}'" for name in names if name), "a tensor")

    def _refused(self, what: str, how: str) -> LayoutError:
        return LayoutError(
            f"{what}: transformers' conversion to the checkpoint of model_type {self._model_type!r} {how}; expected that each "
            f"element of a tensor of the module is in one box of it, unchanged and in its order: {_INSTEAD}"
        )


_INSTEAD = "register a dict of views under a checkpoint's names"


def _root(tensor: Any) -> Any:
    """The tensor that `tensor` is a view of."""
    base = getattr(tensor, "_base", None)
    return tensor if base is None else base


def _operation_at_work() -> Optional[str]:
    """The class of transformers whose `convert` runs now; None: none of those that compute."""
    frame = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if frame.f_code.co_name == "convert" and hasattr(type(owner), "reverse_op"):
            return type(owner).__name__
        frame = frame.f_back  # type: ignore[assignment]
    return None
