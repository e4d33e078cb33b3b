"""dws.trainers.placement and shares against an oracle that moves single elements: random meshes, placements, sizes."""

from __future__ import annotations

import itertools
import math
import os
import random
import unittest
from typing import Any, Optional, Sequence

import dws
from dws.layout import BLOCK_ELEMENTS, TensorSpec
from dws.trainers.placement import Axis, Part, rows_of
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
                declared[i][f"own{i}"] = Declared(TensorSpec(f"own{i}", "U8", ()), Part(None, 0, 1))
            shares = shares_of(declared)
            self.assertEqual(shares, shares_of(declared))
            for name in {name for each in declared for name in each}:
                self.check(name, declared, shares)

    def declare(
        self, chance: random.Random, name: str, mesh: Any, processes: Any, declared: Any
    ) -> None:
        dim = chance.randint(0, 1)
        shape = [chance.randint(0, 9), chance.choice([0, 1, 3, BLOCK_ELEMENTS])]
        if dim:
            shape.reverse()
        cutting = [i for i in range(2) if chance.random() < 0.6]
        cuts = tuple(sorted(row for row in range(1, shape[dim]) if chance.random() < 0.2)[:5])
        spec = TensorSpec(name, "BF16", tuple(shape), dim if cuts else 0, cuts)
        divisible = chance.random() < 0.8
        for process, at in enumerate(processes):
            part = Part(None, 0, shape[0])
            if cutting:
                rows = rows_of(shape[dim], [Axis(mesh[i], at[i]) for i in cutting])
                assert rows is not None
                part = Part(dim, *rows)
            declared[process][name] = Declared(spec, part, divisible)

    def check(self, name: str, declared: Sequence[Any], shares: Sequence[dict[str, Share]]) -> None:
        seen: list[int] = []
        one = next(each[name] for each in declared if name in each)
        for process, mine in enumerate(shares):
            if name not in mine:
                continue
            share, part = mine[name], declared[process][name].part
            rows = range(share.begin, share.end)
            seen.extend(rows)
            if part.dim is not None:
                self.assertEqual(share.dim, part.dim)
                self.assertTrue(set(rows) <= set(range(part.begin, part.end)))
            first, count = share.slices
            self.assertEqual(share.spec.slice_range(first)[0], share.begin)
            if share.spec.cuts:
                self.assertEqual(share.spec.slice_range(first + count - 1)[1], share.end)
            else:
                self.assertTrue(share.whole)
            self.assertTrue(set(one.spec.cuts) <= set(share.spec.cuts))
        self.assertEqual(len(set(seen)), len(seen))
        owner = next(mine[name] for mine in shares if name in mine)
        extent = one.spec.shape[owner.dim] if one.spec.shape else 1
        self.assertEqual(sorted(seen), list(range(extent)))

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
                name: Declared(TensorSpec(name, "BF16", shape), Part(0, *rows_of(shape[0], [Axis(2, at)])))  # type: ignore
                for name, shape in shapes.items()
            }
            for _ in range(4)
            for at in range(2)
        ]
        loads = []
        for mine in shares_of(declared):
            sizes = [
                (s.end - s.begin) * s.spec.size_bytes // s.spec.shape[0] for s in mine.values()
            ]
            loads.append(sum(sizes))
        self.assertLess(max(loads) * len(loads) / sum(loads), 1.02)

    def test_pieces_are_not_smaller_than_a_block(self) -> None:
        for rows, pieces in ((1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (100, 4)):
            spec = TensorSpec("w", "F32", (rows, BLOCK_ELEMENTS // 2))
            small = TensorSpec("b", "F32", (1,))
            each = {"w": Declared(spec, Part(None, 0, rows))}
            for i in range(4):
                name = f"b{i}"
                each[name] = Declared(TensorSpec(name, "F32", small.shape), Part(None, 0, 1))
            shares = shares_of([each] * 4)
            self.assertEqual(sum("w" in mine for mine in shares), pieces)

    def test_what_processes_contradict_each_other_about_is_refused(self) -> None:
        def of(part: Part, **spec: Any) -> dict[str, Declared]:
            given = {"name": "w", "dtype": "F32", "shape": (4, 6), **spec}
            return {"w": Declared(TensorSpec(**given), part)}

        top, bottom, all_of_it = Part(0, 0, 2), Part(0, 2, 4), Part(None, 0, 4)
        columns = {"cut_dim": 1, "cuts": (3,)}
        for declared, why in (
            ([of(top)], r"ranges \[\(0, 2\)\] of dimension 0, expected each of its 4 rows in one"),
            ([of(bottom)], r"ranges \[\(2, 4\)\]"),
            ([of(top), of(all_of_it)], r"ranges \[\(0, 2\), \(0, 4\)\]"),
            ([of(all_of_it), of(Part(0, 1, 2))], r"ranges \[\(0, 4\), \(1, 2\)\]"),
            ([of(top), of(Part(1, 0, 3))], r"sharded on dimensions \[0, 1\]"),
            ([of(top), of(bottom, dtype="BF16")], "process 0 has 'w' F32.*process 1 'w' BF16"),
            (
                [of(top, **columns), of(bottom, **columns)],
                "dimension 0.*on dimension 1.*shard_placement",
            ),
            ([of(top), of(bottom), of(Part(0, 0, 0))], "process 2 of 3 has no element"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, why):
                shares_of(declared)
        # What one process has whole is not sharded: engines may need it cut anywhere.
        own = {"own": Declared(TensorSpec("own", "U8", ()), Part(None, 0, 1))}
        empty = {**of(Part(0, 0, 0), **columns), **own}
        self.assertEqual(shares_of([of(all_of_it, **columns), empty])[0]["w"].slices, (0, 2))
        # Whole ones are divided where engines need them cut.
        self.assertEqual(shares_of([of(all_of_it, **columns)])[0]["w"].slices, (0, 2))


if __name__ == "__main__":
    unittest.main()
