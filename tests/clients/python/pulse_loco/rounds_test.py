"""PULSELoCo round by round: equal to the equations bit for bit, on all workers, whatever the order."""

from __future__ import annotations

import random
import unittest

import numpy as np
from dws.digest import digest_hex
from dws.dtypes import DType
from dws.errors import DTypeError, InvalidArgumentError, LayoutError, StateError
from dws.on_demand.pulse_loco import PulseLoCo, Settings, ShardSum
from dws.on_demand.pulse_loco.arithmetic import to_bf16

from tests.clients.python.pulse_loco.reference import F32, Array, Reference, bf16, local_steps, same_bits, weights

SHARDS = [1500, 0, 2501]
ELEMENTS = sum(SHARDS)


def make_workers(theta: Array, count: int, settings: Settings = Settings()) -> list[PulseLoCo]:
    return [PulseLoCo(theta, rank=rank, shards=SHARDS, settings=settings) for rank in range(count)]


def owners(worker: PulseLoCo) -> list[ShardSum]:
    ends = np.cumsum(SHARDS)
    return [ShardSum(worker.theta_g[end - size : end], worker.address(shard), worker.settings.values)
            for shard, (size, end) in enumerate(zip(SHARDS, ends))]


def sums_of(workers: list[PulseLoCo], thetas: dict[int, Array], shuffle: random.Random) -> list[bytes]:
    """Contributions arrive in any order, each owner sees another one, and some come twice."""
    objects = {rank: workers[rank].contribute(theta) for rank, theta in thetas.items()}
    out = []
    for shard, owner in enumerate(owners(workers[min(thetas)])):
        order = list(objects)
        shuffle.shuffle(order)
        for rank in order:
            assert owner.add(objects[rank][shard], f"worker {rank}")
        assert not owner.add(objects[order[0]][shard], f"worker {order[0]}")
        out.append(owner.total(list(objects)))
    return out


class RoundsTest(unittest.TestCase):
    def test_rounds_are_the_equations_bit_for_bit(self) -> None:
        for count in range(1, 7):
            for values in (DType.F32, DType.BF16):
                with self.subTest(workers=count, values=values.name):
                    self.run_rounds(count, Settings(0.7, 0.9, values), rounds=5)
        self.run_rounds(3, Settings(1.0, 0.0, DType.BF16), rounds=5)

    def run_rounds(self, count: int, settings: Settings, rounds: int) -> None:
        generator, shuffle = np.random.default_rng(count), random.Random(count)
        theta = weights(generator, ELEMENTS)
        workers = make_workers(theta, count, settings)
        reference = Reference(theta, count, settings.outer_lr, settings.momentum, settings.values is DType.BF16)
        sent = 0
        for number in range(rounds):
            thetas = {rank: local_steps(generator, worker.begin()) for rank, worker in enumerate(workers)}
            sums = sums_of(workers, thetas, shuffle)
            digests = {digest_hex(worker.apply(sums)) for worker in workers}
            sent += sum(int((reference.sent(rank, theta)[0] != 0).sum()) for rank, theta in thetas.items())
            reference.round(list(thetas.values()))
            self.assertEqual(len(digests), 1, number)
            for rank, worker in enumerate(workers):
                self.assertEqual(worker.round, number + 1)
                self.assertTrue(same_bits(worker.theta_g, reference.theta), number)
                self.assertTrue(same_bits(worker.u, reference.u), number)
                self.assertTrue(same_bits(worker.residual, reference.residuals[rank]), number)
        self.assertGreater(sent, 0.01 * count * rounds * ELEMENTS)
        self.assertLess(sent, 0.6 * count * rounds * ELEMENTS)

    def test_what_is_not_sent_is_sent_later(self) -> None:
        """Steps too small for any BF16 weight add up in the residual until they are not."""
        theta = np.full(ELEMENTS, 1.0, F32)
        worker = make_workers(theta, 1, Settings(1.0, 0.0))[0]
        moved = 0
        for number in range(1, 31):
            before = worker.theta_g.copy()
            sums = sums_of([worker], {0: worker.begin() - F32(2.0**-12)}, random.Random(1))
            worker.apply(sums)
            moved += int((worker.theta_g != before).sum())
            both = worker.theta_g.astype(np.float64) - worker.residual
            self.assertTrue((both == 1 - number * 2.0**-12).all(), number)
        self.assertEqual(moved, 2 * ELEMENTS)  # at 2^-9, a tie to the other even number, and 2^-8 later

    def test_a_reset_leaves_no_trace_of_the_local_weights(self) -> None:
        generator = np.random.default_rng(4)
        workers = make_workers(weights(generator, ELEMENTS), 2)
        thetas = {rank: local_steps(generator, worker.begin()) for rank, worker in enumerate(workers)}
        sums = sums_of(workers, thetas, random.Random(4))
        self.assertEqual(workers[0].apply(sums), workers[1].apply(sums))
        self.assertTrue(same_bits(workers[0].begin(), workers[1].begin()))
        with self.assertRaises(ValueError):
            workers[0].theta_g[0] = 1


class ExtremesTest(unittest.TestCase):
    def round_of(self, theta: Array, theta_r: Array, values: DType) -> tuple[PulseLoCo, Array, list[bytes]]:
        """One worker and round, compared with the equations. Returns also what was sent, and the objects."""
        settings = Settings(0.7, 0.9, values)
        worker = make_workers(theta, 1, settings)[0]
        reference = Reference(theta, 1, 0.7, 0.9, values is DType.BF16)
        worker.begin()
        sent = reference.sent(0, theta_r)[0]
        sums = sums_of([worker], {0: theta_r}, random.Random(2))
        objects = worker.contributed
        assert objects is not None
        reference.round([theta_r])
        worker.apply(sums)
        self.assertTrue(same_bits(worker.theta_g, reference.theta))
        self.assertTrue(same_bits(worker.residual, reference.residuals[0]))
        return worker, sent, objects

    def test_nothing_is_sent_if_nothing_moved(self) -> None:
        theta = weights(np.random.default_rng(1), ELEMENTS)
        worker, sent, objects = self.round_of(theta, theta, DType.F32)
        self.assertFalse(sent.any())
        self.assertTrue(same_bits(worker.theta_g, theta))
        self.assertEqual([len(data) for data in objects], [100, 96, 100])

    def test_everything_is_sent_if_everything_moved(self) -> None:
        for values in (DType.F32, DType.BF16):
            generator = np.random.default_rng(3)
            theta = weights(generator, ELEMENTS)
            _, sent, _ = self.round_of(theta, theta + F32(3) * (np.abs(theta) + F32(1)), values)
            self.assertTrue(sent.all())

    def test_zeros_of_both_signs_and_subnormals(self) -> None:
        generator = np.random.default_rng(5)
        bits = generator.integers(0, 1 << 20, (2, ELEMENTS)).astype(np.uint32)
        bits |= generator.integers(0, 2, bits.shape).astype(np.uint32) << np.uint32(31)
        bits[0, ::3] &= np.uint32(0x80000000)
        bits[1, ::7] = bits[0, ::7] ^ np.uint32(0x80000000)
        theta, theta_r = bits.view(F32)
        for values in (DType.F32, DType.BF16):
            _, sent, _ = self.round_of(theta, theta_r, values)
            self.assertGreater(int((sent != 0).sum()), ELEMENTS // 4)
        zeros = np.zeros(ELEMENTS, F32)
        _, sent, _ = self.round_of(zeros, -zeros, DType.F32)
        self.assertFalse(sent.any())  # from 0 to -0 is no change

    def test_a_value_that_bf16_rounds_to_zero_stays_in_the_residual(self) -> None:
        theta = np.full(ELEMENTS, 2.0**-134, F32)  # half of BF16's smallest number, a tie
        theta_r = np.full(ELEMENTS, 2.0**-134 + 2.0**-149, F32)
        worker, sent, _ = self.round_of(theta, theta_r, DType.BF16)
        self.assertFalse(sent.any())
        self.assertTrue((worker.residual == F32(-(2.0**-149))).all())
        _, sent, _ = self.round_of(theta, theta_r, DType.F32)
        self.assertTrue((sent == F32(-(2.0**-149))).all())

    def test_the_largest_weights(self) -> None:
        largest = np.finfo(F32).max
        theta = np.full(ELEMENTS, largest, F32)
        theta[::2] *= -1
        self.round_of(theta, theta * F32(0.99), DType.F32)
        worker = make_workers(theta, 1, Settings(values=DType.BF16))[0]
        worker.begin()
        with self.assertRaisesRegex(InvalidArgumentError, "change together has 4001 of 4001"):
            worker.contribute(-theta)
        with self.assertRaisesRegex(InvalidArgumentError, "the values to send has 4001 of 4001"):
            worker.contribute(np.zeros(ELEMENTS, F32))  # BF16 rounds the largest FP32 number to infinity

    def test_bf16_is_rounded_as_by_value(self) -> None:
        bits = np.random.default_rng(6).integers(0, 1 << 32, 100_000).astype(np.uint32)
        bits = np.concatenate([bits, np.arange(1 << 17, dtype=np.uint32), np.arange(0x7F7E0000, 0x7F800000, dtype=np.uint32)])
        x = bits.view(F32)
        x = x[np.isfinite(x)]
        self.assertTrue(same_bits(to_bf16(x), bf16(x)))


class RefusalsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.generator = np.random.default_rng(8)
        self.workers = make_workers(weights(self.generator, ELEMENTS), 3)

    def test_nan_and_infinity_are_refused_and_the_others_go_on(self) -> None:
        thetas = {rank: local_steps(self.generator, worker.begin()) for rank, worker in enumerate(self.workers)}
        before = self.workers[2].digest()
        for bad in (np.nan, np.inf, -np.inf):
            thetas[2][17] = bad
            with self.assertRaisesRegex(InvalidArgumentError, "theta_r has 1 of 4001 elements .* number 17"):
                self.workers[2].contribute(thetas[2])
        self.assertEqual(self.workers[2].digest(), before)
        del thetas[2]
        sums = sums_of(self.workers, thetas, random.Random(3))
        self.assertEqual(len({worker.apply(sums) for worker in self.workers}), 1)
        self.assertFalse(self.workers[2].residual.any())

    def test_a_step_beyond_fp32_changes_nothing(self) -> None:
        theta = np.full(ELEMENTS, 3e38, F32)
        worker = make_workers(theta, 1, Settings(1.0, 0.99))[0]
        sums = sums_of([worker], {0: np.full(ELEMENTS, 3.3e38, F32) + 0 * worker.begin()}, random.Random(3))
        before = worker.digest()
        with self.assertRaisesRegex(InvalidArgumentError, "theta_g after this round has 4001"):
            worker.apply(sums)
        self.assertEqual((worker.digest(), worker.round, worker.attempt), (before, 0, 1))

    def test_arguments(self) -> None:
        theta = np.zeros(ELEMENTS, F32)
        for error, why in (
            (DTypeError, dict(theta=theta.astype(np.float64))),
            (DTypeError, dict(theta=theta.tolist())),
            (LayoutError, dict(theta=theta.reshape(1, -1))),
            (InvalidArgumentError, dict(theta=theta + F32(np.nan))),
            (InvalidArgumentError, dict(rank=256)),
            (LayoutError, dict(shards=[1])),
            (LayoutError, dict(shards=[])),
            (LayoutError, dict(shards=[-1, ELEMENTS + 1])),
            (InvalidArgumentError, dict(settings=Settings(outer_lr=0))),
            (InvalidArgumentError, dict(settings=Settings(outer_lr=1e-60))),
            (InvalidArgumentError, dict(settings=Settings(outer_lr=float("nan")))),
            (InvalidArgumentError, dict(settings=Settings(momentum=1.0))),
            (DTypeError, dict(settings=Settings(values=DType.F16))),
        ):
            arguments = {"theta": theta, "rank": 0, "shards": SHARDS, **why}
            with self.subTest(why=str(why)), self.assertRaises(error):
                PulseLoCo(arguments.pop("theta"), **arguments)
        worker = self.workers[0]
        worker.begin()
        with self.assertRaises(DTypeError):
            worker.contribute(theta.astype(np.float64))
        with self.assertRaises(LayoutError):
            worker.contribute(theta[1:])

    def test_calls_out_of_order(self) -> None:
        worker = self.workers[0]
        with self.assertRaisesRegex(StateError, "round 0 is not open"):
            worker.contribute(worker.theta_g)
        with self.assertRaisesRegex(StateError, "round 0 is not open"):
            worker.apply([b""] * len(SHARDS))
        worker.begin()
        with self.assertRaisesRegex(StateError, "attempt 1 of round 0 is open"):
            worker.begin()
        with self.assertRaisesRegex(InvalidArgumentError, "1 sums: expected one for each of 3"):
            worker.apply([b""])
        worker.abandon()
        with self.assertRaisesRegex(InvalidArgumentError, "attempt 1: expected a number above 1"):
            worker.begin(1)
        worker.begin(7)
        self.assertEqual(worker.attempt, 7)

    def test_sums_of_different_ranks(self) -> None:
        thetas = {rank: local_steps(self.generator, worker.begin()) for rank, worker in enumerate(self.workers)}
        sums = sums_of(self.workers, thetas, random.Random(3))
        others = sums_of(self.workers, {0: thetas[0], 1: thetas[1]}, random.Random(3))
        with self.assertRaisesRegex(InvalidArgumentError, r"shard 2 has contributions of ranks \[0, 1\]"):
            self.workers[0].apply([*sums[:2], others[2]])


if __name__ == "__main__":
    unittest.main()
