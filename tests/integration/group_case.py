"""Fixture for tests of commit groups: one engine whose ranks have a receiver each, and a watch
over the version that each rank is released with."""

from __future__ import annotations

import hashlib
import itertools
import threading
from typing import Any, Callable, Optional

import numpy as np

import dws
from tests.integration.admin_case import ADMIN
from tests.integration.cluster import Daemon
from tests.integration.fault_tally import FaultTally
from tests.integration.integration_case import WAIT_SECONDS, IntegrationCase, change, eventually
from tests.integration.reflection_client import ReflectionClient

ROWS, PARTS = 840, 12
# The rows of "a" are split over the members, only the leader has "b", all members have "c". The
# deltas of "a" are larger than an announcement can carry, so they are fetched.
SHAPES = {"a": (ROWS, 500), "b": (33,), "c": (7, 5, 3)}
CUTS = {"a": [ROWS // PARTS * part for part in range(1, PARTS)]}


class EngineRank:
    """One rank of the engine: its tensors, and its share of the trainer's weights."""

    def __init__(self, engine: dws.Engine, index: int, members: int) -> None:
        self.engine = engine
        self.rows = slice(ROWS * index // members, ROWS * (index + 1) // members)
        self.excluded = ["b"] if index else []
        self.live: dict[str, Any] = {}

    def attach(self) -> None:
        shapes = {n: s for n, s in SHAPES.items() if n not in self.excluded}
        shapes["a"] = (self.rows.stop - self.rows.start, SHAPES["a"][1])
        self.live = self.engine.attach(
            {name: np.zeros(shape, np.float32) for name, shape in shapes.items()},
            mapping={"a": dws.Slice("a", dim=0, begin=self.rows.start, end=self.rows.stop)},
            excluded=self.excluded,
        )

    def share(self, weights: dict[str, Any]) -> dict[str, Any]:
        """The part of the trainer's weights that this rank holds."""
        parts = {n: w for n, w in weights.items() if n not in self.excluded}
        return {**parts, "a": parts["a"][self.rows]}


def sha256(tensors: dict[str, Any]) -> str:
    state = hashlib.sha256()
    for name in sorted(tensors):
        state.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return state.hexdigest()


class ReleaseWatch:
    """Checks all the time whether two ranks are released with different versions."""

    def __init__(self, ranks: list[EngineRank]) -> None:
        self._ranks = ranks
        self._stop = threading.Event()
        self.mixtures: list[str] = []
        self.looks = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.0005):
            for one, other in itertools.combinations(range(len(self._ranks)), 2):
                self._look(one, other)
            self.looks += 1

    def _look(self, one: int, other: int) -> None:
        before = self._ranks[one].engine.grant
        seen = self._ranks[other].engine.grant
        # Each release is a new object: if it is the same before and after, it was valid in between.
        if before is None or seen is None or self._ranks[one].engine.grant is not before:
            return
        if (before.stream, before.version) != (seen.stream, seen.version):
            self.mixtures.append(f"ranks {one} and {other} run with {before} and {seen}")

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


class GroupCase(IntegrationCase):
    """One trainer rank, and an engine over the receivers of one commit group."""

    tally = FaultTally("none")

    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(41)
        self.version = 0
        self.published: dict[int, dict[str, Any]] = {}
        self.ranks: list[EngineRank] = []
        self.flags: tuple[str, ...] = ()  # for every receiver

    def group_flags(self, index: int, members: int, leader: str = "") -> list[str]:
        flags = ["--group-id=engine", f"--group-index={index}", f"--group-members={members}"]
        return flags + ([f"--group-leader={leader}"] if index else [])

    def start_member(self, index: int, members: int) -> Daemon:
        leader = ""
        if index:
            leader = self.cluster.receivers[0].address
        flags = self.group_flags(index, members, leader)
        return self.cluster.start_receiver(f"member-{index}", *flags, *self.flags)

    def status(self, index: int) -> Any:
        client = ReflectionClient(f"unix:{self.cluster.receivers[index].socket}")
        try:
            return client.call(ADMIN, "Status")
        finally:
            client.close()

    def ready(self, index: int) -> tuple[bool, str]:
        status = self.status(index)
        return status.ready, status.reason

    def start_group(self, members: int) -> None:
        self.cluster.start_sender(0)
        for index in range(members):
            self.start_member(index, members)

    def register(self) -> None:
        self.dws_trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = self.dws_trainer.register(weights, cuts=CUTS)

    def attach(self, index: int, members: int) -> None:
        rank = EngineRank(self.engine(self.cluster.receivers[index]), index, members)
        rank.attach()
        self.ranks.append(rank)

    def begin(self, members: int) -> None:
        """Starts a group with its engine attached and nothing published."""
        self.start_group(members)
        self.register()
        for index in range(members):
            self.attach(index, members)
        self.watch()

    def watch(self) -> None:
        self.release_watch = ReleaseWatch(self.ranks)
        self.addCleanup(self.release_watch.end)

    def publish(self, share: float = 0.05) -> int:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, share)
        self.published[self.version] = {n: array.copy() for n, array in self.source.items()}
        self.dws_trainer.publish(self.version)
        return self.version

    def await_group(self, version: int, meanwhile: Optional[Callable[[], Any]] = None) -> None:
        """Waits until all ranks run with this version and checks that all hold it, bit for bit."""

        def arrived() -> bool:
            if meanwhile is not None:
                meanwhile()
            grants = [rank.engine.grant for rank in self.ranks]
            return all(grant is not None and grant.version == version for grant in grants)

        eventually(arrived, lambda: f"version {version}: {self.what()}\n{self.cluster.logs(30)}")
        for rank in self.ranks:
            with rank.engine.running(WAIT_SECONDS) as grant:
                self.assertEqual(grant.version, version)
                self.tally.compared(rank.live, rank.share(self.published[version]))
                self.assertEqual(
                    sha256(rank.live), sha256(rank.share(self.published[version])), version
                )
        self.assert_no_mixture()

    def assert_no_mixture(self) -> None:
        looks = self.release_watch.looks
        eventually(lambda: self.release_watch.looks > looks, lambda: "the watch looks")
        self.assertEqual(self.release_watch.mixtures, [])

    def what(self) -> str:
        return "; ".join(f"{r.engine.grant} {r.engine.stats().last_error}" for r in self.ranks)

    def pauses(self) -> list[int]:
        """How often each rank was released."""
        return [rank.engine.stats().lease.grants for rank in self.ranks]
