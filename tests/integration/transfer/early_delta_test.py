"""Deltas that are fetched and staged while the trainer still hands the version over: given up, stopped, and cut
short in the middle, over both profiles."""

from __future__ import annotations

import contextlib
import threading
import time
import unittest
from typing import Any, Iterator

import numpy as np

import dws
from tests.integration.integration_case import eventually
from tests.integration.transfer.early_case import EarlyCase, Shapes

# A put sends all but what is left in the last bucket, so that "a" is complete once "between" is put.
SHAPES: Shapes = {"a": (2048, 1024), "between": (512, 1024), "b": (1024, 1024)}
# What a receiver is told to ask for. Class-split deltas are decoded against all old weights.
PROFILES = ("fast", "wan")


def same_bits(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one.view(np.int32), other.view(np.int32)))


class EarlyDeltaTest(EarlyCase):
    STAGES = ("fetching", "staging")  # staged as it comes

    def begin(self, profile: str) -> None:
        self.random = np.random.default_rng(37)
        sender = self.cluster.start_sender(0, f"--profile={profile}", name=f"s-{profile}")
        flags = (f"--sender={sender.address}", f"--profile={profile}", "--early-deltas=always")
        receiver = self.cluster.start_receiver(f"r-{profile}", *flags, senders=False)
        self.connect(sender, receiver, SHAPES)
        for number in (2, 3):  # from here on class tables are known, and deltas encoded as asked
            self.step()
            with self.dws_trainer.version(number) as version:
                self.put(version, *SHAPES)
            self.check(number)

    def step(self) -> None:
        """Moves three of ten elements by one step up or down."""
        for name, array in self.source.items():
            bits = array.copy().view(np.int32)
            moved = self.random.random(bits.shape) < 0.3
            bits += np.where(moved, self.random.choice((-1, 1), bits.shape), 0).astype(np.int32)
            self.source[name] = bits.view(np.float32)

    @contextlib.contextmanager
    def fetching(self, number: int) -> Iterator[Any]:
        """A delta of which the receiver has "a"; the block puts "b"."""
        self.step()
        with self.dws_trainer.version(number) as version:
            self.put(version, "a", "between")
            self.await_arrived(256 << 10)
            yield version

    def test_a_delta_travels_before_all_of_it_is_handed_over(self) -> None:
        for profile in PROFILES:
            with self.subTest(profile=profile):
                self.begin(profile)
                staged = self.early("staged")
                fetched = {kind: self.fetched(kind) for kind in ("delta", "full")}
                with self.fetching(4) as version:
                    self.assertEqual(self.dws_engine.grant.version, 3)
                    self.put(version, "b")
                self.check(4)
                eventually(lambda: self.early("staged") == staged + 1, lambda: self.receiver.log_tail(30))
                eventually(lambda: self.fetched("delta") > fetched["delta"], lambda: "a report")
                # Nothing came twice: the whole object, once.
                published = [line for line in self.sender.log_tail(1000).splitlines() if " published " in line][-1]
                sizes = dict(word.split("=", 1) for word in published.split() if "=" in word)
                size = int(sizes["wan_bytes"]) or int(sizes["wire_bytes"])
                self.assertEqual(self.fetched("delta") - fetched["delta"], size)
                self.assertEqual(self.fetched("full"), fetched["full"])
                for daemon in (self.sender, self.receiver):
                    self.assert_no_trouble(daemon)

    def test_an_attempt_that_was_given_up_leaves_nothing_in_the_next_one(self) -> None:
        for profile in PROFILES:
            with self.subTest(profile=profile):
                self.begin(profile)
                before = {n: array.copy() for n, array in self.source.items()}
                with self.assertRaisesRegex(RuntimeError, "the trainer changes its mind"):
                    with self.fetching(4):
                        raise RuntimeError("the trainer changes its mind")
                eventually(lambda: self.early("dropped") >= 1, lambda: self.receiver.log_tail(30))
                self.assert_same_weights(self.dws_engine, self.live, before)
                self.assertEqual(self.dws_engine.grant.version, 3)
                # The same number, other values.
                self.source = before
                self.step()
                with self.dws_trainer.version(4) as version:
                    self.put(version, *SHAPES)
                self.check(4)
                with self.fetching(5) as version:
                    self.put(version, "b")
                self.check(5)

    def test_a_trainer_that_stops_in_the_middle_holds_up_nobody(self) -> None:
        self.begin("fast")
        staged = self.early("staged")
        before = {n: array.copy() for n, array in self.source.items()}
        with self.fetching(4) as version:
            eventually(lambda: self.early("dropped") >= 1, lambda: "an early version dropped")
            self.assert_same_weights(self.dws_engine, self.live, before)
            self.assertEqual(self.receiver.readyz()[0], 200)
            self.put(version, "b")
        self.check(4)
        self.assertEqual(self.early("staged"), staged)

    def test_daemons_that_are_killed_in_the_middle_come_back(self) -> None:
        for profile in PROFILES:
            with self.subTest(profile=profile):
                self.begin(profile)
                with self.fetching(4) as version:
                    self.receiver.kill()
                    self.put(version, "b")
                self.receiver.start()
                self.check(4)
                before = {n: array.copy() for n, array in self.source.items()}
                with self.assertRaises(dws.DwsError):
                    with self.fetching(5) as version:
                        self.sender.kill()
                        self.put(version, "b")
                self.assert_same_weights(self.dws_engine, self.live, before)
                self.sender.start()
                self.dws_trainer.reconnect()
                self.step()
                with self.dws_trainer.version(6) as version:
                    self.put(version, *SHAPES)
                self.check(6)

    def test_versions_that_follow_each_other_at_random_are_never_wrong(self) -> None:
        for profile in PROFILES:
            with self.subTest(profile=profile):
                self.begin(profile)
                history = {3: {n: array.copy() for n, array in self.source.items()}}
                over = threading.Event()
                wrong: list[str] = []

                def look() -> None:
                    while not over.is_set():
                        with self.dws_engine.running(60) as grant:
                            wanted = history[int(grant.version)]
                            bad = [n for n in SHAPES if not same_bits(self.live[n], wanted[n])]
                            if bad:
                                wrong.append(f"version {grant.version}: {bad}")
                        time.sleep(0.002)

                watch = threading.Thread(target=look)
                watch.start()
                try:
                    for number in range(4, 20):
                        self.step()
                        history[number] = {n: array.copy() for n, array in self.source.items()}
                        names = [str(name) for name in self.random.permutation(list(SHAPES))]
                        if self.random.random() < 0.2:
                            with contextlib.suppress(RuntimeError):
                                with self.dws_trainer.version(number) as version:
                                    self.put(version, *names[:2])
                                    raise RuntimeError("the trainer changes its mind")
                        with self.dws_trainer.version(number) as version:
                            for name in names:
                                self.put(version, name)
                                time.sleep(self.random.random() * 0.05)
                        if self.random.random() < 0.6:
                            self.await_version(self.dws_engine, number)
                    self.check(19)
                finally:
                    over.set()
                    watch.join()
                self.assertEqual(wrong, [])
                self.assertGreater(self.early("staged"), 0)


if __name__ == "__main__":
    unittest.main()
