"""Full versions that are read while the trainer still hands them over: over the connection and from memory of
the same host; given up, stopped, and cut short in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
import unittest
from typing import Any, Iterator

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, eventually
from tests.integration.transfer.early_case import EarlyCase, Shapes

DWSCTL = os.path.abspath("tools/dwsctl/dwsctl")
# 8 MiB and 4 MiB: several pieces of a transfer. A put sends all but what is left in the last bucket.
SHAPES: Shapes = {"a": (2048, 1024), "b": (1024, 1024)}
BYTES = {name: 4 * int(np.prod(shape)) for name, shape in SHAPES.items()}
# By which full tensors come; those of unix sockets are on the same host.
WAYS: dict[str, tuple[str, ...]] = {"same-host": (), "grpc": ("--insecure",)}


class EarlyVersionTest(EarlyCase):
    def begin(self, way: str) -> None:
        self.random = np.random.default_rng(31)
        sender = self.cluster.start_sender(0, *WAYS[way], name=f"s-{way}")
        flags = (*WAYS[way], f"--sender={sender.address}")
        self.connect(sender, self.cluster.start_receiver(f"r-{way}", *flags, senders=False), SHAPES)
        self.await_fetched(sum(BYTES.values()))
        self.taken = self.fetched("full")

    def dwsctl(self, *command: str) -> None:
        command = (DWSCTL, *command, "--socket", self.receiver.socket)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[Any]:
        """A full version of new values, of which the receiver has read some of "a"; the block puts "b"."""
        self.source = self.values()
        with self.dws_trainer.version(number, full=True) as version:
            self.put(version, "a")
            self.await_arrived(BYTES["a"] // 2)
            yield version

    def await_fetched(self, count: float) -> None:
        """Reports follow a commit. Fails if more came."""
        eventually(lambda: self.fetched("full") >= count, lambda: f"{count} bytes, not {self.fetched('full')}")
        self.assertEqual(self.fetched("full"), count)

    def test_a_tensor_travels_before_the_next_one_is_handed_over(self) -> None:
        for way in WAYS:
            with self.subTest(way=way):
                self.begin(way)
                with self.reading(2) as version:
                    self.assertEqual(self.dws_engine.grant.version, 1)
                    self.put(version, "b")
                self.check(2)
                self.assertEqual(self.early("staged"), 1)
                # Nothing came twice.
                self.await_fetched(self.taken + sum(BYTES.values()))
                way_bytes = self.receiver.metric("dws_receiver_source_bytes_total", f'content="full",source="{way}"')
                self.assertEqual(way_bytes, 2 * sum(BYTES.values()))
                self.assert_no_trouble(self.receiver)

    def test_tensors_travel_in_the_order_in_which_they_are_handed_over(self) -> None:
        for way in WAYS:
            with self.subTest(way=way):
                self.begin(way)
                self.source = self.values()
                with self.dws_trainer.version(2, full=True) as version:
                    self.put(version, "b")  # the layout has it last
                    self.await_arrived(BYTES["b"] // 2)
                    self.put(version, "a")
                self.check(2)
                self.assertEqual(self.early("staged"), 1)

    def test_an_operator_is_answered_while_a_version_is_read(self) -> None:
        self.begin("grpc")
        with self.reading(2) as version:
            self.dwsctl("drain")
            self.assertEqual(self.early("dropped"), 1)
            self.put(version, "b")
        self.dwsctl("drain", "--undo")
        self.check(2)

    def test_an_attempt_that_was_given_up_leaves_nothing_in_the_next_one(self) -> None:
        for way in WAYS:
            with self.subTest(way=way):
                self.begin(way)
                before = {n: array.copy() for n, array in self.source.items()}
                for attempt in range(3):
                    with self.assertRaisesRegex(RuntimeError, "the trainer changes its mind"):
                        with self.dws_trainer.version(2, full=True) as version:
                            self.source = self.values()
                            self.put(version, "a")
                            if attempt == 0:
                                self.await_arrived(BYTES["a"] // 2)
                            raise RuntimeError("the trainer changes its mind")
                    self.assert_same_weights(self.dws_engine, self.live, before)
                    self.assertEqual(self.dws_engine.grant.version, 1)
                # The same number, other values, at once; the first try has used up the early reading.
                self.source = self.values()
                with self.dws_trainer.version(2, full=True) as version:
                    self.put(version, *SHAPES)
                self.check(2)
                # What was read of the first try is dropped, or replaced where the digests show it.
                self.assertGreaterEqual(self.early("dropped") + self.early("staged"), 1)
                with self.reading(3) as version:
                    self.put(version, "b")
                self.check(3)

    def test_a_trainer_that_stops_in_the_middle_holds_up_nobody(self) -> None:
        for way in WAYS:
            with self.subTest(way=way):
                self.begin(way)
                before = {n: array.copy() for n, array in self.source.items()}
                with self.reading(2) as version:
                    eventually(lambda: self.early("dropped") == 1, lambda: "an early version dropped")
                    # The engine goes on, and so does its receiver.
                    self.assert_same_weights(self.dws_engine, self.live, before)
                    self.assertEqual(self.receiver.readyz()[0], 200)
                    self.put(version, "b")
                self.check(2)
                self.assertEqual(self.early("staged"), 0)

    def test_an_engine_that_leaves_while_a_version_is_read_is_replaced(self) -> None:
        for way in WAYS:
            with self.subTest(way=way):
                self.begin(way)
                with self.reading(2) as version:
                    self.dws_engine.close()
                    self.put(version, "b")
                self.attach()
                self.check(2)

    def test_daemons_that_are_killed_while_a_version_is_read_come_back(self) -> None:
        for way in WAYS:
            with self.subTest(way=way):
                self.begin(way)
                before = {n: array.copy() for n, array in self.source.items()}
                with self.reading(2) as version:
                    self.receiver.kill()
                    self.put(version, "b")
                self.receiver.start()
                self.await_version(self.dws_engine, 2)
                self.check(2)
                before = {n: array.copy() for n, array in self.source.items()}
                with self.assertRaises(dws.DwsError):
                    with self.dws_trainer.version(3, full=True) as version:
                        self.source = self.values()
                        self.put(version, "a")
                        self.await_arrived(BYTES["a"] // 2)
                        self.sender.kill()
                        self.put(version, "b")
                self.assert_same_weights(self.dws_engine, self.live, before)
                self.sender.start()
                self.dws_trainer.reconnect()
                self.source = self.values()
                with self.dws_trainer.version(4, full=True) as version:
                    self.put(version, *SHAPES)
                self.check(4)

    def test_versions_that_follow_each_other_at_random_are_never_torn(self) -> None:
        for way in WAYS:
            with self.subTest(way=way):
                self.begin(way)
                over = threading.Event()
                torn: list[str] = []

                def look() -> None:
                    while not over.is_set():
                        with self.dws_engine.running(60) as grant:
                            found = {float(array.flat[i]) for array in self.live.values() for i in (0, -1)}
                            wanted = {float(grant.version)}
                            if grant.version > 1 and found != wanted:
                                torn.append(f"version {grant.version}: {found}")
                        time.sleep(0.002)

                watch = threading.Thread(target=look)
                watch.start()
                try:
                    for number in range(2, 22):
                        for name, shape in SHAPES.items():
                            self.source[name] = np.full(shape, number, np.float32)
                        names = list(SHAPES)
                        if self.random.random() < 0.5:
                            names.reverse()
                        full = bool(self.random.random() < 0.7)
                        with self.dws_trainer.version(number, full=full) as version:
                            for name in names:
                                self.put(version, name)
                                time.sleep(self.random.random() * 0.05)
                        if self.random.random() < 0.4:
                            self.await_version(self.dws_engine, number)
                    self.check(21)
                finally:
                    over.set()
                    watch.join()
                self.assertEqual(torn, [])
                self.assertGreater(self.early("staged"), 0)


class EarlyRanksTest(IntegrationCase):
    def test_a_rank_that_is_late_is_awaited_by_the_others_tensors(self) -> None:
        self.start(ranks=2)
        receiver: Daemon = self.cluster.receivers[0]
        shape = (1024, 1024)
        stream = dws.Stream.new()
        trainers = [self.trainer(rank, 2, stream) for rank in range(2)]
        sources = []
        for rank, trainer in enumerate(trainers):
            trainer.register_ring([dws.TensorSpec(f"t{rank}", np.float32, shape)])
            sources.append(np.full(shape, rank, np.float32))
            with trainer.version(1) as version:
                version.put(f"t{rank}", sources[rank])
        engine = self.engine(receiver)
        live = engine.attach({f"t{rank}": np.zeros(shape, np.float32) for rank in range(2)})
        self.await_version(engine, 1)
        with trainers[1].version(2, full=True) as late:
            with trainers[0].version(2, full=True) as first:
                first.put("t0", np.full(shape, 10, np.float32))
            self.assertEqual(engine.grant.version, 1)
            eventually(
                lambda: json.loads(receiver.page("/status"))["receiver"].get("stage") == "fetching",
                lambda: f"an early version\n{receiver.log_tail(30)}",
            )
            late.put("t1", np.full(shape, 11, np.float32))
        self.await_version(engine, 2)
        wanted = {f"t{rank}": np.full(shape, 10 + rank, np.float32) for rank in range(2)}
        self.assert_same_weights(engine, live, wanted)
        self.assertEqual(receiver.metric("dws_receiver_early_versions_total", 'outcome="staged"'), 1)


if __name__ == "__main__":
    unittest.main()
