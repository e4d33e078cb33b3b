"""Fixture for integration tests: a cluster, clients that are closed at the end, and comparison of
weights."""

from __future__ import annotations

import os
import threading
import time
import unittest
from typing import Any, Callable, Iterator, Mapping, Optional

import grpc
import numpy as np

import dws
from dws._proto import sync_pb2, sync_pb2_grpc
from dws.arrays import raw_bits
from dws.change_lists import Changes
from dws.digest import combine, digest_hex, rank_state_token
from tests.integration import cluster
from tests.integration.cluster import PROTOCOL_MAJOR, Cluster, Daemon

WAIT_SECONDS = 60.0


def welcome_of(address: str) -> Any:
    """Returns a real sender's welcome."""
    hello = sync_pb2.Hello(job_id="test", receiver_id="spy", protocol_major=PROTOCOL_MAJOR)
    over = threading.Event()

    def up() -> Iterator[Any]:
        yield sync_pb2.SyncUp(hello=hello)
        over.wait(20)

    with grpc.insecure_channel(address) as channel:
        for down in sync_pb2_grpc.SyncServiceStub(channel).Sync(up()):
            if down.HasField("welcome"):
                over.set()
                return down.welcome
    raise AssertionError("no welcome came")


class IntegrationCase(unittest.TestCase):
    """Each test has its own cluster; `start` starts one sender per rank, and receivers."""

    def setUp(self) -> None:
        self.cluster = Cluster("test")
        self.addCleanup(self.cluster.stop)
        self.addCleanup(self._show_logs)

    def _show_logs(self) -> None:
        # Python 3.11 has no public way to ask whether this test has failed.
        outcome = self._outcome  # type: ignore[attr-defined]
        if not outcome.success:
            print(f"=== {self.id()}\n{self.cluster.logs(40)}", flush=True)

    def use_failpoints(self, *daemons: str) -> None:
        """Starts these (SENDER, RECEIVER) as programs with failpoints from now on, armed by
        the environment of this process until the test ends."""
        for daemon in daemons:
            self.addCleanup(setattr, cluster, daemon, getattr(cluster, daemon))
            setattr(cluster, daemon, getattr(cluster, daemon) + "-failpoints")
        self.addCleanup(os.environ.pop, "DWS_FAILPOINT", None)

    def start(self, ranks: int = 1, receivers: int = 1, flags: tuple[str, ...] = ()) -> None:
        """Starts senders and receivers; `flags` are the receivers'."""
        for rank in range(ranks):
            self.cluster.start_sender(rank)
        for index in range(receivers):
            self.cluster.start_receiver(f"receiver-{index}", *flags)

    def trainer(
        self, rank: int = 0, world_size: int = 1, stream: Optional[dws.Stream] = None
    ) -> dws.Trainer:
        socket = self.cluster.senders[rank].socket
        trainer = dws.Trainer(socket, "test", rank, world_size, stream)
        self.addCleanup(trainer.close)
        return trainer

    def engine(
        self, receiver: Optional[Daemon] = None, rank: int = 0, world_size: int = 1
    ) -> dws.Engine:
        receiver = receiver or self.cluster.receivers[0]
        engine = dws.Engine(receiver.socket, rank, world_size)
        self.addCleanup(engine.close)
        return engine

    def await_version(self, engine: dws.Engine, version: int) -> dws.Grant:
        """Returns once the engine has been released with exactly this version."""
        eventually(
            lambda: engine.grant is not None and engine.grant.version == version,
            lambda: f"version {version}; the engine has {engine.grant}, {engine.stats()}",
        )
        return engine.wait_ready(WAIT_SECONDS)

    def assert_same_weights(
        self, engine: dws.Engine, live: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> None:
        """Checks between commits that the engine's live tensors have the bits of `wanted`."""
        with engine.running(WAIT_SECONDS) as grant:
            for name, tensor in wanted.items():
                if not np.array_equal(bits(name, live[name]), bits(name, tensor)):
                    self.fail(f"'{name}' differs at version {grant.version}")

    def assert_token(self, grant: dws.Grant, trainers: Any, parts: Any) -> None:
        """Checks the grant's state token against one computed here from each rank's weights."""
        tokens = [rank_state_token(t.layout, part) for t, part in zip(trainers, parts)]
        self.assertEqual(grant.state_token, digest_hex(combine(tokens)))


def bits(name: str, tensor: Any) -> Any:
    """The raw bits of a numpy or torch tensor."""
    return raw_bits(name, tensor, dws.DType.of(tensor.dtype))


def change(array: Any, random: np.random.Generator, share: float) -> None:
    """Changes about `share` of a numpy array's elements by flipping low bits."""
    flat = array.reshape(-1).view(f"u{array.itemsize}")
    flat[random.random(flat.size) < share] ^= np.asarray(3, flat.dtype)


def changes_of(before: Any, after: Any) -> Changes:
    """What has changed, of numpy arrays, as a trainer that lists it."""
    old, new = (bits("", array).reshape(-1) for array in (before, after))
    position = np.flatnonzero(old != new)
    return Changes(position, old[position], new[position])


def eventually(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Raises AssertionError if the condition does not come true within WAIT_SECONDS."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {WAIT_SECONDS} s: {what()}")
        time.sleep(0.01)
