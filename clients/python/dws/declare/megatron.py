"""What a rank of a Megatron trainer has of its checkpoint's tensors."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from dws.declare.fused import Canonical, Piece
from dws.declare.megatron_rules import Parallel, Rules
from dws.declare.model_shape import ModelShape
from dws.errors import LayoutError
from dws.layout import Range, elements_in
from dws.torch_module import is_module, named_tensors

# A module, or its tensors by name.
Chunk = Union[Mapping[str, Any], Any]


@dataclasses.dataclass(frozen=True)
class Source:
    """A piece, and the trainer's tensor that holds it: its chunk of the model, and its name there.
    """

    chunk: int
    name: str
    piece: Piece


@dataclasses.dataclass(frozen=True)
class Held:
    """What this process has of a canonical tensor: [begin, end) of each dimension."""

    tensor: Canonical
    sources: tuple[Source, ...]
    ranges: tuple[Range, ...]


class MegatronTensors:
    """Pass it to Publisher.register. Nothing is copied here.

    Lifecycle: that of the chunks, whose names and shapes must not change. One thread at a time.

    Attributes:
      held: by canonical name.
      model: the contents of the config.
    """

    def __init__(
        self, chunks: Sequence[Chunk], model: ModelShape, parallel: Parallel, first: Sequence[int]
    ) -> None:
        """Use from_megatron.

        Raises:
          LayoutError: as from_megatron.
        """
        self.model = model
        self._chunks = chunks
        sources: dict[Canonical, dict[tuple[range, ...], Source]] = {}
        self._shapes = []
        for number, (chunk, first_layer) in enumerate(zip(chunks, first)):
            rules = Rules(model, parallel, first_layer)
            shapes = {name: tuple(tensor.shape) for name, tensor in _tensors(chunk).items()}
            self._shapes.append(shapes)
            for name, shape in shapes.items():
                for piece in rules.fused(_plain(name), shape).pieces:
                    # If a tensor has an alias, the first of the two is read.
                    sources.setdefault(piece.tensor, {}).setdefault(
                        piece.place, Source(number, name, piece)
                    )
        self.held = {
            tensor.name: _held(tensor, tuple(each.values())) for tensor, each in sources.items()
        }

    def tensors(self) -> list[Mapping[str, Any]]:
        """The trainer's tensors as they are now, for each chunk.

        Raises:
          LayoutError: there are others, or they have other shapes, than at first.
        """
        found = [_tensors(chunk) for chunk in self._chunks]
        for shapes, now in zip(self._shapes, found):
            for name in sorted({*shapes, *now}):
                shape = tuple(now[name].shape) if name in now else None
                if shapes.get(name) != shape:
                    raise LayoutError(
                        f"'{name}' had the shape {shapes.get(name)} when it was declared, and has {shape} now: call "
                        "from_megatron again"
                    )
        return found


def from_megatron(
    chunks: Union[Chunk, Sequence[Chunk]],
    config: Any,
    parallel: Parallel,
    first_layers: Optional[Sequence[int]] = None,
) -> MegatronTensors:
    """Returns the parts of a Hugging Face checkpoint's tensors that this process has, for
    dws.trainers.publisher.Publisher.

    Args:
      chunks: what Megatron's `model` is: a GPTModel, or with a virtual pipeline several, also in their wrappers; or of
        each the tensors by name.
      config: of the checkpoint; a mapping, as of config.json, or an object of transformers.
      parallel: the axes, and where this process is.
      first_layers: for each chunk, the number in the whole model of its first layer. By default what the module says
        (layer_number), or for tensors by name an even pipeline.

    Raises:
      LayoutError: a family, a parameter or a shape is not known; the message names it.
    """
    if is_module(chunks) or isinstance(chunks, Mapping):
        chunks = [chunks]
    for chunk in chunks:
        if not is_module(chunk) and not isinstance(chunk, Mapping):
            raise LayoutError(
                f"expected torch modules or tensors by name, found a {type(chunk).__name__}"
            )
    model = ModelShape.of(config)
    if first_layers is None:
        first_layers = [
            _first_layer(chunk, number, len(chunks), model, parallel)
            for number, chunk in enumerate(chunks)
        ]
    if len(first_layers) != len(chunks):
        raise LayoutError(f"{len(first_layers)} first_layers= for {len(chunks)} chunks")
    return MegatronTensors(list(chunks), model, parallel, first_layers)


def _first_layer(chunk: Chunk, number: int, chunks: int, model: ModelShape, at: Parallel) -> int:
    """The chunks of an even pipeline follow each other rank by rank, then chunk by chunk.

    Raises:
      LayoutError: it does not say so, and the pipeline cannot be even.
    """
    if not isinstance(chunk, Mapping):
        layers = [
            module.layer_number
            for name, module in chunk.named_modules()
            if _plain(name).startswith("decoder.layers.") and hasattr(module, "layer_number")
        ]
        return min(layers, default=1) - 1
    each, left = divmod(model.layers, chunks * at.pp)
    if left:
        raise LayoutError(
            f"{model.layers} layers cannot be cut evenly for pp={at.pp} with {chunks} chunks a rank: pass first_layers="
        )
    return (number * at.pp + at.pp_rank) * each


def _tensors(chunk: Chunk) -> Mapping[str, Any]:
    return chunk if isinstance(chunk, Mapping) else named_tensors(chunk)


def _plain(name: str) -> str:
    """Without the names of wrappers (DistributedDataParallel, Float16Module)."""
    while name.startswith("module."):
        name = name[len("module.") :]
    return name


def _held(tensor: Canonical, sources: Iterable[Source]) -> Held:
    """Raises LayoutError: the pieces are not one range of each dimension."""
    sources = tuple(sources)
    places = [source.piece.place for source in sources]
    box = tuple(
        (min(p[dim][0] for p in places), max(p[dim][-1] for p in places) + 1)
        for dim in range(len(tensor.shape))
    )
    names = ", ".join(sorted({f"'{source.name}'" for source in sources})[:4])
    elements = sum(math.prod(len(each) for each in place) for place in places)
    if elements != elements_in(box):
        raise LayoutError(
            f"'{tensor.name}' {list(tensor.shape)}: this process has {elements} elements in {list(box)} of it (in {names}), expected "
            "all in that box, once. Pass all parameters of the rank"
        )
    return Held(tensor, sources, box)
