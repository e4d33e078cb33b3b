"""The objects of PULSELoCo: what is put in comes out, an independent decoder agrees, and what is damaged or belongs
elsewhere is refused by name."""

from __future__ import annotations

import random
import unittest
from pathlib import Path
from typing import Sequence

import numpy as np
from dws.digest import digest_bytes
from dws.dtypes import DType
from dws.errors import DTypeError, InvalidArgumentError, LayoutError, StateError
from dws.on_demand.pulse_loco import ShardSum
from dws.on_demand.pulse_loco.arithmetic import select, to_bf16
from dws.on_demand.pulse_loco.bits import BitWriter
from dws.on_demand.pulse_loco.blocks import decode_block
from dws.on_demand.pulse_loco.objects import Address, Base, Decoded, Kind, decode, encode

from tests.clients.python.pulse_loco import naive_decoder
from tests.clients.python.pulse_loco.reference import F32, Array, local_steps, same_bits, weights

HERE = Path("tests/clients/python/pulse_loco")
ADDRESS = Address(round=5, attempt=2, shard=1)


def contribution(theta: Array, values: Array, dtype: DType, rank: int = 3) -> bytes:
    return encode(Kind.CONTRIBUTION, ADDRESS, Base.of(theta), values, dtype, [rank])


def read(data: bytes, theta: Array, dtype: DType, kind: Kind = Kind.CONTRIBUTION) -> Decoded:
    return decode(kind, data, ADDRESS, Base.of(theta), dtype, "worker 3")


def chosen(theta: Array, generator: np.random.Generator, dtype: DType, size: float = 2e-5) -> Array:
    return select(theta, np.zeros_like(theta), local_steps(generator, theta, size), dtype).values


def signed_again(data: bytearray) -> bytes:
    """With digests that fit: what a sender with an error would send."""
    header = np.frombuffer(bytes(data[:96]), np.uint8).copy()
    header[72:88] = np.array(digest_bytes(bytes(data[96:])), "<u8").view(np.uint8)
    header[88:96] = np.array([digest_bytes(header[:88].tobytes())[0]], "<u8").view(np.uint8)
    return header.tobytes() + bytes(data[96:])


class RoundTripTest(unittest.TestCase):
    def check(self, theta: Array, values: Array, dtype: DType, naive: bool = True) -> bytes:
        data = contribution(theta, values, dtype)
        found = read(data, theta, dtype)
        self.assertEqual(found.ranks, (3,))
        self.assertTrue(same_bits(found.dense(theta.size), np.where(values != 0, values, F32(0))))
        if naive:
            plain = naive_decoder.decode(data, theta.view(np.uint32).tolist())
            self.assertEqual(sorted(plain), found.positions.tolist())
            self.assertEqual([plain[i] for i in sorted(plain)], found.values.view(np.uint32).tolist())
        return data

    def test_what_workers_send(self) -> None:
        generator = np.random.default_rng(1)
        for elements in (0, 1, 2, 63, 3000):
            theta = weights(generator, elements)
            for dtype in (DType.F32, DType.BF16):
                for size in (1e-7, 2e-5, 1e-2, 10.0):
                    with self.subTest(elements=elements, dtype=dtype.name, size=size):
                        self.check(theta, chosen(theta, generator, dtype, size), dtype)

    def test_any_values_for_any_weights(self) -> None:
        """Also such as no worker sends: subnormal, huge, far from any boundary."""
        generator = np.random.default_rng(2)
        for density in (0.001, 0.1, 0.5, 0.999, 1.0):
            both = generator.integers(0, 1 << 32, (2, 2000)).astype(np.uint32)
            both[:, ::5] &= np.uint32(0x807FFFFF)
            both = np.where((both & np.uint32(0x7F800000)) == 0x7F800000, both ^ np.uint32(0x40000000), both)
            theta, values = both.view(F32)
            values = np.where(generator.random(2000) < density, values, F32(0))
            with self.subTest(density=density):
                self.check(theta, values, DType.F32)
                small = np.where(np.isfinite(to_bf16(values)), to_bf16(values), F32(0))
                self.check(theta, small, DType.BF16)
        top = np.full(100, np.finfo(F32).max, F32)
        self.check(top, np.full(100, -np.finfo(F32).max, F32), DType.F32)

    def test_several_blocks(self) -> None:
        generator = np.random.default_rng(3)
        theta = (generator.normal(size=2 * 262_144 + 7) * 0.03).astype(F32)
        values = chosen(theta, generator, DType.BF16)
        values[: 262_144] = 0
        data = self.check(theta, values, DType.BF16, naive=False)
        self.assertEqual(np.frombuffer(data[96:100], "<u4")[0], 0)

    def test_bytes_of_an_entry(self) -> None:
        """At 8 % density, with weights of 0.03 and changes of 5e-6: below the design's 3.87 and 1.87 bytes."""
        generator = np.random.default_rng(4)
        theta = (generator.normal(size=262_144) * 0.03).astype(F32)
        for dtype, most in ((DType.F32, 2.6), (DType.BF16, 1.7)):
            values = chosen(theta, generator, dtype, 5e-6)
            entries = int((values != 0).sum())
            self.assertTrue(0.06 < entries / theta.size < 0.11, entries / theta.size)
            self.assertLess(len(contribution(theta, values, dtype)) / entries, most)

    def test_golden_objects(self) -> None:
        """Objects of format 1 are read for ever. `encode` may choose other bytes some day, so it is not compared."""
        for dtype in (DType.F32, DType.BF16):
            generator = np.random.default_rng(5)
            theta = np.ldexp(generator.integers(1 << 23, 1 << 24, 500).astype(F32), generator.integers(-32, -26, 500))
            theta = (theta * generator.choice([-1, 1], 500)).astype(F32)
            moved = theta + np.ldexp(generator.integers(-9000, 9000, 500).astype(F32), -29)
            values = select(theta, np.zeros_like(theta), moved, dtype).values
            data = (HERE / f"golden_{dtype.name.lower()}.bin").read_bytes()
            self.assertTrue(same_bits(read(data, theta, dtype).dense(500), values))
            plain = naive_decoder.decode(data, theta.view(np.uint32).tolist())
            self.assertEqual(len(plain), int((values != 0).sum()))
            self.assertEqual(naive_decoder.header(data), {
                "magic": b"DWSPULSE", "format": 1, "kind": 1, "dtype": dtype.value, "rank": 3, "round": 5, "attempt": 2,
                "elements": 500, "payload_bytes": len(data) - 96, "shard": 1, "zero": 0})


class DamageTest(unittest.TestCase):
    def setUp(self) -> None:
        self.generator = np.random.default_rng(6)
        self.theta = weights(self.generator, 1200)
        self.values = chosen(self.theta, self.generator, DType.BF16)
        self.data = contribution(self.theta, self.values, DType.BF16)

    def refused(self, data: bytes, why: str, dtype: DType = DType.BF16) -> None:
        with self.assertRaisesRegex(InvalidArgumentError, f"contribution that worker 3 sent for shard 1.*{why}"):
            read(data, self.theta, dtype)

    def test_every_byte_that_is_flipped(self) -> None:
        for at in range(len(self.data)):
            data = bytearray(self.data)
            data[at] ^= random.Random(at).randrange(1, 256)
            self.refused(bytes(data), "is damaged")

    def test_every_length(self) -> None:
        for length in range(len(self.data)):
            self.refused(self.data[:length], "is damaged")
        self.refused(self.data + b"\0", "is damaged: expected .* bytes after the header")

    def test_wrong_planes_with_fitting_digests_are_refused_or_read_within_the_shard(self) -> None:
        """Nothing but the named error may come of them, whatever they say."""
        chance, refused = random.Random(7), 0
        raw = contribution(self.theta, self.theta + F32(1), DType.F32)
        sums = ShardSum(self.theta, ADDRESS, DType.BF16)
        sums.add(self.data, "worker 3")
        for sound, dtype, kind in ((self.data, DType.BF16, Kind.CONTRIBUTION), (raw, DType.F32, Kind.CONTRIBUTION),
                                   (sums.total([3]), DType.F32, Kind.SUM)):
            for _ in range(300):
                data = bytearray(sound)
                for _ in range(chance.choice((1, 1, 2, 20))):
                    data[chance.randrange(96, min(len(data), 96 + chance.choice((8, 60, 9999))))] = chance.randrange(256)
                if chance.random() < 0.3:
                    del data[chance.randrange(96, len(data)) :]
                    data[40:48] = (len(data) - 96).to_bytes(8, "little")
                try:
                    found = read(signed_again(data), self.theta, dtype, kind)
                    self.assertTrue(np.isfinite(found.values).all() and (found.values != 0).all())
                    self.assertTrue((np.diff(found.positions) > 0).all() and (found.positions < 1200).all())
                except InvalidArgumentError:
                    refused += 1
        self.assertGreater(refused, 300)

    def test_what_belongs_elsewhere_is_refused_by_name(self) -> None:
        base = Base.of(self.theta)
        other = self.theta.copy()
        other[7] += 1
        for why, kind, address, of, dtype in (
            ("expected kind SUM, found CONTRIBUTION", Kind.SUM, ADDRESS, base, DType.BF16),
            ("expected shard 4, found 1", Kind.CONTRIBUTION, ADDRESS._replace(shard=4), base, DType.BF16),
            ("expected round 6, found 5", Kind.CONTRIBUTION, ADDRESS._replace(round=6), base, DType.BF16),
            ("expected attempt 3, found 2", Kind.CONTRIBUTION, ADDRESS._replace(attempt=3), base, DType.BF16),
            ("expected element type F32, found BF16", Kind.CONTRIBUTION, ADDRESS, base, DType.F32),
            ("expected elements 1199, found 1200", Kind.CONTRIBUTION, ADDRESS, Base.of(self.theta[1:]), DType.BF16),
            ("take theta_g and u in full", Kind.CONTRIBUTION, ADDRESS, Base.of(other), DType.BF16),
        ):
            with self.subTest(why=why), self.assertRaisesRegex(InvalidArgumentError, f"worker 3 sent.*{why}"):
                decode(kind, self.data, address, of, dtype, "worker 3")

    def test_headers_that_mean_nothing(self) -> None:
        for at, value, why in ((8, 2, "has format 2, expected 1"), (12, 7, "a field without a meaning"),
                               (13, 9, "a field without a meaning"), (15, 1, "expected a rank below 256, found 259"),
                               (52, 1, "a field without a meaning"), (47, 1, "bytes after the header")):
            data = bytearray(self.data)
            data[at] = value
            self.refused(signed_again(data), why)
        for more in (1, -1):
            data = bytearray(self.data)
            data[96:100] = (int.from_bytes(data[96:100], "little") + more).to_bytes(4, "little")
            size = len(data) - 100
            self.refused(signed_again(data), f"expected {size} bytes of blocks, found {size + more}")
        self.refused(signed_again(bytearray(self.data[:40] + bytes(8) + self.data[48:96])), "expected 4 to .* payload")

    def raw_with(self, bits: int, dtype: DType) -> bytes:
        """An object with one value, for element 5, in mode 1."""
        # Raw: 8 bits of mode, 1,200 of who, one that says that values are whole, and one value.
        planes = np.zeros(8 + 1200 + 1 + 32, np.uint8)
        planes[[0, 8 + 5]] = 1
        planes[-32:] = [(bits >> bit) & 1 for bit in range(32)]
        block = np.packbits(planes, bitorder="little").tobytes()
        payload = len(block).to_bytes(4, "little") + block
        data = bytearray(contribution(self.theta, self.values, dtype)[:96] + payload)
        data[40:48] = len(payload).to_bytes(8, "little")
        return signed_again(data)

    def test_values_that_no_sender_may_send(self) -> None:
        """Such as the encoder never makes; a sound one is read."""
        for bits, dtype in ((0x3F800001, DType.F32), (0xBF810000, DType.BF16)):
            found = read(self.raw_with(bits, dtype), self.theta, dtype)
            self.assertEqual(found.positions.tolist(), [5])
            self.assertEqual(found.values.view(np.uint32).tolist(), [bits])
        for bits, dtype, why in ((0x7F800000, DType.F32, "expected finite values"), (0x7FC00000, DType.F32, "finite"),
                                 (0x80000000, DType.F32, "other than 0"), (0x3F800001, DType.BF16, "expected BF16 values")):
            self.refused(self.raw_with(bits, dtype), why, dtype)


class PlanesTest(unittest.TestCase):
    """Blocks of 100 weights of 1.0, whose near distance is 2^-9 and whose far one 2^-8, bit by bit."""

    theta = np.full(100, 1.0, F32)

    def block(self, *numbers: tuple[int, int]) -> bytes:
        """Numbers and widths; a width of -1 is unary."""
        writer = BitWriter()
        for value, width in numbers:
            if width < 0:
                writer.unary(np.array([value]))
            else:
                writer.number(value, width)
        return writer.bytes()

    def split(self, classes: int = 1, count: int = 1, gap: int = 42, base: int = 3, amount: int = 16,
              tail: Sequence[tuple[int, int]] = ()) -> bytes:
        """Element 42 gets a value by default; its upper half is 3 above the distance's."""
        return self.block((2, 8), (118, 8), (classes, 5),
                          (7, 5), (count, 7), (0, 1), (7, 4), (gap, 7), (0, -1),  # who
                          (1, 5), (0, 1), (0, 1),  # none the far way
                          (base + 65_536, 17), (0, 4), (0, -1), (0, 1), (amount, 5), (1, 5), (0, 1), (0, 1), *tail)

    def test_the_block_that_the_others_are_made_from(self) -> None:
        positions, values = decode_block(self.split(), self.theta, "it")
        self.assertEqual((positions.tolist(), values.tolist()), ([42], [2.0**-9 * (1 + 3 / 128)]))
        raw = self.block((1, 8), (1 << 42, 100), (1, 1), (0x3F80, 16))
        self.assertEqual([part.tolist() for part in decode_block(raw, self.theta, "it")], [[42], [1.0]])

    def test_planes_that_contradict_themselves_or_the_shard(self) -> None:
        whole = self.split()
        for why, data in (
            ("expected mode 1 or 2, found 3", self.block((3, 8))),
            ("expected 1 to 24 classes, found 0", self.split(classes=0)),
            ("expected 1 to 24 classes, found 25", self.split(classes=25)),
            ("expected at most 100 elements of class 0, found 101", self.split(count=101)),
            ("expected 100 elements of class 0, found element 100", self.split(gap=100)),
            ("upper halves", self.split(base=-0x3B01)),
            ("upper halves", self.split(base=0x7F80 - 0x3B00)),
            ("expected at most 16 zero bits, found 17", self.split(amount=17)),
            ("found 8 bits more", whole + b"\0"),
            ("found 3 bits more", self.block((1, 8), (1 << 42, 100), (1, 1), (0x3F80, 16), (4, 3))),
            ("expected 1 unary numbers, found 0", self.block((2, 8), (118, 8), (1, 5), (7, 5), (1, 7), (0, 1), (0, 4))),
            ("expected a number of 7 bits", self.block((2, 8), (118, 8), (1, 5), (7, 5))),
            ("expected 100 numbers of 1 bits", self.block((1, 8), (0, 8))),
            ("expected at most 414 bytes, found 415", self.block((1, 8), (0, 8 * 414))),
        ):
            with self.subTest(why=why), self.assertRaisesRegex(InvalidArgumentError, f"it is damaged: .*({why})"):
                decode_block(data, self.theta, "it")


class OwnerTest(unittest.TestCase):
    def setUp(self) -> None:
        generator = np.random.default_rng(9)
        self.theta = weights(generator, 900)
        self.values = [chosen(self.theta, generator, DType.F32) for _ in range(4)]
        self.data = [contribution(self.theta, values, DType.F32, rank) for rank, values in enumerate(self.values)]

    def owner(self, order: Sequence[int]) -> ShardSum:
        owner = ShardSum(self.theta, ADDRESS, DType.F32)
        for rank in order:
            self.assertTrue(owner.add(self.data[rank], f"worker {rank}"))
        return owner

    def test_the_sum_does_not_depend_on_the_order(self) -> None:
        expected = self.owner([0, 1, 2, 3]).total([0, 1, 2, 3])
        found = read(expected, self.theta, DType.F32, Kind.SUM)
        self.assertEqual(found.ranks, (0, 1, 2, 3))
        plain = sum((values.astype(np.float64) for values in self.values), np.zeros(900)).astype(F32)
        self.assertTrue(same_bits(found.dense(900), plain))
        decoded = naive_decoder.decode(expected, self.theta.view(np.uint32).tolist())
        self.assertEqual({i: int(bits) for i, bits in enumerate(plain.view(np.uint32)) if bits}, decoded)
        self.assertEqual(self.owner([2, 0, 3, 1]).total([3, 1, 0, 2]), expected)

    def test_a_rank_that_is_left_out(self) -> None:
        owner = self.owner([3, 2, 0])
        self.assertEqual(owner.ranks, [0, 2, 3])
        self.assertTrue(same_bits(owner.values(2), self.values[2]))
        with self.assertRaisesRegex(StateError, r"no contribution of ranks \[1\]"):
            owner.values(1)
        with self.assertRaisesRegex(StateError, r"shard 1 has no contribution of ranks \[1\]: wait"):
            owner.total([0, 1, 2])
        with self.assertRaisesRegex(InvalidArgumentError, "at least one rank"):
            owner.total([])
        self.assertEqual(owner.total([2, 0]), self.owner([0, 2]).total([0, 2]))

    def test_the_same_again_is_not_added_and_another_is_refused(self) -> None:
        owner = self.owner([0, 1])
        self.assertFalse(owner.add(self.data[1], "worker 1"))
        with self.assertRaisesRegex(InvalidArgumentError, "second, different contribution of rank 1 to shard 1 in round 5"):
            owner.add(contribution(self.theta, self.values[2], DType.F32, 1), "worker 1")
        self.assertEqual(owner.total([0, 1]), self.owner([0, 1]).total([0, 1]))

    def test_a_shard_that_no_worker_has(self) -> None:
        for error, theta in ((DTypeError, self.theta.astype(np.float64)), (LayoutError, self.theta.reshape(30, 30)),
                             (InvalidArgumentError, self.theta + F32(np.inf))):
            with self.assertRaises(error):
                ShardSum(theta, ADDRESS, DType.F32)
        strided = np.repeat(self.theta, 2)[::2]
        owner = ShardSum(strided, ADDRESS, DType.F32)
        self.assertTrue(owner.add(self.data[0], "worker 0"))

    def test_a_sum_beyond_fp32_is_refused(self) -> None:
        owner = ShardSum(self.theta, ADDRESS, DType.F32)
        for rank in (0, 1):
            owner.add(contribution(self.theta, np.full(900, 3e38, F32), DType.F32, rank), "worker")
        with self.assertRaisesRegex(InvalidArgumentError, "the sum over the workers has 900 of 900"):
            owner.total([0, 1])


if __name__ == "__main__":
    unittest.main()
