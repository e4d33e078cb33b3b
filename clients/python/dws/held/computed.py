"""Finds tensors whose elements are computed from those of a weight, one by one: `1 + weight`, `-exp(weight)`, a weight
divided by the scale of its row or tile and rounded to FP8 or INT8.

A tensor counts as computed if its elements are in the order of the weight's, up or down, and equal where the weight's
are equal. For tensors that have nothing to do with each other that is a coincidence: of n elements in groups of equal
ones, of c1, c2, ... elements, one order of n! / (c1! c2! ...) is the weight's. A tensor whose coincidence is not rarer
than exp(-_SURPRISE) says nothing; neither does a row that rises or falls from its first element to its last, as
positions and tables of frequencies do.

A tensor is compared with weights of the same extents, in any order of the dimensions. Only the first elements of some of
the weight's rows are compared, so that the cost does not grow with the size of weights.
"""

from __future__ import annotations

import importlib
import itertools
import math
from typing import Any, Iterator, Mapping, NamedTuple, Optional

from dws.held.copies import as_bits, has_bits, rows_at

_ROWS = 4
_ROW_ELEMENTS = 32  # the smallest tile that has a scale of its own
_SURPRISE = 25.0
# Dimensions that are tried in each order; tensors of more are compared as they are.
_DIMS = 3
# Weights that are compared together.
_TOGETHER = 4096


class _Sample(NamedTuple):
    """Rows of a tensor in one order of its dimensions: those at the places of a weight's."""

    name: str
    rows: Any


def find_computed(weights: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, str]:
    """Those of `tensors` that are computed from a weight.

    Args:
      weights, tensors: of torch, by name; their memory is not shared.

    Returns:
      name -> the weight's name.
    """
    torch: Any = importlib.import_module("torch")
    found: dict[str, str] = {}
    with torch.no_grad():
        # By device and extents, as a weight has them.
        sought: dict[tuple[Any, tuple[int, ...]], list[_Sample]] = {}
        for name, tensor in tensors.items():
            for extents, sample in _samples(name, tensor):
                sought.setdefault((tensor.device, extents), []).append(sample)
        if not sought:
            return found
        alike: dict[tuple[Any, tuple[int, ...]], list[_Sample]] = {}
        for name, weight in weights.items():
            place = (weight.device, tuple(weight.squeeze().shape))
            rows = _rows(weight.detach().squeeze()) if place in sought and has_bits(weight) else None
            if rows is not None:
                alike.setdefault(place, []).append(_Sample(name, rows))
        for place, samples in alike.items():
            for begin in range(0, len(samples), _TOGETHER):
                some = samples[begin : begin + _TOGETHER]
                together = torch.stack([sample.rows for sample in some])
                for sample in sought[place]:
                    hits = _in_order(together, sample.rows).nonzero().reshape(-1).tolist()
                    if hits and sample.name not in found:
                        found[sample.name] = some[hits[0]].name
    return found


def _samples(name: str, tensor: Any) -> Iterator[tuple[tuple[int, ...], _Sample]]:
    """The tensor's rows in each order of its dimensions, with its extents in that order."""
    whole = tensor.detach().squeeze()
    if not has_bits(whole) or not whole.dim() or not whole.numel():
        return
    orders = itertools.permutations(range(whole.dim())) if whole.dim() <= _DIMS else [tuple(range(whole.dim()))]
    for order in orders:
        turned = whole.permute(order)
        rows = _rows(turned)
        if rows is None:
            return
        steps = rows.diff()
        telling = rows[~((steps >= 0).all(-1) | (steps <= 0).all(-1))]
        if sum(map(_surprise, telling.tolist())) >= _SURPRISE:
            yield tuple(turned.shape), _Sample(name, rows)


def _rows(whole: Any) -> Optional[Any]:
    """The first elements of some rows, as a matrix that compares exactly; None: torch has no numbers of this type."""
    torch: Any = importlib.import_module("torch")
    matrix = whole.unsqueeze(0) if whole.dim() == 1 else whole
    count = math.prod(matrix.shape[:-1])
    picked = sorted({number * count // _ROWS for number in range(_ROWS)})
    try:
        return rows_at(as_bits(matrix)[..., :_ROW_ELEMENTS], picked).view(whole.dtype).to(torch.float64)
    except RuntimeError:  # several numbers in one element, for example
        return None


def _surprise(row: list[float]) -> float:
    """How rare it is that a row is in the order of another by chance: minus the logarithm."""
    groups = [row.count(value) for value in set(row)]
    return math.lgamma(len(row) + 1) - sum(math.lgamma(count + 1) for count in groups)


def _in_order(weights: Any, rows: Any) -> Any:
    """Returns for each weight whether `rows` are in its order.

    Args:
      weights: a matrix of rows for each.
    """
    order = weights.argsort(-1)
    steps = weights.gather(-1, order).diff()
    own = rows.expand_as(weights).gather(-1, order).diff()
    # Equal ones of the weight may be in any order.
    as_equal = ((steps != 0) | (own == 0)).all(-1).all(-1)
    return as_equal & ((own >= 0).all(-1).all(-1) | (own <= 0).all(-1).all(-1))
