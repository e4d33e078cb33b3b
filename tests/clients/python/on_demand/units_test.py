"""Where parameters, shards and gradients of units lie."""

from __future__ import annotations

import random
import unittest

from dws.dtypes import DType
from dws.errors import InvalidArgumentError
from dws.on_demand.rank_memory import RankMemory
from dws.on_demand.units import RECORD_BYTES, Unit, UnitParameter, gradient_offsets


def parameter(name: str, *shape: int, trains: bool = True) -> UnitParameter:
    return UnitParameter(name, shape, trains)


class UnitsTest(unittest.TestCase):
    def test_ranks_have_each_row_once_and_equal_parts_with_what_fills_them_up(self) -> None:
        seed = random.randrange(1 << 32)
        numbers = random.Random(seed)
        for _ in range(200):
            rows, row, ranks = numbers.randint(1, 40), numbers.randint(1, 5), numbers.randint(2, 9)
            one = parameter("a", rows, row)
            held = [range(*one.rows_of(rank, ranks)) for rank in range(ranks)]
            self.assertEqual([i for each in held for i in each], list(range(rows)), f"seed {seed}")
            self.assertEqual(one.padded(ranks), max(map(len, held)) * row, f"seed {seed}")

    def test_parameters_begin_at_cache_lines_of_the_arena(self) -> None:
        unit = Unit("u", (parameter("a", 5, 3), parameter("b", 32), parameter("c", 1)))
        self.assertEqual(unit.arena_offsets(2), ([0, 64, 128], 192))  # 30, 64 and 2 bytes
        self.assertEqual(unit.arena_offsets(4), ([0, 64, 192], 256))

    def test_a_frozen_parameter_is_gathered_and_not_reduced(self) -> None:
        unit = Unit("u", (parameter("a", 5, 3), parameter("b", 4, trains=False)))
        self.assertEqual(unit.gathered_elements(2), 9 + 2)
        self.assertEqual(unit.shard_elements(2), 9)
        self.assertEqual(Unit("v", (parameter("b", 4, trains=False),)).shard_elements(2), 0)

    def test_gradients_of_units_begin_at_multiples_of_sixteen_elements(self) -> None:
        units = [Unit("u", (parameter("a", 34),)), Unit("v", ()), Unit("w", (parameter("c", 32),))]
        self.assertEqual(gradient_offsets(units, 2), ([0, 32, 32], 48))

    def test_memory_is_as_large_as_what_is_declared(self) -> None:
        units = [Unit("u", (parameter("a", 34), parameter("b", 2))), Unit("w", (parameter("c", 32),))]
        for exact, element_bytes in ((False, 4), (True, 8)):
            memory = RankMemory(units, 2, DType.BF16, DType.BF16, prefetch=3, exact=exact)
            outbox = memory.outbox(2)
            request = memory.request(7, outbox)
            self.assertEqual(request.arena_bytes, 5 * (128 + 64))
            self.assertEqual(request.gradients_bytes, RECORD_BYTES + 48 * element_bytes)
            self.assertEqual(request.outbox_bytes, outbox.region.size_bytes)
            self.assertEqual(request.session, 7)
            self.assertEqual(request.exact, exact)
            declared = [(u.name, list(u.tensors), u.shard_elements) for u in request.units]
            self.assertEqual(declared, [("u", ["a", "b"], 18), ("w", ["c"], 16)])
            self.assertEqual(len(memory.descriptors(outbox)), 4)
            outbox.close()
            memory.close()

    def test_too_many_units_ahead_are_refused_by_number(self) -> None:
        with self.assertRaisesRegex(InvalidArgumentError, "prefetch=65: expected 0 to 64"):
            RankMemory([Unit("u", ())], 2, DType.BF16, DType.BF16, prefetch=65, exact=False)


if __name__ == "__main__":
    unittest.main()
