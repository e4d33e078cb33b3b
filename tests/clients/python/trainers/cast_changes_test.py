"""dws.trainers.cast_and_list against a plain cast and a comparison of single elements."""

from __future__ import annotations

import os
import random
import unittest
from typing import Any

import torch

import dws
from dws.trainers import cast_and_list

SEED = int(os.environ.get("DWS_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
BF16, F32, I16 = torch.bfloat16, torch.float32, torch.int16

# Bits of FP32: zeros, NaNs, infinities, the largest and the smallest numbers, subnormals of FP32 and of BF16, and numbers
# half way between two of BF16.
SPECIAL = [
    *(0x00000000, 0x80000000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000),
    *(0x7F7FFFFF, 0x7F7F7FFF, 0x7F7F8000, 0xFF7FFFFF, 0x00800000, 0x00000001, 0x80000001, 0x007FFFFF),
    *(0x00007FFF, 0x00008000, 0x00008001, 0x00018000, 0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF),
]


def of_bits(bits: list[int]) -> torch.Tensor:
    signed = [each - (each >> 31 << 32) for each in bits]
    return torch.tensor(signed, dtype=torch.int32).view(F32)


def layouts(values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors with the values, a matrix, in several places and orders of memory."""
    rows, columns = values.shape
    found = {
        "row-major": torch.empty(rows, columns, dtype=values.dtype),
        "transposed": torch.empty(columns, rows, dtype=values.dtype).t(),
        "with gaps": torch.empty(rows * 2, columns * 3 + 1, dtype=values.dtype)[::2, 1::3],
        "not at the start": torch.empty(rows * columns + 5, dtype=values.dtype)[5:].view(rows, columns),
    }
    for tensor in found.values():
        tensor.copy_(values)
    return found


class CastAndListTest(unittest.TestCase):
    def setUp(self) -> None:
        print(f"seed {SEED}")
        torch.manual_seed(SEED)

    def check(self, master: torch.Tensor, weight: torch.Tensor, what: str = "") -> int:
        """Casts, and checks weight and list. Returns the number of changes."""
        old = [each & 0xFFFF for each in weight.view(I16).reshape(-1).tolist()]
        plain = weight.clone()  # with the same strides, if they have no gaps
        plain.copy_(master)
        (changes,) = cast_and_list([master], [weight])
        self.assertEqual([each.dtype for each in changes], [torch.int64, I16, I16])
        new = [each & 0xFFFF for each in weight.view(I16).reshape(-1).tolist()]
        wanted = [(i, *pair) for i, pair in enumerate(zip(old, new)) if pair[0] != pair[1]]
        listed = zip(*(each.tolist() for each in changes))
        self.assertEqual([(at, b & 0xFFFF, a & 0xFFFF) for at, b, a in listed], wanted, what)
        for at, (found, cast) in enumerate(zip(weight.reshape(-1), plain.reshape(-1))):
            same = torch.equal(found.view(I16), cast.view(I16)) or bool(found.isnan() and cast.isnan())
            self.assertTrue(same, (what, at, found, cast))
        return len(wanted)

    def test_odd_values_in_every_layout(self) -> None:
        values = of_bits(SPECIAL * 3).view(9, 8)
        for name, master in layouts(values).items():
            for other, weight in layouts(values.flip(0, 1).to(BF16)).items():
                self.assertGreater(self.check(master, weight, f"{name} to {other}"), 0)
                self.assertEqual(self.check(master, weight, f"{name} to {other} again"), 0)

    def test_the_bits_of_a_plain_cast_are_written(self) -> None:
        """NaNs too: the bits of these differ by the way in which torch casts."""
        master = of_bits(SPECIAL * 11)
        weight, plain = torch.zeros(len(master), dtype=BF16), torch.zeros(len(master), dtype=BF16)
        plain.copy_(master)
        cast_and_list([master], [weight])
        self.assertTrue(torch.equal(weight.view(I16), plain.view(I16)))

    def test_signs_of_zero_and_kinds_of_nan_are_changes(self) -> None:
        weight = torch.tensor([0.0, 0.0, 1.0], dtype=BF16)
        (changes,) = cast_and_list([torch.tensor([-0.0, 0.0, 1.0])], [weight])
        self.assertEqual((changes.position.tolist(), changes.after.tolist()), ([0], [-0x8000]))
        cast_and_list([torch.full((3,), float("nan"))], [weight])
        nan = weight.view(I16).clone()
        weight.view(I16)[1] ^= 1  # another NaN
        (changes,) = cast_and_list([torch.full((3,), float("nan"))], [weight])
        self.assertEqual(changes.position.tolist(), [1])
        self.assertEqual(changes.before.tolist(), [int(nan[1]) ^ 1])

    def test_steps_of_an_optimizer(self) -> None:
        masters = [torch.randn(300, 70), torch.randn(33), torch.tensor(2.5), torch.empty(0, 4)]
        weights = [torch.nn.Parameter(master.to(BF16)) for master in masters]
        for share in (0.01, 0.0, 1.0):
            olds = [weight.detach().clone() for weight in weights]
            for master in masters:
                chosen = torch.rand(master.shape) < share
                master.mul_(torch.where(chosen, torch.tensor(1.01), torch.tensor(1.0)))
            for master, weight, old, changes in zip(
                masters, weights, olds, cast_and_list(masters, weights)
            ):
                self.assertTrue(torch.equal(weight.detach(), master.to(BF16)))
                patched = old.view(I16).view(-1)
                self.assertTrue(torch.equal(patched[changes.position], changes.before))
                self.assertTrue(bool((changes.before != changes.after).all()))
                patched[changes.position] = changes.after
                self.assertTrue(torch.equal(patched, weight.detach().view(I16).view(-1)))

    def test_tensors_of_other_kinds_are_refused_and_nothing_is_written(self) -> None:
        good, weight = torch.ones(2, 3), torch.zeros(2, 3, dtype=BF16)
        sparse: Any = torch.zeros(2, 3, dtype=BF16).to_sparse()
        for masters, weights, error, why in (
            ([good], [], dws.InvalidArgumentError, "2 masters and 1 weights"),
            ([good.double()], [weight], dws.DTypeError, "master 1 is torch.float64, expected torch.float32"),
            ([good], [good], dws.DTypeError, "weight 1 is torch.float32, expected torch.bfloat16"),
            ([good], [good.numpy()], dws.DTypeError, "weight 1 is a ndarray"),
            ([good.t()], [weight], dws.LayoutError, r"master 1 is \[3, 2\] on cpu, and its weight \[2, 3\]"),
            ([good], [weight[:1].expand(2, 3)], dws.LayoutError, r"weight 1 \[2, 3\] has strides \[0, 1\]"),
            ([good], [torch.zeros(4, dtype=BF16).as_strided((2, 3), (1, 1))], dws.LayoutError, r"has strides \[1, 1\]"),
            ([good], [sparse], dws.LayoutError, "'weight 1' has layout torch.sparse"),
        ):
            first = torch.zeros(2, 3, dtype=BF16)
            with self.assertRaisesRegex(error, why):
                cast_and_list([good, *masters], [first, *weights])
            self.assertEqual(float(first.sum()), 0)


if __name__ == "__main__":
    unittest.main()
