"""Lists of a process's part, as lists of the share that it publishes."""

from __future__ import annotations

import os
import random
import unittest

import numpy as np

import dws
from dws.change_lists import Changes
from dws.dtypes import DType
from dws.layout import TensorSpec
from dws.trainers.share_lists import lists_of_shares
from dws.trainers.shares import Declared, Share

SEED = int(os.environ.get("DWS_TEST_SEED", random.SystemRandom().randrange(1 << 32)))


class ShareListsTest(unittest.TestCase):
    def setUp(self) -> None:
        print(f"seed {SEED}")
        self.random = np.random.default_rng(SEED)

    def test_a_share_of_some_rows_gets_their_changes_at_its_own_positions(self) -> None:
        for _ in range(50):
            rows, columns = (int(each) for each in self.random.integers(1, 20, 2))
            begin = int(self.random.integers(0, 5))
            spec = TensorSpec("w", DType.BF16, (rows + begin + 3, columns))
            before = self.random.integers(0, 100, (rows, columns), np.uint16)
            after = np.where(self.random.random((rows, columns)) < 0.2, before + 1, before)
            position = np.flatnonzero((before != after).reshape(-1))
            listed = Changes(position, before.reshape(-1)[position], after.reshape(-1)[position])
            part = ((begin, begin + rows), (0, columns))
            first, last = sorted(int(each) for each in self.random.integers(0, rows + 1, 2))
            share = Share(spec, ((begin + first, begin + last), (0, columns)))
            declared = {"w": Declared.of("w", DType.BF16, spec.shape, part, None)}
            found = lists_of_shares(declared, {"w": share}, {"w": listed})["w"]
            rebuilt = before[first:last].reshape(-1).copy()
            np.testing.assert_array_equal(rebuilt[found.position], found.before)
            rebuilt[found.position] = found.after
            np.testing.assert_array_equal(rebuilt, after[first:last].reshape(-1))

    def test_what_a_list_cannot_speak_for_is_left_out_and_an_unknown_name_refused(self) -> None:
        spec = TensorSpec("w", DType.BF16, (4, 6))
        listed = Changes(*(np.zeros(1, np.uint16) for _ in range(3)))
        declared = {"w": Declared.of("w", DType.BF16, spec.shape, ((0, 4), (0, 6)), None)}
        columns = Share(spec, ((0, 4), (0, 3)))
        self.assertEqual(lists_of_shares(declared, {"w": columns}, {"w": listed}), {})
        self.assertEqual(lists_of_shares(declared, {}, {"w": listed}), {})
        with self.assertRaisesRegex(dws.InvalidArgumentError, "'v', of which this process"):
            lists_of_shares(declared, {}, {"v": listed})


if __name__ == "__main__":
    unittest.main()
