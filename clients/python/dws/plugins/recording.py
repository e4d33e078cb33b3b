"""What a model's load_weights puts where: memories, and the writes into them. For dws.plugins.capture.

Knows tensors by device, address, strides and type only. Nothing here is computed or copied.
"""

from __future__ import annotations

import bisect
import enum
from typing import Any, Iterable, NamedTuple, Optional, Sequence

from dws.plugins.strided import IrregularError, Placement, Strided, compose, overlap


class Refused(Exception):
    """What a tensor's elements are is not known, for the reason in the message."""


class Kind(enum.Enum):
    """The owner of a piece of memory."""

    CANONICAL = "a tensor of the checkpoint"
    LIVE = "the model's"
    MADE = "made by load_weights"


class Write(NamedTuple):
    """Elements of a memory that come from a canonical tensor; from none: a constant."""

    tensor: Optional[str]
    placement: Placement


class Memory:
    """The memory of one tensor in the state in which load_weights leaves it. Threads: one."""

    def __init__(self, kind: Kind, label: str, dtype: Any, numel: int) -> None:
        """Args:
        label: its name, as messages have it.
        """
        self.kind = kind
        self.label = label
        self.dtype = dtype
        self.numel = numel
        self.has_storage = True
        self.can_be_mapped = True
        self._is_constant = False  # where nothing was written
        self._constants: list[Placement] = []
        self._writes: dict[Write, None] = {}
        self._why: Optional[str] = None  # it is not a copy of elements
        self._names: dict[str, None] = {label: None} if kind is Kind.CANONICAL else {}

    @property
    def is_followed(self) -> bool:
        """Returns whether its values are what is recorded here, and not in its storage, if it has
        any."""
        return self.kind is Kind.CANONICAL or not self.is_untouched or not self.has_storage

    @property
    def is_untouched(self) -> bool:
        constant = self._is_constant or bool(self._constants)
        return not self._writes and not constant and self._why is None

    @property
    def names(self) -> list[str]:
        """Returns the canonical tensors in it."""
        return list(self._names)

    def spoil(self, why: str, names: Iterable[str] = ()) -> None:
        """From now on its elements are not known."""
        self._why = self._why or why
        self._names.update(dict.fromkeys(names))

    def fill(self, sizes: tuple[int, ...], at: Strided) -> None:
        """A constant is written. Elements that are copied there later take its place.

        Raises:
          Refused: elements were copied there before, or another constant was written.
        """
        placement = Placement(sizes, at, Strided(0, (0,) * len(sizes)))
        if placement.count == self.numel:
            self._writes.clear()
            self._constants.clear()
            self._is_constant = True
        elif placement.count:
            for one in self._all():
                _require_apart(one, Write(None, placement))
            self._constants.append(placement)

    def write(self, writes: Iterable[Write]) -> None:
        """Raises Refused, as fill."""
        for tensor, placement in writes:
            if tensor is None:
                self.fill(placement.sizes, placement.own)
            elif placement.count:
                self._writes[Write(tensor, placement)] = None
                self._names[tensor] = None

    def _all(self) -> list[Write]:
        return [*(Write(None, constant) for constant in self._constants), *self._writes]

    def through(self, outer: Placement) -> list[Write]:
        """What is written by a copy whose source is here, constants first.

        Raises:
          Refused: it is not known.
        """
        if self.kind is Kind.CANONICAL:
            # A loader may set all of it to a constant: a bias that one rank alone adds.
            return [Write(None, Placement(outer.sizes, outer.own, _nowhere(outer))) if self._is_constant else Write(self.label, outer)]
        if self._why is not None:
            raise Refused(self._why)
        found = []
        for tensor, placement in self._all():
            try:
                found += [Write(tensor, one) for one in compose(outer, placement)]
            except IrregularError as error:
                raise Refused(f"copies {tensor!r} in a way that is not followed: {error}") from None
        count = _covered(found)
        if count > outer.count:
            raise Refused(f"copies from {self.label}, of which elements are written twice")
        if count < outer.count:
            if not self._is_constant:
                raise Refused(
                    f"copies {outer.count} elements from {self.label}, of which load_weights wrote "
                    f"{count}"
                )
            behind = Write(None, Placement(outer.sizes, outer.own, _nowhere(outer)))
            found = [behind, *(one for one in found if one.tensor is not None)]
        return found

    @property
    def unwritten(self) -> int:
        """Returns how many elements keep what they had before."""
        return 0 if self._is_constant else self.numel - _covered(self._all())

    def complete(self) -> list[Write]:
        """All that was copied, without constants.

        Raises:
          Refused: one of its elements is written twice.
        """
        if self._why is not None:
            raise Refused(self._why)
        copies = sorted(self._writes, key=lambda one: one.placement.own.offset)
        open_writes: list[Write] = []
        for one in copies:
            begin = one.placement.own.offset
            open_writes = [other for other in open_writes if other.placement.end > begin]
            for other in open_writes:
                _require_apart(one, other)
            open_writes.append(one)
        return copies


def _covered(writes: Sequence[Write]) -> int:
    """How many elements are written, if no copy meets another and no constant another."""
    copies = [one.placement for one in writes if one.tensor is not None]
    constants = [one.placement for one in writes if one.tensor is None]
    replaced = sum(overlap(constant, copy) for constant in constants for copy in copies)
    return sum(one.placement.count for one in writes) - replaced


def _nowhere(placement: Placement) -> Strided:
    return Strided(0, (0,) * len(placement.sizes))


def _require_apart(one: Write, other: Write) -> None:
    try:
        twice = overlap(one.placement, other.placement)
    except IrregularError as error:
        raise Refused(
            f"copies {one.tensor!r} and {other.tensor!r} in a way that is not followed: {error}"
        ) from None
    if twice:
        names = [name or "a constant" for name in (other.tensor, one.tensor)]
        raise Refused(f"writes {twice} of its elements twice, from {' and '.join(names)}")


class _Span(NamedTuple):
    begin: int
    end: int
    memory: Memory
    keeps: Any  # a tensor: its address is nobody else's while it is kept


class Memories:
    """All known memories, by address. Threads: one."""

    def __init__(self) -> None:
        self._spans: dict[Any, list[_Span]] = {}

    def clear(self) -> None:
        """Forgets all memories, and lets go of their tensors."""
        self._spans.clear()

    def add(self, tensor: Any, memory: Memory) -> Memory:
        """Returns:
        the memory that the tensor has: another one, if that is known at the same address.

        Raises:
          Refused: it has a part of a known memory.
        """
        space, begin = address(tensor)
        end = begin + max(_extent(tensor), 1) * tensor.element_size()
        spans = self._spans.setdefault(space, [])
        index = bisect.bisect_left(spans, begin, key=lambda span: span.begin)
        for span in spans[max(index - 1, 0) : index + 1]:
            if (span.begin, span.end) == (begin, end) and span.memory.dtype == memory.dtype:
                return span.memory
            if span.begin < end and begin < span.end:
                raise Refused(f"{memory.label} has a part of the memory of {span.memory.label}")
        memory.has_storage = tensor.device.type != "meta"
        spans.insert(index, _Span(begin, end, memory, tensor))
        return memory

    def find(self, tensor: Any) -> Optional[tuple[Memory, Strided]]:
        """Returns the memory in which a tensor's elements are, and the place in it."""
        space, at = address(tensor)
        spans = self._spans.get(space, [])
        index = bisect.bisect_right(spans, at, key=lambda span: span.begin) - 1
        if index < 0 or at >= spans[index].end:
            return None
        first = (at - spans[index].begin) // tensor.element_size()
        return spans[index].memory, Strided(first, tuple(tensor.stride()))


def _extent(tensor: Any) -> int:
    """Elements from the first to the last one in memory."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return int(last) + 1


def address(tensor: Any) -> tuple[Any, int]:
    """The address space and the address in it, in bytes."""
    if tensor.device.type != "meta":
        return str(tensor.device), int(tensor.data_ptr())
    # Without a storage of bytes an address is an offset, in a space of its own.
    if hasattr(tensor, "untyped_storage"):
        storage = tensor.untyped_storage()
    else:
        storage = tensor.storage()
        storage = getattr(storage, "_storage", storage)
    return int(storage._cdata), int(tensor.storage_offset() * tensor.element_size())
