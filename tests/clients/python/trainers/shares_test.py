"""dws.trainers.placement and shares against an oracle that moves single elements: random meshes, placements, sizes."""

from __future__ import annotations

import itertools
import math
import os
import random
import unittest
from collections import Counter
from typing import Any, Optional, Sequence

import dws
from dws.layout import BLOCK_ELEMENTS, TensorSpec
from dws.trainers.placement import Axis, Ranges, rows_of
from dws.trainers.shares import Declared, Share, shares_of

SEED = int(os.environ.get("DWS_TEST_SEED", random.SystemRandom().randrange(1 << 32)))


def chunk(rows: Sequence[int], parts: int, index: int) -> list[int]:
    """As torch.chunk, with empty parts at the end."""
    size = max(math.ceil(len(rows) / parts), 1)
    return [row for i, row in enumerate(rows) if i // size == index]


def dtensor_rows(rows: int, axes: Sequence[Axis]) -> list[int]:
    """What DTensor says of a dimension: axis by axis from the left."""
    found = list(range(rows))
    for axis in axes:
        factor = axis.split_factor or 1
        pieces = [chunk(found, factor, i) for i in range(factor)]
        found = [row for piece in pieces for row in chunk(piece, axis.ranks, axis.coordinate)]
    return found


def fully_shard_rows(rows: int, axes: Sequence[Axis]) -> list[int]:
    """What fully_shard does to a tensor that the axes after the first have cut."""
    found = list(range(rows))
    for axis in [*axes[1:], axes[0]]:
        found = chunk(found, axis.ranks, axis.coordinate)
    return found


def coordinates(mesh: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, mesh)))


class RowsTest(unittest.TestCase):
    def same(self, rows: int, axes: Sequence[Axis], wanted: Optional[list[int]]) -> None:
        found = rows_of(rows, axes)
        self.assertEqual(None if found is None else list(range(*found)), wanted, (rows, axes))

    def test_shards_of_any_mesh_are_those_of_dtensor(self) -> None:
        chance = random.Random(SEED)
        print(f"seed {SEED}")
        for _ in range(300):
            mesh, rows = [
                chance.randint(1, 4) for _ in range(chance.randint(1, 3))
            ], chance.randint(0, 30)
            for at in coordinates(mesh):
                axes = [Axis(ranks, i) for ranks, i in zip(mesh, at)]
                self.same(rows, axes, dtensor_rows(rows, axes))

    def test_shards_of_shards_are_those_of_fully_shard_or_refused(self) -> None:
        chance = random.Random(SEED)
        print(f"seed {SEED}")
        refused = 0
        for _ in range(400):
            mesh, rows = [chance.randint(1, 4) for _ in range(2)], chance.randint(0, 40)
            for at in coordinates(mesh):
                axes = [Axis(mesh[0], at[0], mesh[1]), Axis(mesh[1], at[1])]
                made = fully_shard_rows(rows, axes)
                agreed = made == dtensor_rows(rows, axes)
                self.same(rows, axes, made if agreed else None)
                refused += not agreed
                self.assertTrue(agreed or rows % math.prod(mesh), (rows, axes))
        self.assertGreater(refused, 0)

    def test_rows_that_do_not_follow_each_other_are_refused(self) -> None:
        self.same(8, [Axis(2, 0, 2)], None)  # 0 1 4 5
        self.same(8, [Axis(2, 0), Axis(2, 0, 2)], None)  # 0 2
        self.same(2, [Axis(2, 1, 1)], [1])


class SharesTest(unittest.TestCase):
    def test_every_element_is_published_once_and_by_who_has_it(self) -> None:
        chance = random.Random(SEED)
        print(f"seed {SEED}")
        for _ in range(150):
            mesh = [chance.randint(1, 4), chance.randint(1, 3)]
            processes = coordinates(mesh)
            chance.shuffle(processes)
            declared: list[dict[str, Declared]] = [{} for _ in processes]
            for i in range(chance.randint(1, 6)):
                self.declare(chance, f"t{i}", mesh, processes, declared)
            for i in range(len(processes)):  # so that none has nothing
                declared[i][f"own{i}"] = Declared(TensorSpec(f"own{i}", "U8", ()), ())
            shares = shares_of(declared)
            self.assertEqual(shares, shares_of(declared))
            for name in {name for each in declared for name in each}:
                self.check(name, declared, shares)

    def declare(
        self, chance: random.Random, name: str, mesh: Any, processes: Any, declared: Any
    ) -> None:
        shape = [chance.randint(0, 9), chance.choice([0, 1, 3, 8]), chance.choice([1, 2, BLOCK_ELEMENTS])]
        chance.shuffle(shape)
        # Which dimension each axis of the mesh cuts; None: replicas.
        cutting = [chance.choice([None, 0, 1, 2]) for _ in mesh]
        cuts = []
        for dim in (0, 1, 2):
            some = [row for row in range(1, min(shape[dim], 20)) if chance.random() < 0.2]
            cuts.append(dws.Cut(tuple(some[:3]), dim))
        spec = TensorSpec(name, "BF16", tuple(shape), cuts)
        divisible = chance.random() < 0.8
        for process, at in enumerate(processes):
            ranges = []
            for dim, extent in enumerate(shape):
                axes = [Axis(mesh[i], at[i]) for i in range(2) if cutting[i] == dim]
                rows = rows_of(extent, axes)
                assert rows is not None
                ranges.append(rows)
            declared[process][name] = Declared(spec, tuple(ranges), divisible)

    def check(self, name: str, declared: Sequence[Any], shares: Sequence[dict[str, Share]]) -> None:
        seen: Counter[Ranges] = Counter()
        one = next(each[name] for each in declared if name in each)
        for process, mine in enumerate(shares):
            if name not in mine:
                continue
            share, part = mine[name], declared[process][name].ranges
            for (low, high), (begin, end) in zip(share.ranges, part):
                self.assertTrue(not one.spec.elements or begin <= low <= high <= end)
            layout = dws.layout.RankLayout([share.spec], {name: share.cells})
            self.assertEqual(layout.shards[0].ranges, share.ranges)
            seen.update(layout.shards[0].slices())
            for cut in one.spec.cuts:  # as engines need it
                found = {cut.dim: set(cut.boundaries) for cut in share.spec.cuts}
                self.assertTrue(set(cut.boundaries) <= found[cut.dim])
        spec = next(mine[name].spec for mine in shares if name in mine)
        self.assertEqual(seen, Counter(spec.slices()))  # each slice once

    def test_replicas_of_a_model_hold_the_same_bytes(self) -> None:
        # Two layers' shapes of a small Qwen3 and its embedding, over shards of 2 with 4 replicas each.
        shapes = {"embed": (151_936, 1024), "norm": (1024,)}
        for layer in range(2):
            shapes.update(
                {f"{layer}.q": (2048, 1024), f"{layer}.k": (1024, 1024), f"{layer}.o": (1024, 2048)}
            )
            shapes.update({f"{layer}.up": (3072, 1024), f"{layer}.down": (1024, 3072)})
            shapes.update({f"{layer}.norm{i}": (1024,) for i in range(4)})
        declared = [
            {
                name: Declared(
                    TensorSpec(name, "BF16", shape),
                    (rows_of(shape[0], [Axis(2, at)]), *((0, extent) for extent in shape[1:])),  # type: ignore
                )
                for name, shape in shapes.items()
            }
            for _ in range(4)
            for at in range(2)
        ]
        loads = []
        for mine in shares_of(declared):
            loads.append(sum(share.size_bytes for share in mine.values()))
        self.assertLess(max(loads) * len(loads) / sum(loads), 1.02)

    def test_pieces_are_not_smaller_than_a_block(self) -> None:
        for rows, pieces in ((1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (100, 4)):
            spec = TensorSpec("w", "F32", (rows, BLOCK_ELEMENTS // 2))
            small = TensorSpec("b", "F32", (1,))
            each = {"w": Declared(spec, ((0, rows), (0, spec.shape[1])))}
            for i in range(4):
                name = f"b{i}"
                each[name] = Declared(TensorSpec(name, "F32", small.shape), ((0, 1),))
            shares = shares_of([each] * 4)
            self.assertEqual(sum("w" in mine for mine in shares), pieces)

    def test_what_processes_contradict_each_other_about_is_refused(self) -> None:
        def of(rows: Any, columns: Any = (0, 6), **spec: Any) -> dict[str, Declared]:
            given = {"name": "w", "dtype": "F32", "shape": (4, 6), **spec}
            return {"w": Declared(TensorSpec(**given), (rows, columns))}

        top, bottom, whole = of((0, 2)), of((2, 4)), of((0, 4))
        for declared, why in (
            ([top], r"have 12 of its 24 elements.*\[\[\(0, 2\), \(0, 6\)\]\]"),
            ([bottom], "have 12 of its 24 elements"),
            ([top, whole], r"the parts \[\(0, 2\), \(0, 6\)\] and \[\(0, 4\), \(0, 6\)\], expected the same"),
            ([whole, of((1, 2))], r"the parts \[\(0, 4\), \(0, 6\)\] and \[\(1, 2\), \(0, 6\)\]"),
            ([top, of((0, 4), (0, 3))], "expected the same or nothing in common"),
            ([top, of((2, 4), dtype="BF16")], "process 0 has 'w' F32.*process 1 'w' BF16"),
            ([top, bottom, of((0, 0))], "process 2 of 3 has no element"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, why):
                shares_of(declared)

    def test_a_tensor_is_cut_along_shards_and_as_engines_need_it(self) -> None:
        spec = TensorSpec("w", "F32", (4, 6), dws.Cut((3,), 1))
        rows = [{"w": Declared(spec, ((at, at + 2), (0, 6)))} for at in (0, 2)]
        top, bottom = (mine["w"] for mine in shares_of(rows))
        self.assertEqual(top.spec.cuts, (dws.Cut((2,)), dws.Cut((3,), 1)))
        self.assertEqual((top.cells, bottom.cells), (((0, 1), (0, 2)), ((1, 1), (0, 2))))
        whole = shares_of([{"w": Declared(spec, ((0, 4), (0, 6)))}])[0]["w"]
        self.assertTrue(whole.whole)
        self.assertEqual((whole.spec, whole.cells), (spec, ((0, 2),)))


if __name__ == "__main__":
    unittest.main()
