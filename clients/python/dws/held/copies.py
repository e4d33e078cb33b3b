"""Finds tensors that have elements of a weight, in memory of their own.

A tensor counts as a copy if rows of it, along any of its dimensions, begin with elements that
follow each other in a row of a weight that is cast to the tensor's type, or if it has rows with
which a weight's rows begin. So casts, reshapes, slices, permutations of dimensions or rows, and
concatenations of several weights count as copies, and each of these with padding. Values decide,
not names:

  * a row of which fewer than four elements differ says nothing: zeros, ones, one scale;
  * neither does a run of integers with equal steps: positions, tables of experts;
  * runs of up to 64 elements are compared bit by bit, 16 in all, or all that a smaller tensor has.

A weight whose elements are all the same, such as a norm's ones before the training, has no such
run. Its copies cannot be told from other tensors of ones by their values; `constant_copies` finds
them by their place. `equal_copies` does the same for weights with few elements, or few different
ones.

The cost does not grow with the size of the weights: of a large weight only the first elements of
rows are read, and the first elements of parts of rows that are as wide as a compared tensor.
Everything is computed where the weights are, in pieces of some megabytes, but for short runs.
"""

from __future__ import annotations

import bisect
import importlib
import logging
import math
from typing import Any, Collection, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

_LOG = logging.getLogger(__name__)

# Number of elements that are searched for together, by element size; those after it are compared.
_WINDOW = {1: 8, 2: 4, 4: 4, 8: 4}
_WINDOW_MIN = 4
_RUN_ELEMENTS = 64
# Elements that have to be found of a tensor that has as many, and distinct ones in each run.
_FOUND_ELEMENTS = 16
_DISTINCT = 4
# Rows of a tensor that are checked, and elements of a row within which a copied run must begin.
_ROWS = 16
_HEAD_ELEMENTS = 256
# A weight of at most so many elements is searched at each place; of others, so many places in a row.
_SMALL_ELEMENTS = 1 << 16
_PLACES = 16
_PLACE_ELEMENTS_MIN = 64
# Windows that are computed together; and those at each place of small weights, after which these count as large.
_BATCH_WINDOWS = 1 << 18
_SMALL_WINDOWS = 1 << 23
# Limits of the tensors in which rows of weights are searched, and of the weights whose rows are: so
# many tensors with fewer elements.
_WIDE_ELEMENTS = 1 << 26
_NARROW = 1024
# A tensor of more elements is not compared as a whole.
_EQUAL_ELEMENTS = 1 << 22
# Places of a weight that are compared for one window.
_HITS = 64
_FACTOR = 0x1E3779B97F4A7C15


class _Run(NamedTuple):
    """Elements of a tensor that follow each other, on the host."""

    name: str
    content: Any


def find_copies(weights: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, str]:
    """Those of `tensors` that are copies of a weight.

    Args:
      weights, tensors: of torch, by name; their memory is not shared.

    Returns:
      name -> the weight's name.
    """
    torch: Any = importlib.import_module("torch")
    with torch.no_grad():
        runs = {name: found for name, tensor in tensors.items() if (found := list(_runs_of(name, tensor)))}
        widths = {int(extent) for name in runs for extent in tensors[name].shape}
        copies: dict[str, str] = {}
        for dtype in dict.fromkeys(tensors[name].dtype for name in runs):
            wanted = [run for name in runs if tensors[name].dtype is dtype for run in runs[name]]
            hits = _found(weights, dtype, wanted, widths)
            copies.update(_enough(hits, runs))
        # What has something else in front of a weight's rows.
        wide = [n for n in runs if n not in copies and tensors[n].dim() and tensors[n].numel() <= _WIDE_ELEMENTS]
        for dtype in dict.fromkeys(tensors[name].dtype for name in wide):
            alike = {name: tensors[name] for name in wide if tensors[name].dtype is dtype}
            copies.update(_with_narrow_rows(alike, dtype, weights))
        return copies


def _with_narrow_rows(tensors: Mapping[str, Any], dtype: Any, weights: Mapping[str, Any]) -> dict[str, str]:
    """As find_copies, of tensors of one type: those that have rows of a weight of narrower rows, at any place."""
    widest = max(int(tensor.shape[-1]) for tensor in tensors.values())
    narrow = [n for n, w in weights.items() if w.shape and w.shape[-1] < widest and _may_be_of(w, dtype)][:_NARROW]
    own = {name: _runs_in(name, weights[name], dtype) for name in narrow}
    hits: dict[str, list[tuple[str, _Run, int]]] = {}
    for hit in _found(tensors, dtype, [run for found in own.values() for run in found], set(), _WIDE_ELEMENTS):
        hits.setdefault(hit[0], []).append(hit)
    return {name: next(iter(found)) for name, each in hits.items() if (found := _enough(each, own))}


def _enough(hits: Iterable[tuple[str, _Run, int]], runs: Mapping[str, Sequence[_Run]]) -> dict[str, str]:
    """Returns the names of the runs of which too much was found for a coincidence, each with the
    place of its first hit.

    Args:
      hits: where, a run, and how many elements of it.
      runs: all runs that were searched for, by name.
    """
    elements: dict[str, dict[int, int]] = {}
    first: dict[str, str] = {}
    for where, run, count in hits:
        counts = elements.setdefault(run.name, {})
        counts[id(run)] = max(count, counts.get(id(run), 0))
        first.setdefault(run.name, where)
    return {
        name: first[name]
        for name, counts in elements.items()
        if sum(counts.values()) >= min(_FOUND_ELEMENTS, sum(run.content.numel() for run in runs[name]))
    }


def _runs_in(name: str, tensor: Any, dtype: Any) -> list[_Run]:
    """Runs of a tensor after a cast, if torch has that."""
    try:
        return list(_runs_of(name, tensor, dtype))
    except RuntimeError:
        return []


def _may_be_of(weight: Any, dtype: Any) -> bool:
    """Returns whether a tensor of this type may be a cast of the weight, or a view of its bits."""
    return _comparable(weight) and (_castable(weight, dtype) or _is_view(weight.dtype, dtype))


def _is_view(source: Any, dtype: Any) -> bool:
    """Returns whether elements go from one type to the other by their bits: integers and other
    types of one size."""
    torch: Any = importlib.import_module("torch")
    return not (source.is_floating_point and dtype.is_floating_point) and bool(
        torch.empty(0, dtype=source).element_size() == torch.empty(0, dtype=dtype).element_size()
    )


def _castable(weight: Any, dtype: Any) -> bool:
    return weight.dtype is dtype or bool(weight.dtype.is_floating_point and dtype.is_floating_point)


def _comparable(tensor: Any) -> bool:
    return tensor.numel() >= _WINDOW_MIN and has_bits(tensor)


def has_bits(tensor: Any) -> bool:
    torch: Any = importlib.import_module("torch")
    dtype = tensor.dtype
    return bool(
        dtype is not torch.bool
        and not dtype.is_complex
        and not tensor.is_quantized
        and tensor.element_size() in _WINDOW
        and tensor.device.type != "meta"
    )


def _as_rows(tensor: Any) -> Optional[Any]:
    """Returns the same elements, with rows of at least _WINDOW_MIN of them; None: it has none."""
    rows = tensor.detach().squeeze()
    if rows.dim() == 0 or rows.numel() < _WINDOW_MIN:
        return None
    if rows.shape[-1] < _WINDOW_MIN:
        if not rows.is_contiguous() and rows.numel() > _SMALL_ELEMENTS:
            return None
        rows = rows.reshape(-1)
    return rows.unsqueeze(0) if rows.dim() == 1 else rows


def _runs_of(name: str, tensor: Any, dtype: Optional[Any] = None) -> Iterator[_Run]:
    """Args:
    dtype: the type to which the runs are cast; None: the tensor's.
    """
    rows = _as_rows(tensor) if _comparable(tensor) else None
    if rows is None:
        return
    # A weight's rows may go along any of its dimensions.
    whole = tensor.detach().squeeze()
    along = [dim for dim in range(whole.dim() - 1) if whole.shape[dim] >= _WINDOW_MIN]
    for form in (rows, *(whole.movedim(dim, -1) for dim in along)):
        heads = _cast(_heads(form, _HEAD_ELEMENTS), tensor.dtype, dtype or tensor.dtype)
        begins = heads[:, :_RUN_ELEMENTS]
        # The usual case, for all rows together: a run at the row's beginning, without padding.
        plain = _are_telling(begins) & (as_bits(heads)[:, begins.shape[1] - 1 :] != 0).any(-1)
        for head, begin, is_plain in zip(heads, begins, plain.tolist()):
            content = begin if is_plain else _telling(head, whole=form.shape[-1] <= _HEAD_ELEMENTS)
            if content is not None:
                yield _Run(name, content)


def _heads(rows: Any, elements: int) -> Any:
    """The first elements of some rows, as integers on the host."""
    count = math.prod(rows.shape[:-1])
    picked = sorted({number * count // _ROWS for number in range(_ROWS)})
    return rows_at(as_bits(rows[..., :elements]), picked).cpu()


def sample_of(tensor: Any) -> Optional[int]:
    """Returns a number that changes with the first elements of some rows; None: not readable."""
    rows = _as_rows(tensor) if has_bits(tensor) else None
    return None if rows is None else hash(_heads(rows, _RUN_ELEMENTS).numpy().tobytes())


def rows_at(rows: Any, numbers: list[int]) -> Any:
    """The rows of these numbers, as a matrix."""
    torch: Any = importlib.import_module("torch")
    places: list[Any] = []
    left = torch.tensor(numbers, device=rows.device)
    for extent in reversed(rows.shape[:-1]):
        places.insert(0, left % extent)
        left = left // extent
    return rows[tuple(places)]


def _telling(row: Any, whole: bool) -> Optional[Any]:
    """Returns the first run of a row that can identify a weight; None: it has none.

    Args:
      whole: the row ends where it ends here: zeros at its end may be padding.
    """
    filled = as_bits(row).nonzero().reshape(-1)
    if not filled.numel():
        return None
    end = int(filled[-1]) + 1 if whole else row.numel()
    for begin in dict.fromkeys((0, int(filled[0]))):
        run = row[begin : min(end, begin + _RUN_ELEMENTS)]
        if is_telling(run):
            return run
    return None


def is_telling(run: Any) -> bool:
    """Returns whether elements that follow each other are not found elsewhere by chance."""
    return bool(_are_telling(run.unsqueeze(0))[0])


def _are_telling(runs: Any) -> Any:
    """As is_telling, of each row of a matrix."""
    bits = as_bits(runs)
    if bits.shape[1] < max(_WINDOW_MIN, _WINDOW[bits.element_size()]):
        return bits.new_zeros(bits.shape[0]).bool()
    telling = (bits.sort(-1).values.diff() != 0).sum(-1) >= _DISTINCT - 1
    if not runs.dtype.is_floating_point:
        steps = bits.long().diff()
        telling &= (steps != steps[:, :1]).any(-1)
    return telling


def as_bits(tensor: Any) -> Any:
    """A view as integers: types that torch hardly computes with can be copied and compared so."""
    torch: Any = importlib.import_module("torch")
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(kinds[tensor.element_size()])


def _cast(bits: Any, source: Any, dtype: Any) -> Any:
    """Args:
    bits: of elements of the type `source`.
    """
    elements = bits.view(source)
    if source is dtype:
        return elements
    return bits.view(dtype) if _is_view(source, dtype) else elements.to(dtype)


def _keys(windows: Any) -> Any:
    """A number for each window, which is the last dimension; it wraps around."""
    bits = as_bits(windows).long()
    keys = bits[..., 0].clone()
    for place in range(1, bits.shape[-1]):
        keys = keys * _FACTOR + bits[..., place]
    return keys


def _found(
    weights: Mapping[str, Any],
    dtype: Any,
    wanted: Sequence[_Run],
    widths: set[int],
    every_place: int = _SMALL_WINDOWS,
) -> Iterator[tuple[str, _Run, int]]:
    """Yields the runs that weights have, cast to `dtype`: the weight's name, and how many elements
    of the run it has.

    Args:
      wanted: runs of this type.
      widths: of the tensors that they are of.
      every_place: elements of small weights that are searched at each place.
    """
    torch: Any = importlib.import_module("torch")
    size = _WINDOW[torch.empty(0, dtype=dtype).element_size()]
    by_key: dict[int, list[_Run]] = {}
    keys = _keys(torch.stack([run.content[:size] for run in wanted])).tolist() if wanted else []
    for key, run in zip(keys, wanted):
        by_key.setdefault(key, []).append(run)
    batches: dict[Any, _Batch] = {}
    for name, weight in weights.items() if by_key else ():
        rows = _as_rows(weight) if _may_be_of(weight, dtype) else None
        if rows is None or rows.shape[-1] < size:
            continue
        batch = batches.setdefault((weight.device, weight.dtype), _Batch(weight.dtype, dtype, size))
        last = int(rows.shape[-1]) - size
        places = _places(last, widths)
        if rows.numel() <= min(_SMALL_ELEMENTS, every_place):
            every_place -= rows.numel()
            places = list(range(last + 1))
        for matrix in _matrices(rows):
            step = max(_BATCH_WINDOWS // len(places), 1)
            for begin in range(0, matrix.shape[0], step):
                batch.add(name, matrix[begin : begin + step], places)
                if batch.windows >= _BATCH_WINDOWS:
                    yield from batch.found(by_key)
    for batch in batches.values():
        yield from batch.found(by_key)


def _matrices(rows: Any) -> Iterator[Any]:
    """The same rows, without a copy."""
    if rows.dim() == 2:
        yield rows
    elif rows.is_contiguous():
        yield rows.view(-1, rows.shape[-1])
    else:
        for part in rows:
            yield from _matrices(part)


class _Batch:
    """Windows of weights of one type on one device."""

    def __init__(self, source: Any, dtype: Any, size: int) -> None:
        """Args:
        source: their type.
        dtype: that they are cast to.
        size: elements in a window.
        """
        self._source = source
        self._dtype = dtype
        self._size = size
        self._parts: list[Any] = []
        self._origins: list[tuple[str, Any, list[int]]] = []  # the weight's name, rows and places in a row
        self._begins: list[int] = []  # of the parts
        self.windows = 0

    def add(self, name: str, matrix: Any, places: list[int]) -> None:
        torch: Any = importlib.import_module("torch")
        matrix = as_bits(matrix)
        if len(places) == matrix.shape[1] - self._size + 1:
            windows = matrix.unfold(-1, self._size, 1)
        else:
            windows = torch.stack([matrix[:, place : place + self._size] for place in places], 1)
        self._parts.append(windows.reshape(-1, self._size))
        self._origins.append((name, matrix, places))
        self._begins.append(self.windows)
        self.windows += int(self._parts[-1].shape[0])

    def found(self, wanted: Mapping[int, list[_Run]]) -> Iterator[tuple[str, _Run, int]]:
        """As _found, of what was added since the last call."""
        if not self._parts:
            return
        torch: Any = importlib.import_module("torch")
        try:
            keys = _keys(_cast(torch.cat(self._parts), self._source, self._dtype))
        except RuntimeError as error:  # a type that holds several numbers in one element, for example
            _LOG.debug("dws: %s cannot be compared with %s: %s", self._source, self._dtype, error)
            self._clear()
            return
        sought = torch.tensor(sorted(wanted), device=keys.device)
        at = torch.searchsorted(sought, keys).clamp_(max=len(wanted) - 1)  # far faster than torch.isin
        hits = (sought[at] == keys).nonzero().reshape(-1)
        seen: dict[tuple[int, int], int] = {}
        for hit, key in zip(hits.tolist(), keys[hits].tolist()):
            part = bisect.bisect_right(self._begins, hit) - 1
            seen[part, key] = seen.get((part, key), 0) + 1
            if seen[part, key] > _HITS:
                continue
            name, matrix, places = self._origins[part]
            number, place = divmod(hit - self._begins[part], len(places))
            for row in self._from(matrix, number, places[place]):
                for run in wanted[key] if is_telling(row) else ():  # not of zeros
                    count = min(run.content.numel(), row.numel())
                    if as_bits(row[:count]).equal(as_bits(run.content[:count])) and is_telling(row[:count]):
                        yield name, run, count
        self._clear()

    def _clear(self) -> None:
        self._parts, self._origins, self._begins, self.windows = [], [], [], 0

    def _from(self, matrix: Any, number: int, place: int) -> Iterator[Any]:
        """What follows a place: in its row, and in memory if that is longer."""
        row = matrix[number, place : place + _RUN_ELEMENTS]
        yield _cast(row, self._source, self._dtype).cpu()
        begin = number * matrix.shape[1] + place
        if row.numel() < _RUN_ELEMENTS and matrix.is_contiguous():
            row = matrix.view(-1)[begin : begin + _RUN_ELEMENTS]
            yield _cast(row, self._source, self._dtype).cpu()


def _places(last: int, widths: set[int]) -> list[int]:
    """Returns where parts of a row of a large weight may begin: at 0, and at multiples of the
    widths of compared tensors."""
    found = {0}
    for width in sorted(widths, reverse=True):
        if width >= _PLACE_ELEMENTS_MIN:
            found |= set(range(0, last + 1, width))
        if len(found) >= _PLACES:
            break
    return sorted(found)[:_PLACES]


def constant_of(tensor: Any) -> Optional[float]:
    """Returns the one number that all elements are; None: they differ, are zeros, or are too few or
    too many to check."""
    if not _comparable(tensor) or not tensor.dtype.is_floating_point or tensor.numel() > _SMALL_ELEMENTS:
        return None
    bits = as_bits(tensor.detach().contiguous()).reshape(-1)
    is_one = bool(bits[0] != 0) and bool((bits == bits[0]).all())
    return float(tensor.detach().reshape(-1)[0]) if is_one else None


def constant_copies(
    weights: Mapping[str, Any], tensors: Mapping[str, Any], owners: Mapping[str, str]
) -> dict[str, str]:
    """Finds tensors whose elements are all one number, not zero, and that may be copies of a weight
    with the same number and shape: those held by the module that has the weight, or by the module
    around it.

    Args:
      owners: of each of `tensors`, the name of the module that holds it.

    Returns:
      as find_copies.
    """
    found: dict[str, str] = {}
    constants = {name: number for name, tensor in tensors.items() if (number := constant_of(tensor)) is not None}
    if not constants:
        return found
    near: dict[str, list[str]] = {}
    for weight in weights:
        owner = weight.rpartition(".")[0]
        for module in dict.fromkeys((owner, owner.rpartition(".")[0])):
            near.setdefault(module, []).append(weight)
    for name, number in constants.items():
        shape = tensors[name].squeeze().shape
        for weight in near.get(owners[name], ()):
            if weights[weight].squeeze().shape == shape and constant_of(weights[weight]) == number:
                found[name] = weight
                break
    return found


def equal_copies(
    weights: Mapping[str, Any], tensors: Mapping[str, Any], owners: Mapping[str, str], new: Collection[str]
) -> dict[str, str]:
    """Finds tensors that the module with a weight holds, and that have the weight's shape (except
    for dimensions of 1) and its elements after a cast, whatever these are.

    Args:
      owners: of each of `tensors`, the name of the module that holds it.
      new: those that were made after the attach; of others, integers say nothing, and neither does one number.

    Returns:
      as find_copies.
    """
    found: dict[str, str] = {}
    own: dict[str, list[str]] = {}
    for weight in weights:
        own.setdefault(weight.rpartition(".")[0], []).append(weight)
    for name, tensor in tensors.items():
        for weight in own.get(owners[name], ()):
            if _is_cast_of(weights[weight], tensor, name in new):
                found[name] = weight
                break
    return found


def _is_cast_of(weight: Any, tensor: Any, is_new: bool) -> bool:
    weight, tensor = weight.detach().squeeze(), tensor.detach().squeeze()
    if not has_bits(weight) or not has_bits(tensor) or not _castable(weight, tensor.dtype):
        return False
    if not (is_new or tensor.dtype.is_floating_point):
        return False
    if weight.shape != tensor.shape or not 0 < tensor.numel() <= _EQUAL_ELEMENTS:
        return False
    bits = as_bits(tensor.contiguous())
    try:
        same = as_bits(_cast(as_bits(weight.contiguous()), weight.dtype, tensor.dtype)).to(bits.device).equal(bits)
    except RuntimeError:  # torch does not have this cast
        return False
    return bool(same) and (is_new or not bool((bits == bits.reshape(-1)[0]).all()))
