"""Which elements of a set are chosen, when each has a class that both sides know. See OBJECT.md, "Subset"."""

from __future__ import annotations

import numpy as np

from dws.on_demand.pulse_loco.bits import Array, BitReader, BitWriter, damaged, read_rice, rice_parameter, write_rice

_COUNT_WIDTH_BITS = 5  # of the width of the counts


def write_subset(writer: BitWriter, chosen: Array, classes: Array, class_count: int) -> None:
    """Args:
      chosen: bool of each element.
      classes: the class of each element, below class_count.
    """
    members = [np.flatnonzero(chosen[classes == number]) for number in range(class_count)]
    sizes = np.bincount(classes, minlength=class_count)
    inverted = [2 * ranks.size > size for ranks, size in zip(members, sizes)]
    for number, flag in enumerate(inverted):
        if flag:
            members[number] = np.flatnonzero(~chosen[classes == number])
    width = max(int(max(ranks.size for ranks in members)).bit_length(), 1)
    writer.number(width, _COUNT_WIDTH_BITS)
    for ranks, flag in zip(members, inverted):
        writer.number(ranks.size, width)
        writer.number(int(flag), 1)
        if ranks.size:
            gaps = np.diff(ranks, prepend=-1) - 1
            k = rice_parameter(gaps)
            writer.number(k, 4)
            write_rice(writer, gaps, k)


def read_subset(reader: BitReader, classes: Array, class_count: int, what: str) -> Array:
    """Returns bool of each element.

    Raises:
      InvalidArgumentError: a count or a position is out of its class, or the planes are too short.
    """
    chosen = np.zeros(classes.size, bool)
    width = reader.number(_COUNT_WIDTH_BITS)
    for number in range(class_count):
        at = np.flatnonzero(classes == number)
        count = reader.number(width)
        if count > at.size:
            raise damaged(what, f"expected at most {at.size} elements of class {number}, found {count}")
        inverted = bool(reader.number(1))
        chosen[at] = inverted
        if count:
            ranks = np.cumsum(read_rice(reader, count, reader.number(4)) + 1) - 1
            if ranks[-1] >= at.size:
                raise damaged(what, f"expected {at.size} elements of class {number}, found element {ranks[-1]}")
            chosen[at[ranks]] = not inverted
    return chosen
