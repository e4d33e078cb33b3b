"""The outbox that Python fills and C++ reads, through the memory that both map, and the sums of what was in it."""

from __future__ import annotations

import itertools
import random
import subprocess
import threading
import time
import unittest
from typing import Any

import numpy as np

from dws.dtypes import DType
from dws.errors import DaemonUnavailableError, DeadlineError, DTypeError, InvalidArgumentError, StateError
from dws.on_demand import Outbox, Piece

PROGRAM = "tests/common/memory/gradients/add_outbox"
SEED = random.randrange(1 << 32)
LONG = 60.0  # seconds


def start(outbox: Outbox, shards: list[list[int]], pieces: int, exact: bool) -> subprocess.Popen[bytes]:
    """The senders of the host; shards: elements by owner and unit."""
    descriptors = [outbox.region.descriptor(), outbox.sender_end.fileno()]
    sizes = [",".join(map(str, shard)) for shard in shards]
    command = [PROGRAM, str(descriptors[0]), str(outbox.region.size_bytes), str(descriptors[1]), str(pieces),
               "exact" if exact else "fp32", *sizes]
    process = subprocess.Popen(command, pass_fds=descriptors, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    outbox.handed_over()
    return process


def as_numbers(raw: Any, dtype: DType) -> Any:
    if dtype == DType.F32:
        return raw.view(np.float32)
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def gradients(generator: Any, count: int, dtype: DType) -> Any:
    """Raw bytes of about normal gradients."""
    values = generator.normal(0, 1e-3, count).astype(np.float32)
    if dtype == DType.F32:
        return values.view(np.uint8)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


class OutboxTest(unittest.TestCase):
    def push_all(self, outbox: Outbox, shards: list[list[int]], microbatches: int, dtype: DType) -> list[list[Any]]:
        """Pushes gradients of all units in each microbatch. Returns their sums in FP64, by owner and unit."""
        generator = np.random.default_rng(SEED)
        numbers = itertools.count()
        sums = [[np.zeros(elements) for elements in shard] for shard in shards]
        for _ in range(microbatches):
            for unit in reversed(range(len(shards[0]))):
                buffer = outbox.allocate(LONG)
                pieces, at = [], 0
                for owner, shard in enumerate(shards):
                    raw = gradients(generator, shard[unit], dtype)
                    buffer.bytes[at : at + raw.size] = raw
                    sums[owner][unit] += as_numbers(raw, dtype)
                    pieces.append(Piece(next(numbers), unit, owner, at, raw.size))
                    at += raw.size
                buffer.push(pieces, minibatch=3, term=9, attempt=1, dtype=dtype)
        return sums

    def check(self, dtype: DType, exact: bool) -> None:
        with self.subTest(dtype=dtype.name, exact=exact, seed=SEED):
            shuffle = random.Random(SEED)
            shards = [[shuffle.choice((0, 1, 17, 1000, 70_000)) for _ in range(4)] for _ in range(3)]
            largest = max(sum(shard[unit] for shard in shards) for unit in range(4)) * dtype.itemsize
            outbox = Outbox(owners=3, buffers=2, buffer_bytes=max(largest, 1))
            self.addCleanup(outbox.close)
            microbatches = 12
            process = start(outbox, shards, microbatches * 4 * 3, exact)
            sums = self.push_all(outbox, shards, microbatches, dtype)
            output, errors = process.communicate(timeout=LONG)
            self.assertEqual(process.returncode, 0, errors.decode())
            found = np.frombuffer(output, np.float32)
            lines = [line.split() for line in errors.decode().splitlines()]
            for owner, shard in enumerate(shards):
                squares = 0.0
                for unit, elements in enumerate(shard):
                    ours, found = found[:elements].astype(np.float64), found[elements:]
                    wanted = sums[owner][unit]
                    squares += float(np.sum(ours * ours))
                    if exact:  # BF16: FP64 sums are the true ones, rounded once
                        np.testing.assert_array_equal(ours, wanted.astype(np.float32))
                    else:  # each of the additions has a relative error of at most 2^-24
                        np.testing.assert_allclose(ours, wanted, rtol=0, atol=microbatches**2 * 2.0**-24 * 1e-2)
                self.assertAlmostEqual(float(lines[owner][0]) / max(squares, 1e-300), 1 if squares else 0, delta=1e-9)
                self.assertEqual(lines[owner][1:], ["true", "true" if exact else "false"])
            self.assertEqual(found.size, 0)

    def test_sums_are_those_of_numpy(self) -> None:
        self.check(DType.BF16, exact=True)
        self.check(DType.BF16, exact=False)
        self.check(DType.F32, exact=False)

    def test_a_full_outbox_makes_the_rank_wait_until_its_sender_frees_a_buffer(self) -> None:
        outbox = Outbox(owners=1, buffers=2, buffer_bytes=8)
        self.addCleanup(outbox.close)
        for number in range(2):
            outbox.allocate(0).push([Piece(number, 0, 0, 0, 8)], minibatch=1, term=9, attempt=1, dtype=DType.F32)
        with self.assertRaisesRegex(DeadlineError, "all 2 buffers"):
            outbox.allocate(0.01)
        self.assertGreater(outbox.wait_seconds, 0)
        process = start(outbox, [[2]], 3, exact=False)
        buffer = outbox.allocate(LONG)
        buffer.bytes[:8].view(np.float32)[:] = [1, -2]
        buffer.push([Piece(2, 0, 0, 0, 8)], minibatch=1, term=9, attempt=1, dtype=DType.F32)
        output, errors = process.communicate(timeout=LONG)
        self.assertEqual(np.frombuffer(output, np.float32).tolist(), [1, -2], errors)

    def test_a_rank_that_waits_learns_that_its_sender_is_gone(self) -> None:
        outbox = Outbox(owners=1, buffers=1, buffer_bytes=8)
        self.addCleanup(outbox.close)
        process = start(outbox, [[2]], 1, exact=False)
        held = outbox.allocate(LONG)
        threading.Thread(target=process.kill).start()
        started = time.monotonic()
        with self.assertRaises(DaemonUnavailableError):
            outbox.allocate(LONG)
        self.assertLess(time.monotonic() - started, LONG / 2)
        process.communicate(timeout=LONG)
        held.push([Piece(0, 0, 0, 0, 8)], minibatch=1, term=9, attempt=1, dtype=DType.F32)  # nobody is there: no error

    def test_the_sender_refuses_by_name_what_cannot_be(self) -> None:
        for piece, reason in (
            (Piece(0, 7, 0, 0, 8), "outbox slot 0: expected a unit below 1"),
            (Piece(0, 0, 0, 0, 4), "gradients of unit unit 0: expected 8 bytes"),
        ):
            outbox = Outbox(owners=1, buffers=1, buffer_bytes=8)
            self.addCleanup(outbox.close)
            outbox.allocate(0).push([piece], minibatch=1, term=9, attempt=1, dtype=DType.F32)
            process = start(outbox, [[2]], 1, exact=False)
            _, errors = process.communicate(timeout=LONG)
            self.assertEqual(process.returncode, 1)
            self.assertIn(reason, errors.decode())

    def test_the_bytes_are_those_that_cpp_writes(self) -> None:
        outbox = Outbox(owners=2, buffers=2, buffer_bytes=512)
        self.addCleanup(outbox.close)
        outbox.allocate(0)
        outbox.allocate(0).push([Piece(38, 2, 1, 32, 16)], minibatch=7, term=9, attempt=3, dtype=DType.F32)
        memory = outbox.region.bytes()
        self.assertEqual(memory[:64].tobytes(), b"DWSOUTBX" + np.array([1, 4, 1024, 0], "<u4").tobytes()
                         + (0x2EE66A6DCB986646).to_bytes(8, "little") + bytes(32))
        self.assertEqual(memory[64 + 128 :][:64].view("<u4").tolist(),
                         [1, 2, 1, 13, 7, 0, 38, 0, 3, 0, 512 + 32, 0, 16, 0, 9, 0])
        self.assertEqual(memory.size, 4096 + 1024)

    def test_mistakes_of_the_caller_push_nothing(self) -> None:
        outbox = Outbox(owners=2, buffers=1, buffer_bytes=100)
        self.addCleanup(outbox.close)
        buffer = outbox.allocate(0)
        for piece, attempt in ((Piece(0, 1 << 32, 0, 0, 8), 1), (Piece(-1, 0, 0, 0, 8), 1), (Piece(0, 0, 0, 0, 8), 1 << 32)):
            with self.assertRaisesRegex(InvalidArgumentError, "expected 0 to 2"):
                buffer.push([piece], minibatch=1, term=1, attempt=attempt, dtype=DType.F32)
        self.assertEqual((buffer.bytes.size, buffer.bytes.ctypes.data % 64), (128, 0))

        def push(*pieces: Piece, dtype: DType = DType.F32) -> None:
            buffer.push(pieces, minibatch=1, term=9, attempt=1, dtype=dtype)

        for piece in (Piece(0, 0, 0, 2, 8), Piece(0, 0, 0, 0, 2), Piece(0, 0, 0, 124, 8), Piece(0, 0, 0, -4, 8),
                      Piece(0, 0, 0, 0, -4), Piece(0, 0, 2, 0, 4)):
            with self.assertRaises(InvalidArgumentError):
                push(Piece(0, 0, 0, 0, 4), piece)
        with self.assertRaises(DTypeError):
            push(Piece(0, 0, 0, 0, 8), dtype=DType.F64)
        with self.assertRaises(InvalidArgumentError):
            push(*[Piece(n, 0, 0, 0, 4) for n in range(3)])
        self.assertFalse(outbox.region.bytes()[64 : 64 + 128].any())
        buffer.drop()
        with self.assertRaises(StateError):
            push(Piece(0, 0, 0, 0, 4))
        outbox.allocate(0).push([], minibatch=1, term=9, attempt=1, dtype=DType.BF16)
        outbox.allocate(0)
        for arguments in ((0, 1, 1), (1, 0, 1), (1, 1, 0), (257, 256, 1)):
            with self.assertRaises(InvalidArgumentError):
                Outbox(*arguments)


if __name__ == "__main__":
    unittest.main()
