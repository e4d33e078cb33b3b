"""Element types, layouts, cuts and slice order."""

import unittest

import numpy as np
import torch

import dws
from dws.arrays import copy_elements, raw_bits, slice_rows, spec_of
from dws.dtypes import DType
from dws.layout import BLOCK_ELEMENTS, RankLayout, TensorSpec


class DTypeTest(unittest.TestCase):
    def test_every_dtype_has_a_numpy_type_of_its_size(self) -> None:
        for dtype in DType:
            self.assertEqual(dtype.numpy.itemsize, dtype.raw.itemsize)
            self.assertIs(DType.of(dtype.name), dtype)

    def test_torch_and_numpy_types_map_to_the_same_dtype(self) -> None:
        for dtype in (DType.F32, DType.F16, DType.I64, DType.BOOL, DType.U8, DType.F64):
            self.assertIs(DType.of(dtype.torch), dtype)
            self.assertIs(DType.of(dtype.numpy), dtype)
        self.assertIs(DType.of(torch.bfloat16), DType.BF16)
        self.assertIs(DType.of("bfloat16"), DType.BF16)
        self.assertIs(DType.of("float8_e4m3fn"), DType.F8_E4M3)

    def test_an_unknown_type_is_refused_and_the_known_ones_are_named(self) -> None:
        with self.assertRaisesRegex(dws.DTypeError, "complex64.*BF16.*U8"):
            DType.of(np.complex64)
        with self.assertRaisesRegex(dws.DTypeError, "unknown"):
            DType.of("float17")
        with self.assertRaisesRegex(dws.DTypeError, "None is unknown"):
            DType.of(None)
        with self.assertRaisesRegex(dws.DTypeError, "tensor 'a'.*complex"):
            spec_of("a", np.zeros(3, np.complex128))

    def test_a_list_is_refused_as_a_tensor(self) -> None:
        with self.assertRaisesRegex(dws.DTypeError, "'a' is a list, expected numpy or torch"):
            spec_of("a", [1, 2])


class TensorSpecTest(unittest.TestCase):
    def test_bad_cuts_are_refused_by_name(self) -> None:
        for cuts, dim in (((0,), 0), ((4,), 0), ((2, 2), 0), ((3, 1), 0), ((1,), 2)):
            with self.assertRaisesRegex(dws.LayoutError, "'a'"):
                TensorSpec("a", "F32", (4, 6), cuts=dws.Cut(cuts, dim))
        with self.assertRaisesRegex(dws.LayoutError, "'a': two cuts of one dimension"):
            TensorSpec("a", "F32", (4, 6), cuts=[dws.Cut((1,)), dws.Cut((2,))])

    def test_too_many_slices_are_refused_with_their_number(self) -> None:
        cuts = [dws.Cut.even(300, 300), dws.Cut.even(300, 300, dim=1)]
        with self.assertRaisesRegex(dws.LayoutError, "'a': its cuts make 90000 slices, at most 65536"):
            TensorSpec("a", "F32", (300, 300), cuts=cuts)
        with self.assertRaisesRegex(dws.LayoutError, "'a': 4096 cuts on dimension 0, at most 4095"):
            TensorSpec("a", "F32", (5000,), cuts=range(1, 4097))

    def test_cuts_are_boundaries_on_the_first_dimension_or_of_any_by_name(self) -> None:
        plain = TensorSpec("a", "F32", (4, 6), cuts=[1, 3])
        self.assertEqual(plain.cuts, (dws.Cut((1, 3)),))
        grid = TensorSpec("a", "F32", (4, 6), cuts=[dws.Cut((2,), 1), dws.Cut((1, 3)), dws.Cut(())])
        self.assertEqual(grid.cuts, (dws.Cut((1, 3)), dws.Cut((2,), 1)))
        self.assertEqual(grid.slice_count, 6)
        self.assertEqual(str(grid), "'a' F32 [4, 6] cut on dim 0 at [1, 3], dim 1 at [2]")
        self.assertEqual(
            list(grid.slices())[:3], [((0, 1), (0, 2)), ((0, 1), (2, 6)), ((1, 3), (0, 2))]
        )

    def test_one_cut_dimension_is_sent_as_before_and_more_as_a_grid(self) -> None:
        plain = TensorSpec("a", "F32", (4, 6), cuts=dws.Cut((2,), 1)).to_proto()
        self.assertEqual((plain.cut_dim, list(plain.cuts), len(plain.grid)), (1, [2], 0))
        spec = TensorSpec("a", "F32", (4, 6), cuts=[dws.Cut((1, 3)), dws.Cut((2,), 1)])
        shard = RankLayout([spec], {"a": [(1, 2), (0, 1)]}).to_proto().shards[0]
        self.assertEqual([(c.dim, list(c.at)) for c in shard.tensor.grid], [(0, [1, 3]), (1, [2])])
        self.assertEqual((shard.tensor.cut_dim, list(shard.tensor.cuts)), (0, []))
        self.assertEqual([(c.first, c.count) for c in shard.cells], [(1, 2), (0, 1)])
        self.assertEqual((shard.first_slice, shard.slice_count), (0, 0))

    def test_even_cuts_give_the_first_parts_the_rest(self) -> None:
        self.assertEqual(dws.even_cuts(10, 3), (4, 7))
        self.assertEqual(dws.even_cuts(10, 1), ())
        with self.assertRaises(dws.LayoutError):
            dws.even_cuts(2, 3)

    def test_a_scalar_has_one_slice(self) -> None:
        layout = RankLayout([TensorSpec("s", "F32", ())])
        self.assertEqual(layout.shards[0].shape, ())
        self.assertEqual(layout.size_bytes, 4)


class RankLayoutTest(unittest.TestCase):
    def test_shards_are_ordered_by_the_bytes_of_their_names(self) -> None:
        names = ["b", "a.10", "a.2", "é", "Z"]
        layout = RankLayout([TensorSpec(name, "BF16", (2,)) for name in names])
        self.assertEqual(
            [shard.tensor.name for shard in layout.shards], ["Z", "a.10", "a.2", "b", "é"]
        )

    def test_rank_slices_are_numbered_through_the_shards(self) -> None:
        specs = [
            TensorSpec("a", "F32", (4,)),
            TensorSpec("b", "F32", (9, 2), cuts=(2, 4, 6)),
            TensorSpec("c", "F32", (4,)),
        ]
        layout = RankLayout(specs, shards={"b": (1, 2)})
        self.assertEqual([shard.rank_slice for shard in layout.shards], [0, 1, 3])
        self.assertEqual(layout.shard("b").shape, (4, 2))
        self.assertEqual(layout.shard("b").ranges, ((2, 6), (0, 2)))

    def test_a_rank_owns_a_box_of_a_grid(self) -> None:
        spec = TensorSpec("g", "F32", (9, 5, 6), cuts=[dws.Cut((2, 4, 7)), dws.Cut((1, 4), 2)])
        layout = RankLayout([spec, TensorSpec("h", "F32", ())], {"g": [(1, 2), (1, 2)]})
        shard = layout.shard("g")
        self.assertEqual(shard.ranges, ((2, 7), (0, 5), (1, 6)))
        self.assertEqual(shard.shape, (5, 5, 5))
        self.assertEqual([s.rank_slice for s in layout.shards], [0, 4])
        with self.assertRaisesRegex(dws.LayoutError, "slices 2 to 4 are outside its 3.*dimension 2"):
            RankLayout([spec], {"g": [(1, 2), (2, 2)]})
        plain = TensorSpec("p", "F32", (6,), cuts=(2, 4))
        for owned in ((1, 2), [1, 2], np.array([1, 2]), (np.int64(1), np.int64(2)), [(1, 2)]):
            self.assertEqual(RankLayout([plain], {"p": owned}).shards[0].cells, ((1, 2),))  # type: ignore[dict-item]
        uncut = TensorSpec("u", "F32", (6,))
        self.assertEqual(RankLayout([uncut], {"u": [0, 1]}).shards[0].cells, ())  # type: ignore[dict-item]
        for wrong in ((0,), (1, 2, 3), "ab", 7):
            with self.assertRaisesRegex(dws.LayoutError, "'p'.*expected \\(first, count\\)"):
                RankLayout([plain], {"p": wrong})  # type: ignore[dict-item]
        with self.assertRaisesRegex(dws.LayoutError, "for each of the 2 dimensions"):
            RankLayout([spec], {"g": (1, 2)})

    def test_bad_shards_are_refused(self) -> None:
        spec = TensorSpec("a", "F32", (4,), cuts=(2,))
        with self.assertRaisesRegex(dws.LayoutError, "outside its 2 slices"):
            RankLayout([spec], shards={"a": (1, 2)})
        with self.assertRaisesRegex(dws.LayoutError, "not declared: \\['b'\\]"):
            RankLayout([spec], shards={"b": (0, 1)})
        with self.assertRaisesRegex(dws.LayoutError, "declared twice"):
            RankLayout([spec, spec])
        with self.assertRaisesRegex(dws.LayoutError, "no tensors"):
            RankLayout([])


class SliceOrderTest(unittest.TestCase):
    def test_rows_of_a_slice_flatten_to_its_row_major_order(self) -> None:
        array = np.arange(2 * 7 * 3, dtype=np.uint32).reshape(2, 7, 3)
        for dim, cuts in ((0, (1,)), (1, (2, 5)), (2, (1,))):
            spec = TensorSpec("t", "U32", array.shape, cuts=dws.Cut(cuts, dim))
            shard = RankLayout([spec]).shards[0]
            bounds = [0, *cuts, array.shape[dim]]
            for index, rows in enumerate(slice_rows(array, shard)):
                wanted = np.take(array, range(bounds[index], bounds[index + 1]), axis=dim)
                np.testing.assert_array_equal(rows.reshape(-1), wanted.reshape(-1))

    def test_rows_of_a_box_of_a_grid_flatten_to_its_row_major_order(self) -> None:
        array = np.arange(4 * 7 * 5, dtype=np.uint32).reshape(4, 7, 5)
        for dims in ((0, 1), (0, 2), (1, 2), (0, 1, 2)):
            cuts = [dws.Cut({0: (1, 3), 1: (2, 5), 2: (4,)}[dim], dim) for dim in dims]
            spec = TensorSpec("t", "U32", array.shape, cuts=cuts)
            shard = RankLayout([spec], {"t": [(1, 1)] * len(dims)}).shards[0]
            whole = RankLayout([spec]).shards[0]
            self.assertIn(shard.ranges, list(spec.slices()))
            for owned in (shard, whole):
                part = np.ascontiguousarray(array[owned.index])
                for ranges, rows in zip(owned.slices(), slice_rows(part, owned)):
                    wanted = array[tuple(slice(*r) for r in ranges)]
                    np.testing.assert_array_equal(rows.reshape(-1), wanted.reshape(-1))

    def test_any_run_of_slice_order_is_copied_exactly(self) -> None:
        array = np.arange(13 * 50, dtype=np.uint16).reshape(13, 50)
        rows = array[:, 7:30]
        wanted = rows.reshape(-1)
        random = np.random.default_rng(1)
        for _ in range(300):
            first, last = sorted(random.integers(0, wanted.size + 1, 2))
            target = np.zeros(last - first, np.uint16)
            copy_elements(target, rows, int(first))
            np.testing.assert_array_equal(target, wanted[first:last])

    def test_the_block_size_is_that_of_the_daemons(self) -> None:
        self.assertEqual(BLOCK_ELEMENTS, 65536)


class RawBitsTest(unittest.TestCase):
    def test_bits_are_shared_with_the_tensor(self) -> None:
        tensor = torch.tensor([[1.0, -2.0]], dtype=torch.bfloat16)
        bits = raw_bits("t", tensor, DType.BF16)
        self.assertEqual([hex(x) for x in bits.reshape(-1)], ["0x3f80", "0xc000"])
        tensor[0, 0] = 0
        self.assertEqual(bits[0, 0], 0)

    def test_bool_and_scalar_tensors_have_bits(self) -> None:
        self.assertEqual(raw_bits("t", torch.tensor(True), DType.BOOL).shape, ())
        self.assertEqual(raw_bits("t", np.array(1.5), DType.F64).shape, ())

    def test_a_parameter_that_needs_gradients_has_bits(self) -> None:
        parameter = torch.nn.Parameter(torch.ones(3))
        self.assertEqual(raw_bits("t", parameter, DType.F32).shape, (3,))

    def test_non_contiguous_and_wrong_types_are_refused_with_a_remedy(self) -> None:
        with self.assertRaisesRegex(dws.LayoutError, "'t'.*not contiguous.*\\.contiguous\\(\\)"):
            raw_bits("t", torch.zeros(3, 4).t(), DType.F32)
        with self.assertRaisesRegex(dws.LayoutError, "not contiguous.*ascontiguousarray"):
            raw_bits("t", np.zeros((3, 4), np.float32)[:, ::2], DType.F32)
        with self.assertRaisesRegex(dws.DTypeError, "torch.float32, declared as BF16"):
            raw_bits("t", torch.zeros(3), DType.BF16)
        with self.assertRaisesRegex(dws.DTypeError, "float32, declared as BF16 \\(numpy uint16\\)"):
            raw_bits("t", np.zeros(3, np.float32), DType.BF16)


if __name__ == "__main__":
    unittest.main()
