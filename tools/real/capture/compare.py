"""Compares a rank's parameters, as the engine's own load_weights has loaded them, with what their mapping gathers from
the checkpoint: every element, also those that no piece writes, which have to be zero."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import numpy as np
import torch

from dws.plugins.agreed_mapping import Weights, agreed_mapping
from dws.plugins.canonical import Parallel
from dws.plugins.checkpoint import CheckpointFiles
from dws.plugins.pieces import Piece, pieces_of_source
from dws.torch_module import named_tensors


@dataclasses.dataclass
class Compared:
    """Attributes:
    how: the source of the mapping.
    mapped: parameters that were compared.
    left: parameters of the engine's own.
    tensors: the checkpoint's tensors of which this rank has something.
    wrong: what is not as it should be, in words.
    """

    how: str
    mapped: int = 0
    left: list[str] = dataclasses.field(default_factory=list)
    tensors: set[str] = dataclasses.field(default_factory=set)
    wrong: list[str] = dataclasses.field(default_factory=list)


def compare(model: Any, config: Any, rank: Parallel, folder: str) -> Compared:
    """Raises:
    LayoutError: the mapping is refused.
    """
    checkpoint = CheckpointFiles(folder)
    shapes = {name: entry.shape for name, entry in checkpoint.canonical().items()}
    agreed = agreed_mapping(model, config, rank, {}, Weights(folder))
    found = Compared(agreed.how)
    if "the table alone" in agreed.how:
        found.wrong.append(agreed.how)
    for name, tensor in named_tensors(model).items():
        source = agreed.mapping[name]
        if source is None:
            found.left.append(name)
            continue
        pieces = pieces_of_source(tuple(tensor.shape), source, shapes)
        found.mapped += 1
        found.tensors.update(piece.tensor for piece in pieces)
        if not torch.equal(tensor, _gathered(tensor, pieces, checkpoint)):
            found.wrong.append(f"'{name}' is not as load_weights has loaded it")
        if torch.equal(tensor, _gathered(tensor, _moved(pieces), checkpoint)):
            found.wrong.append(f"'{name}' is also right with its pieces in other places")
    return found


def _gathered(tensor: Any, pieces: Sequence[Piece], checkpoint: CheckpointFiles) -> Any:
    """The gathered tensor, in the type that the engine keeps and a trainer publishes."""
    made = torch.zeros_like(tensor)
    for piece in pieces:
        bits = checkpoint.bits(piece.tensor)[tuple(slice(*bounds) for bounds in piece.box)]
        signed = np.ascontiguousarray(bits).view(f"i{bits.itemsize}")
        box = torch.from_numpy(signed).view(checkpoint.canonical()[piece.tensor].dtype.torch)
        own = made[tuple(slice(*bounds) for bounds in piece.own)]
        own.copy_(box.reshape(own.shape))
    return made


def _moved(pieces: Sequence[Piece]) -> list[Piece]:
    """Gives each piece the source of the next piece of its shape, if there is another. Returns nothing for a single
    piece."""
    by_shape: dict[Any, list[Piece]] = {}
    for piece in pieces:
        by_shape.setdefault(tuple(end - begin for begin, end in piece.own), []).append(piece)
    moved = []
    for same in by_shape.values():
        for piece, other in zip(same, [*same[1:], same[0]]):
            moved.append(dataclasses.replace(other, own=piece.own))
    return moved if len(moved) > 1 else []
