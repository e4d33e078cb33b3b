"""The mapping of any model, from its own load_weights: which element of which canonical tensor it
copies where.

    captured = capture(model, {"lm_head.weight": Canonical((1000, 64), DType.BF16), ...})
    captured.pieces["model.layers.0.self_attn.qkv_proj.weight"]     # a tuple of Pieces

load_weights runs once, on the live model, over tensors of the checkpoint's names, shapes and types
that have no storage (torch's meta device). Views of them and of the parameters are made as always;
each copy is recorded, and not done.

On the live model and not on a copy of it, because a copy would not be exact: torch copies parameters
without what engines attach to them (weight_loader, shard dimensions), and building a second model
registers its layers in the engine twice. The live model is not changed, also if load_weights raises:
  * every operation of torch that writes into memory that was there before is recorded or refused,
    and never done;
  * attributes of modules that load_weights sets are put back; parameters, buffers and other tensors
    among them are refused, because a commit would not change what is in their place;
  * operations on other threads are not seen. There a copy from a tensor without storage fails, and
    with it the capture.

What is recorded: views of any kind (narrow, chunk, split, transpose, view, index), copies between
tensors of one type, clone, contiguous, cat, stack, index_select, constant_pad_nd, and buffers that
load_weights makes and fills; constants are recorded as such. Anything else that computes is
refused for the parameter that it ends in, with the names of the canonical tensors and the operation.

A checkpoint whose type the engine converts is captured as of the type that the engine keeps: a trainer
publishes that one, and the receiver compares it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

from dws.dtypes import DType
from dws.errors import LayoutError
from dws.plugins.canonical import Canonical
from dws.plugins.pieces import Piece, pieces_of
from dws.plugins.recorder import Recorder, intercepting
from dws.plugins.recording import Memory, Refused, address
from dws.plugins.strided import IrregularError
from dws.torch_module import named_tensors

@dataclasses.dataclass(frozen=True)
class Captured:
    """What load_weights does to each parameter and persistent buffer.

    Attributes:
      pieces: every element that is copied, once. Elements in none of the pieces are set to a
        constant, or stay as they are.
      refused: why a tensor has no pieces, although load_weights writes into it.
      untouched: tensors into which load_weights writes nothing.
      padded: tensors of which some elements stay as they are, with the number of these.
    """

    pieces: Mapping[str, tuple[Piece, ...]]
    refused: Mapping[str, str]
    untouched: frozenset[str]
    padded: Mapping[str, int]


Load = Callable[[Iterable[tuple[str, Any]]], Any]


def capture(
    model: Any, canonical: Mapping[str, Canonical], load: Optional[Load] = None
) -> Captured:
    """Args:
      model: a torch module with its parameters, as the engine has it; not changed.
      canonical: the tensors of a checkpoint, in the order in which load_weights gets them.
      load: model.load_weights by default.

    Raises:
      LayoutError: the model has no load_weights; or load_weights failed, replaced a parameter, or
        wrote into something other than the model's parameters and buffers.
    """
    load = load or getattr(model, "load_weights", None)
    if load is None:
        raise LayoutError(f"{type(model).__name__} has no load_weights: its loading cannot be captured")
    found, kept = _capture(model, canonical, load)
    converted = {
        name: Canonical(canonical[name].shape, dtype)
        for name, dtype in kept.items()
        if dtype is not canonical[name].dtype
    }
    if found.refused and converted:
        found, _ = _capture(model, {**canonical, **converted}, load)
    return found


def _capture(
    model: Any, canonical: Mapping[str, Canonical], load: Load
) -> tuple[Captured, dict[str, DType]]:
    """Also returns in which type the model keeps each canonical tensor."""
    torch: Any = importlib.import_module("torch")
    recorder = Recorder(torch)
    tensors = named_tensors(model)
    leaves: dict[str, Any] = {}
    last = "(none)"

    def weights() -> Iterator[tuple[str, Any]]:
        nonlocal last
        for name, leaf in leaves.items():
            last = name
            yield name, leaf

    try:
        memories = {name: recorder.live(f"parameter '{name}'", t) for name, t in tensors.items()}
        for name, buffer in model.named_buffers():
            if name not in tensors and not recorder.memories.find(buffer):
                recorder.live(f"buffer '{name}'", buffer).can_be_mapped = False
        leaves.update((name, recorder.leaf(name, entry)) for name, entry in canonical.items())
        with _unchanged(model), torch.no_grad(), intercepting(recorder.operation):
            load(weights())
    except Exception as error:
        raise LayoutError(
            f"load_weights of {type(model).__name__} over tensors without storage failed at "
            f"canonical tensor '{last}': {type(error).__name__}: {error}"
        ) from error
    finally:
        # The recorder is garbage of a cycle: until it is collected, its views of the weights would count as somebody's.
        recorder.memories.clear()
    kept = {name: DType.of(dtype) for name, dtype in recorder.kept_as.items()}
    return _result(tensors, memories, canonical), kept


def _result(
    tensors: Mapping[str, Any], memories: Mapping[str, Memory], canonical: Mapping[str, Canonical]
) -> Captured:
    pieces, refused, untouched, padded = {}, {}, set(), {}
    shapes = {name: entry.shape for name, entry in canonical.items()}
    for name, memory in memories.items():
        if memory.is_untouched:
            untouched.add(name)
            continue
        shape, strides = tuple(tensors[name].shape), tuple(tensors[name].stride())
        try:
            pieces[name] = pieces_of(shape, strides, memory.complete(), shapes)
            if memory.unwritten:
                padded[name] = memory.unwritten
        except (Refused, IrregularError) as error:
            refused[name] = f"load_weights {error}"
    return Captured(pieces, refused, frozenset(untouched), padded)


@contextlib.contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Puts back what was replaced in the model: attributes of its modules, and their tensors.

    Raises:
      Refused: a parameter, buffer or other tensor was replaced or added, at the end of a block that
        did not raise.
    """
    inner = ("_parameters", "_buffers", "_modules")
    before = []
    for module in model.modules():
        held = vars(module)
        before.append((held, dict(held), [(held[key], dict(held[key])) for key in inner]))
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    same_memory = {name: tensor.detach() for name, tensor in tensors.items()}
    attributes = {name: dict(vars(tensor)) for name, tensor in tensors.items()}
    replaced: list[str] = []
    try:
        yield
    finally:
        now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        replaced += [name for name, tensor in tensors.items() if now.get(name) is not tensor]
        replaced += [name for name in now if name not in tensors]
        for held, values, tables in before:
            replaced += [
                key
                for key, value in held.items()
                if hasattr(value, "storage_offset") and values.get(key) is not value
            ]
            for table, entries in tables:
                table.clear()
                table.update(entries)
            held.clear()
            held.update(values)
        for name, tensor in tensors.items():
            vars(tensor).clear()
            vars(tensor).update(attributes[name])
            if not _is_set_to(tensor, same_memory[name]):
                tensor.data = same_memory[name]
                replaced.append(name)
    if replaced:
        raise Refused(
            f"it sets {sorted(set(replaced))[:5]} to other tensors: what an engine computes with "
            "later is not what was loaded"
        )


def _is_set_to(tensor: Any, other: Any) -> bool:
    if tensor.device.type != "meta" or other.device.type != "meta":
        return bool(tensor.device == other.device and tensor.is_set_to(other))
    same = tensor.shape == other.shape and tensor.stride() == other.stride()
    return same and address(tensor) == address(other)
