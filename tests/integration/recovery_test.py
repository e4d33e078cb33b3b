"""kill -9 of a daemon at every failpoint: on the way to a first version, to a delta, and in an
operator's request. Whatever was lost, the next daemon brings the engine to the trainer's exact bits.
"""

from __future__ import annotations

import os
import re
import unittest
from typing import Any, Callable

import grpc
import numpy as np

import dws
from tests.integration.admin_case import sha256
from tests.integration.cluster import DaemonFailed
from tests.integration.fault_tally import FaultTally
from tests.integration.integration_case import IntegrationCase, change, eventually
from tests.integration.reflection_client import ReflectionClient

# The deltas of "a" are larger than an announcement can carry, so they are fetched.
SHAPES = {"a": (900, 700), "b": (33,), "c": (7, 5, 3)}
CHANGED = 0.4
VERSIONS = 4
# On which pass a frequent failpoint kills the daemon: early, and in steady state.
TIMES = {"ledger.append.before_sync": (1, 2, 3), "ledger.append.after_sync": (1, 2, 3)}
OPERATIONS = {"receiver.verify.after_batch": "Verify", "receiver.resync.after_batch": "Resync"}
# Passed only by the transfer of a first version.
FIRST_ONLY = (
    "sender.register.",
    "sender.full.",
    "receiver.stream.",
    "receiver.attach.",
    "receiver.prepare.after_fetch_full",
    "receiver.full.",
    "receiver.commit.inside_apply",
    "file.",
)


def failpoints() -> list[str]:
    with open("common/base/failpoint.h") as header:
        names = re.findall(r'^    "([a-z_.]+)",$', header.read(), re.MULTILINE)
    elsewhere = ("test.", "slime.", "follow.", "group.", "sender.refine.")
    elsewhere += ("sender.broadcast.", "receiver.broadcast.", "sender.gpu.", "sender.train.")
    return [name for name in names if not name.startswith(elsewhere)]


class RecoveryTest(IntegrationCase):
    tally = FaultTally("kill -9 at a failpoint")

    @classmethod
    def tearDownClass(cls) -> None:
        print(cls.tally, flush=True)

    def setUp(self) -> None:
        super().setUp()
        self.use_failpoints("SENDER", "RECEIVER")

    def start_armed(self, role: str, armed: str) -> None:
        # Full tensors come from the sender only as they do from another host.
        flags = ("--full-way=grpc",) if armed.startswith("sender.full.") else ()
        for name, start in (
            ("sender", self.cluster.start_sender),
            ("receiver", lambda: self.cluster.start_receiver("receiver-0", *flags)),
        ):
            if name == role:
                os.environ["DWS_FAILPOINT"] = armed
            try:
                start()
            except DaemonFailed:
                daemons = self.cluster.senders if name == "sender" else self.cluster.receivers
                self.assertEqual((name, len(daemons)), (role, 1))  # it was the one meant to die
                os.environ.pop("DWS_FAILPOINT", None)
                daemons[0].start()
            os.environ.pop("DWS_FAILPOINT", None)

    def revive(self) -> bool:
        """Restarts the daemon that has died, if any, without the failpoint."""
        process = self.victim.process
        if process is None or process.poll() is None:
            return False
        self.assertEqual(process.returncode, -9, self.victim.log_tail())
        self.deaths += 1
        self.tally.injected()
        self.victim.start()
        if self.victim in self.cluster.senders and self.registered:
            self.dws_trainer.reconnect()
        return True

    def survive(self, call: Callable[[], Any]) -> Any:
        """Calls `call`, again while its daemon dies during it or restarts."""
        results: list[Any] = []
        lost: list[Exception] = []

        def done() -> bool:
            try:
                results.append(call())
            except (dws.DwsError, grpc.RpcError) as error:
                lost.append(error)
                self.revive()
            return bool(results)

        eventually(done, lambda: f"{lost[-1]!r}")
        return results[0]

    def publish(self, version: int) -> None:
        """Publishes, whether or not the sender survives it; the next version has a higher number."""
        for array in self.source.values():
            change(array, self.random, CHANGED)
        try:
            self.dws_trainer.publish(version)
        except dws.DwsError as error:
            lost = error
            eventually(self.revive, lambda: f"nobody has died, but: {lost!r}")

    def reach(self, version: int) -> None:
        """Checks that the engine reaches `version` and then has the trainer's weights."""

        def arrived() -> bool:
            self.revive()
            grant = self.dws_engine.grant
            return grant is not None and grant.version == version

        eventually(arrived, lambda: f"{self.dws_engine.stats()}\n{self.cluster.logs()}")
        with self.dws_engine.running(60):
            self.tally.compared(self.live, self.source)
            self.assertEqual(sha256(self.live), sha256(self.source))

    def begin(self) -> None:
        """Starts a trainer and an engine, whatever dies meanwhile."""
        self.dws_trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = self.survive(lambda: self.dws_trainer.register(weights))
        self.registered = True
        self.dws_engine = self.engine()
        zeros = {n: np.zeros(s, np.float32) for n, s in SHAPES.items()}
        self.live = self.survive(lambda: self.dws_engine.attach(zeros))

    def operate(self, method: str) -> None:
        client = ReflectionClient(f"unix:{self.victim.socket}")
        self.addCleanup(client.close)
        with self.assertRaises(grpc.RpcError):
            list(client.call("dws.v1.AdminService", method))
        eventually(self.revive, lambda: f"{method} has killed nobody")

    def check(self, role: str, name: str, at: int) -> None:
        self.random = np.random.default_rng([at, *name.encode()])
        self.deaths, self.registered = 0, False
        self.start_armed(role, f"{name}:kill@{at}")
        self.victim = (self.cluster.senders if role == "sender" else self.cluster.receivers)[0]
        self.begin()
        version = 0
        for _ in range(VERSIONS):
            version += 1
            self.publish(version)
            if self.deaths == 0:  # otherwise it may be lost with its sender
                self.wait_unless_lost(version)
        if name in OPERATIONS:
            self.operate(OPERATIONS[name])
        if self.deaths == 0 and not name.startswith("file."):
            eventually(self.revive, lambda: f"{name} was passed less than {at} times")
        for _ in range(2):
            version += 1
            self.publish(version)
            self.reach(version)

    def wait_unless_lost(self, version: int) -> None:
        """Waits until the engine has it, or until the daemon that lost it is replaced."""

        def settled() -> bool:
            if self.revive():
                return True
            grant = self.dws_engine.grant
            return grant is not None and grant.version >= version

        eventually(settled, lambda: f"{self.dws_engine.stats()}\n{self.cluster.logs()}")


def _add(role: str, name: str, at: int) -> None:
    def test(self: RecoveryTest) -> None:
        self.check(role, name, at)

    label = f"test_{role}_{name.replace('.', '_')}_{at}"
    setattr(RecoveryTest, label, test)


for _name in failpoints():
    _roles = [r for r in ("sender", "receiver") if _name.startswith(r)] or ["sender", "receiver"]
    for _role in _roles:
        _times = TIMES.get(
            _name, (1,) if _name.startswith(FIRST_ONLY) or _name in OPERATIONS else (1, 2)
        )
        for _at in _times:
            _add(_role, _name, _at)


if __name__ == "__main__":
    unittest.main()
