"""Rows that are cut between processes are put together before each version, because layouts have whole rows.

A process publishes the rows that begin in its range of a tensor (dws.trainers.flat_tensors). What its last row has
beyond the range comes from the processes with the next ranges, which may be several. All of it travels in one
all_to_all, of the bytes that are published; tensors of one dimension need none.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from dws.device_tensor import is_on_device
from dws.dtypes import loaded_torch
from dws.errors import LayoutError
from dws.layout import Range, elements_in
from dws.trainers import device_buffers
from dws.trainers.placement import Ranges
from dws.trainers.resident_shares import Source
from dws.trainers.shares import Declarations, Share

# (its first element in the tensor, elements), one-dimensional.
Piece = tuple[int, Any]

_ALIGNMENT_BYTES = 8  # of each move in the buffers: more than any element type needs


class Move(NamedTuple):
    """Elements that a process sends to another one."""

    name: str
    source: int
    target: int
    elements: Range


def rows_begun(shape: Sequence[int], held: Range) -> Ranges:
    """Returns what a process with these elements publishes: the rows that begin there; none: (0, 0)
    of the first dimension."""
    if not shape:
        return ()
    row = max(math.prod(shape[1:]), 1)
    begin, end = (-(-at // row) for at in held)
    return ((begin, end) if begin < end else (0, 0), *((0, extent) for extent in shape[1:]))


def moves_of(declared: Declarations) -> list[Move]:
    """Returns all moves between processes, in the order of names and elements. Pure.

    Args:
      declared: by process, then by name. If several processes have the same part, the next one
        after the target sends it.

    Raises:
      LayoutError: the ranges of a tensor do not follow each other.
    """
    found = []
    for name in sorted({name for each in declared for name, one in each.items() if one.flat}):
        owners: dict[Range, list[int]] = {}
        for process, of_process in enumerate(declared):
            held = of_process[name].flat if name in of_process else None
            if held and held[0] < held[1]:
                owners.setdefault(held, []).append(process)
        parts = sorted(owners)
        spec = next(each[name].spec for each in declared if name in each)
        if [0, *(end for _, end in parts)] != [*(begin for begin, _ in parts), spec.elements]:
            raise LayoutError(
                f"{spec}: processes have the elements {parts[:8]} of {spec.elements}, expected ranges that follow each other"
            )
        for i, part in enumerate(parts):
            end = _end_of_rows(spec.shape, part)
            for other in parts[i + 1 :]:
                if other[0] >= end:
                    break
                for target in owners[part]:
                    source = min(owners[other], key=lambda each: (each - target) % len(declared))
                    found.append(Move(name, source, target, (other[0], min(other[1], end))))
    return found


def _end_of_rows(shape: Sequence[int], held: Range) -> int:
    """Returns the end of the last row that begins there; if none does, the end of the range."""
    rows = rows_begun(shape, held)
    return max(rows[0][1] * math.prod(shape[1:]), held[1]) if rows else held[1]


class FlatExchange:
    """Lifecycle: made from what all processes have declared; `run` before each version, on all processes."""

    def __init__(self, declared: Declarations) -> None:
        """Raises:
        LayoutError: as moves_of.
        """
        moves = moves_of(declared)
        torch = loaded_torch()
        assert torch is not None
        process = torch.distributed.get_rank() if moves else 0
        self._needed = bool(moves)
        self._sent = [each for each in moves if each.source == process]
        self._sent.sort(key=lambda each: each.target)
        self._received = [each for each in moves if each.target == process]
        self._received.sort(key=lambda each: each.source)
        self._specs = {name: one.spec for each in declared for name, one in each.items()}
        self._on_devices = all(
            one.flat_on_device
            for each in declared
            for one in each.values()
            if one.flat and one.flat != (0, 0)
        )

    def run(self, own: Mapping[str, Piece]) -> dict[str, list[Piece]]:
        """A collective call of the default group, unless all ranges end with their rows. Before it reads elements of a
        device, it waits until the device has finished writing them, on all streams.

        Args:
          own: the parts that this process has, by name.

        Returns:
          The same, with the parts from other processes, in the element types that are published.
        """
        found = {name: [piece] for name, piece in own.items()}
        if not self._needed:
            return found
        torch = loaded_torch()
        assert torch is not None
        group = torch.distributed
        on_device = exchanges_on_devices(group, self._on_devices)
        device = f"cuda:{torch.cuda.current_device()}" if on_device else "cpu"
        sent = [own[move.name][1] for move in self._sent]
        for each in {elements.device for elements in sent if is_on_device(elements)}:
            device_buffers.synchronize(each)
        sizes = [[0] * group.get_world_size() for _ in range(2)]
        for move in self._sent:
            sizes[0][move.target] += self._padded(move)
        for move in self._received:
            sizes[1][move.source] += self._padded(move)
        outgoing, incoming = (
            torch.zeros(sum(each), dtype=torch.uint8, device=device) for each in sizes
        )
        for move, place in self._places(self._sent):
            first, elements = own[move.name]
            begin, end = move.elements
            cast = elements[begin - first : end - first].to(self._specs[move.name].dtype.torch)
            outgoing[place].copy_(cast.contiguous().view(torch.uint8))
        group.all_to_all_single(incoming, outgoing, sizes[1], sizes[0])
        for move, place in self._places(self._received):
            elements = incoming[place].view(self._specs[move.name].dtype.torch)
            found[move.name].append((move.elements[0], elements))
        return found

    def _places(self, moves: Sequence[Move]) -> Iterator[tuple[Move, slice]]:
        """Where each is in a buffer."""
        at = 0
        for move in moves:
            yield move, slice(at, at + self._size_bytes(move))
            at += self._padded(move)

    def _size_bytes(self, move: Move) -> int:
        return (move.elements[1] - move.elements[0]) * int(self._specs[move.name].dtype.itemsize)

    def _padded(self, move: Move) -> int:
        return -(-self._size_bytes(move) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def exchanges_on_devices(distributed: Any, all_on_devices: bool) -> bool:
    """Returns whether the default group exchanges memory of devices: the same on all processes.

    Args:
      distributed: torch's.
      all_on_devices: all processes have their elements there.
    """
    if distributed.get_backend() == "nccl":
        return True
    config = getattr(distributed, "get_backend_config", None)  # since torch 2: by kind of device
    return bool(all_on_devices and config and "cuda:nccl" in config().split(","))


def flat_source(pieces: Sequence[Piece], share: Share) -> Source:
    """Args:
    pieces: the first is this process's own.
    """
    at, own = pieces[0]
    first, elements = _first_of(share) - at, elements_in(share.ranges)
    whole = None
    if first >= 0 and first + elements <= len(own):
        whole = own[first : first + elements].view([end - begin for begin, end in share.ranges])
    return Source(own, whole, lambda view: copy_pieces(pieces, view, share))


def _first_of(share: Share) -> int:
    """Returns the number of its first element. The elements follow each other in row-major order, because it is cut on the
    first dimension that has several rows (dws.trainers.shares)."""
    shape = share.spec.shape
    return sum(begin * math.prod(shape[dim + 1 :]) for dim, (begin, _) in enumerate(share.ranges))


def copy_pieces(pieces: Sequence[Piece], view: Any, share: Share) -> None:
    """Args:
    view: of the share.
    """
    first = _first_of(share)
    flat = view.view(-1)
    for at, elements in pieces:
        begin, end = max(at, first), min(at + len(elements), first + len(flat))
        if begin < end:
            flat[begin - first : end - first].copy_(elements[begin - at : end - at])
