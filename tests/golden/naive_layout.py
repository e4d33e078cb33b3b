"""Layouts for the naive decoder, written only from common/delta/FORMAT.md. A shard has the form of cases.json."""

import itertools
import struct
from typing import Any, Dict, List, NamedTuple, Tuple

BLOCK_ELEMENTS = 65536

# name: (number, bytes, is float)
DTYPES = {
    "BOOL": (1, 1, False), "U8": (2, 1, False), "I8": (3, 1, False), "F8_E4M3": (4, 1, True),
    "F8_E5M2": (5, 1, True), "F8_E8M0": (6, 1, False), "U16": (7, 2, False), "I16": (8, 2, False),
    "F16": (9, 2, True), "BF16": (10, 2, True), "U32": (11, 4, False), "I32": (12, 4, False),
    "F32": (13, 4, True), "U64": (14, 8, False), "I64": (15, 8, False), "F64": (16, 8, True),
}


class Slice(NamedTuple):
    dtype: str
    elements: int
    first_word: int

    @property
    def element_bytes(self) -> int:
        return DTYPES[self.dtype][1]

    @property
    def blocks(self) -> int:
        return -(-self.elements // BLOCK_ELEMENTS)

    def block_elements(self, block: int) -> int:
        return min(BLOCK_ELEMENTS, self.elements - block * BLOCK_ELEMENTS)


def grid_of(shard: Dict[str, Any]) -> List[Tuple[int, List[int], int, int]]:
    """For each dimension that is cut: the dimension, the cuts, the rank's first cell, its cells."""
    if "grid" in shard:
        return [(cuts["dim"], cuts["at"], cells["first"], cells["count"])
                for cuts, cells in zip(shard["grid"], shard["cells"])]
    if not shard["cuts"]:
        return []
    return [(shard["cut_dim"], shard["cuts"], shard["first_slice"], shard["slice_count"])]


def rank_slices(layout: List[Dict[str, Any]]) -> List[Slice]:
    """The slices of a layout in the order of their numbers."""
    slices = []
    for shard in layout:
        bounds = [[0, extent] for extent in shard["shape"]]
        owned = [range(1) for _ in shard["shape"]]
        for dim, cuts, first, count in grid_of(shard):
            bounds[dim][1:1] = cuts
            owned[dim] = range(first, first + count)
        first_word = 0
        for cell in itertools.product(*(range(len(bound) - 1) for bound in bounds)):
            elements = 1
            for number, bound in zip(cell, bounds):
                elements *= bound[number + 1] - bound[number]
            if all(number in numbers for number, numbers in zip(cell, owned)):
                slices.append(Slice(shard["dtype"], elements, first_word))
            for block in range(-(-elements // BLOCK_ELEMENTS)):
                count = min(BLOCK_ELEMENTS, elements - block * BLOCK_ELEMENTS)
                first_word += -(-count * DTYPES[shard["dtype"]][1] // 8)
    return slices


def signature_text(layout: List[Dict[str, Any]]) -> bytes:
    text = b""
    for shard in layout:
        name = shard["name"].encode()
        grid = grid_of(shard) or [(0, [], 0, 1)]
        numbers = [DTYPES[shard["dtype"]][0], len(shard["shape"]), *shard["shape"]]
        if len(grid) > 1:
            numbers.append(256 + len(grid))
        for dim, cuts, _, _ in grid:
            numbers += [dim, len(cuts), *cuts]
        for _, _, first, count in grid:
            numbers += [first, count]
        text += struct.pack("<Q", len(name)) + name + struct.pack(f"<{len(numbers)}Q", *numbers)
    return text
