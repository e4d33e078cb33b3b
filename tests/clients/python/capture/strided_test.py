"""dws.plugins.strided composes placements as their elements would be, one by one."""

from __future__ import annotations

import random
import unittest
from typing import Any

import numpy as np

from dws.plugins.strided import IrregularError, Placement, Strided, boxes, compose, overlap, row_major


def pairs(placement: Placement) -> list[tuple[int, int]]:
    """(own, source) of each element."""
    index = np.indices(placement.sizes).reshape(len(placement.sizes), placement.count)
    own, source = (
        np.full(placement.count, side.offset)
        + np.array(side.strides, int).reshape(1, -1).dot(index).reshape(-1)
        for side in (placement.own, placement.source)
    )
    return [(int(a), int(b)) for a, b in zip(own, source)]


def view_of(base: np.ndarray[Any, Any], choose: random.Random) -> np.ndarray[Any, Any]:
    """A random view of it: transposed, cut, reshaped."""
    view = base
    for _ in range(choose.randrange(4)):
        dim = choose.randrange(view.ndim)
        kind = choose.choice(["cut", "turn", "split", "flat"])
        if kind == "cut":
            begin = choose.randrange(view.shape[dim])
            end = choose.randrange(begin, view.shape[dim]) + 1
            view = view[(slice(None),) * dim + (slice(begin, end),)]
        elif kind == "turn":
            view = view.swapaxes(dim, choose.randrange(view.ndim))
        elif kind == "split" and view.shape[dim] % 2 == 0:
            shape = (*view.shape[:dim], 2, view.shape[dim] // 2, *view.shape[dim + 1 :])
            if np.shares_memory(view.reshape(shape), base):
                view = view.reshape(shape)
        elif view.flags.c_contiguous:
            view = view.reshape(-1)
    return view


def side_of(view: np.ndarray[Any, Any], base: np.ndarray[Any, Any]) -> Strided:
    size = base.itemsize
    offset = (view.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // size
    return Strided(offset, tuple(step // size for step in view.strides))


class StridedTest(unittest.TestCase):
    def setUp(self) -> None:
        self.seed = random.randrange(1 << 32)
        print(f"seed {self.seed}")
        self.choose = random.Random(self.seed)

    def test_a_composition_has_the_elements_that_meet(self) -> None:
        regular = 0
        for _ in range(400):
            shape = [self.choose.choice([1, 2, 4, 6, 8, 12]) for _ in range(self.choose.randrange(1, 4))]
            base = np.arange(int(np.prod(shape))).reshape(shape)
            read, written = (view_of(base, self.choose) for _ in range(2))
            outer = Placement(
                read.shape, Strided(5, row_major(read.shape)), side_of(read, base)
            )
            inner = Placement(
                written.shape, side_of(written, base), Strided(70, row_major(written.shape))
            )
            source = dict(pairs(inner))
            expected = sorted((own, source[at]) for own, at in pairs(outer) if at in source)
            try:
                found = sorted(pair for part in compose(outer, inner) for pair in pairs(part))
            except IrregularError:
                continue
            regular += 1
            self.assertEqual(found, expected, (outer, inner))
            self.assertEqual(overlap(outer.reversed(), inner), len(expected))
        self.assertGreater(regular, 200)

    def test_boxes_have_the_same_elements_and_lie_along_the_dimensions(self) -> None:
        regular = 0
        for _ in range(200):
            shape = [self.choose.choice([2, 4, 6]) for _ in range(self.choose.randrange(1, 4))]
            base = np.arange(int(np.prod(shape))).reshape(shape)
            read = view_of(base, self.choose)
            placement = Placement(
                read.shape, Strided(0, row_major(read.shape)), side_of(read, base)
            )
            try:
                found = list(boxes(placement, read.shape, shape))
            except IrregularError:
                continue
            regular += 1
            elements = sorted(pair for part in found for pair in pairs(part))
            self.assertEqual(elements, sorted(pairs(placement)), placement)
            for part in found:
                self.assertLessEqual(set(part.own.strides), set(row_major(read.shape)))
                self.assertLessEqual(set(part.source.strides), set(row_major(shape)))
        self.assertGreater(regular, 150)

    def test_what_is_read_twice_is_placed_twice(self) -> None:
        row_for_all = Placement((3, 4), Strided(0, (4, 1)), Strided(8, (0, 1)))
        whole = Placement((12,), Strided(0, (1,)), Strided(100, (1,)))
        found = [pair for part in compose(row_for_all, whole) for pair in pairs(part)]
        self.assertEqual(sorted(found), [(at, 108 + at % 4) for at in range(12)])

    def test_steps_that_are_no_multiples_are_refused(self) -> None:
        rows_of_six = Placement((4, 5), Strided(0, (5, 1)), Strided(0, (6, 1)))
        rows_of_eight = Placement((3, 7), Strided(0, (8, 1)), Strided(0, (7, 1)))
        with self.assertRaisesRegex(IrregularError, "steps of 8 and 6 elements"):
            compose(rows_of_six, rows_of_eight)


if __name__ == "__main__":
    unittest.main()
