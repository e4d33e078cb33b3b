"""--commit-policy: versions are staged as they come, and committed at boundaries that the engine names."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import unittest
from typing import Any, Optional

import numpy as np

import dws
from tests.integration.cluster import Daemon, DaemonFailed
from tests.integration.group_case import GroupCase
from tests.integration.integration_case import (
    WAIT_SECONDS,
    IntegrationCase,
    change,
    eventually,
)

DWSCTL = "tools/dwsctl/dwsctl"
SHAPE = (300, 500)


def dwsctl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([DWSCTL, *arguments], capture_output=True, text=True, check=False)


def receiver_status(receiver: Daemon) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(
        dwsctl("status", "--json", f"--socket={receiver.socket}").stdout
    )
    return reply


class HoldTest(IntegrationCase):
    def begin(self, policy: str) -> None:
        """A trainer and an engine that runs with version 1."""
        self.random = np.random.default_rng(5)
        self.version = 0
        self.published: dict[int, Any] = {}
        self.start(flags=(f"--commit-policy={policy}",))
        self.receiver = self.cluster.receivers[0]
        self.dws_trainer = self.trainer()
        views = self.dws_trainer.register({"w": np.zeros(SHAPE, np.float32)})
        self.source = views["w"]
        self.dws_engine = self.engine()
        self.live = self.dws_engine.attach({"w": np.zeros(SHAPE, np.float32)})
        self.publish()
        self.await_version(self.dws_engine, 1)  # first contact is not held back

    def publish(self) -> int:
        self.version += 1
        change(self.source, self.random, 0.05)
        self.published[self.version] = self.source.copy()
        self.dws_trainer.publish(self.version)
        return self.version

    def await_held(self, version: int) -> dict[str, Any]:
        """Waits until the receiver has staged it and holds it back."""

        def held() -> bool:
            row = receiver_status(self.receiver)["receiver"]
            return row["stage"] == "staged" and int(row["target_version"]) == version

        eventually(held, lambda: f"{version} is held: {receiver_status(self.receiver)}")
        return receiver_status(self.receiver)

    def check(self, version: int) -> None:
        """The engine runs with exactly this version."""
        with self.dws_engine.running(WAIT_SECONDS) as grant:
            self.assertEqual(grant.version, version)
            np.testing.assert_array_equal(self.live["w"], self.published[version])

    def test_versions_are_committed_at_boundaries_only(self) -> None:
        self.begin("boundary")
        self.assertEqual(self.dws_engine.boundary().version, 1)  # nothing is held
        self.publish()
        status = self.await_held(2)
        self.assertTrue(status["ready"])
        self.assertEqual(status["receiver"]["commit_policy"], "boundary")
        self.assertGreater(status["receiver"]["held_seconds"], 0)
        text = dwsctl("status", f"--socket={self.receiver.socket}").stdout
        self.assertRegex(text, r"policy +boundary, holds version 2 for .*, 1 version behind")
        grants = self.dws_engine.stats().lease.grants
        self.check(1)
        with self.assertRaisesRegex(dws.NotCommittedError, "'receiver-0' .*has staged 2"):
            self.dws_trainer.wait(2, "all", timeout=0.2)
        self.assertEqual(self.dws_engine.boundary().version, 2)
        self.check(2)
        self.assertEqual(self.dws_engine.stats().lease.grants, grants + 1)
        self.dws_trainer.wait(2, "all", timeout=WAIT_SECONDS)
        self.assertEqual(self.receiver.metric("dws_receiver_held_seconds"), 0)

    def test_a_newer_version_replaces_the_held_one(self) -> None:
        self.begin("boundary")
        for version in (2, 3, 4):
            self.publish()
            self.await_held(version)
        self.check(1)
        self.assertEqual(self.receiver.metric("dws_receiver_replaced_total"), 2)
        self.assertEqual(self.receiver.metric("dws_receiver_version_lag"), 3)
        self.assertGreater(self.receiver.metric("dws_receiver_held_seconds"), 0)
        self.assertEqual(self.dws_engine.boundary().version, 4)
        self.check(4)
        self.assertEqual(self.receiver.metric("dws_receiver_commits_total"), 2)

    def test_while_the_engine_waits_versions_are_committed_as_they_come(self) -> None:
        self.begin("boundary")
        with self.dws_engine.at_boundary():
            for version in (2, 3):
                self.publish()
                self.dws_trainer.wait(version, "all", timeout=WAIT_SECONDS)
        self.check(3)
        self.publish()
        self.await_held(4)
        self.check(3)

    def test_a_boundary_that_stays_outlives_the_receiver(self) -> None:
        self.begin("boundary")
        with self.dws_engine.at_boundary():
            self.receiver.kill()
            self.receiver.start()
            self.publish()
            self.dws_trainer.wait(2, "all", timeout=WAIT_SECONDS)
            self.receiver.kill()
        self.check(2)  # the engine goes on without its receiver

    def test_an_engine_is_never_more_than_k_versions_behind(self) -> None:
        self.begin("max-behind:2")
        self.assertEqual(self.receiver.metric("dws_receiver_versions_behind_max"), 2)
        for version in (2, 3):
            self.publish()
            self.await_held(version)
        self.check(1)
        self.publish()  # 3 behind: the staged version is committed, and the newest is held
        self.await_version(self.dws_engine, 3)
        self.check(3)
        self.await_held(4)
        self.check(3)
        self.assertEqual(self.dws_engine.boundary().version, 4)

    def test_a_receiver_that_restarts_while_it_holds_a_version(self) -> None:
        self.begin("boundary")
        self.publish()
        self.await_held(2)
        self.receiver.kill()
        self.check(1)
        self.assertEqual(self.dws_engine.boundary().version, 1)  # it is away
        self.receiver.start()
        eventually(
            lambda: self.dws_engine.stats().reattachments == 1, lambda: "attached again"
        )
        self.await_held(2)
        self.await_version(self.dws_engine, 1)
        self.check(1)
        self.assertEqual(self.dws_engine.boundary().version, 2)
        self.check(2)

    def test_an_engine_that_leaves_while_a_version_is_held(self) -> None:
        self.begin("boundary")
        self.publish()
        self.await_held(2)
        self.dws_engine.close()
        eventually(
            lambda: self.receiver.metric("dws_receiver_held_seconds") == 0, lambda: "none is held"
        )
        self.dws_engine = self.engine()
        self.live = self.dws_engine.attach({"w": np.zeros(SHAPE, np.float32)})
        self.await_version(self.dws_engine, 2)  # it has no version: it gets one at once
        self.check(2)

    def test_operators_name_boundaries_drain_and_resync(self) -> None:
        self.begin("boundary")
        at = f"--socket={self.receiver.socket}"
        self.assertIn("nothing was held, the engine has version 1", dwsctl("commit", at).stdout)
        self.publish()
        self.await_held(2)
        done = dwsctl("boundary", at)  # the older name
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the engine has version 2", done.stdout)
        self.check(2)
        self.publish()
        self.await_held(3)
        self.assertIn("drained at version 2", dwsctl("drain", at).stdout)
        self.check(2)
        self.assertEqual(dwsctl("undrain", at).returncode, 0)
        self.await_held(3)
        self.assertEqual(dwsctl("resync", at).returncode, 0)
        self.check(3)
        refused = dwsctl("boundary", f"--socket={self.cluster.senders[0].socket}")
        self.assertEqual(refused.returncode, 4)
        self.assertIn("this daemon holds no versions back", refused.stderr)

    def test_a_boundary_waits_for_a_forward_pass_no_longer_than_it_is_told_to(self) -> None:
        self.begin("boundary")
        self.publish()
        self.await_held(2)
        entered, leave = threading.Event(), threading.Event()

        def batch() -> None:
            with self.dws_engine.running(WAIT_SECONDS):
                entered.set()
                leave.wait(WAIT_SECONDS)

        thread = threading.Thread(target=batch)
        thread.start()
        entered.wait(WAIT_SECONDS)
        self.addCleanup(leave.set)
        boundaries = dws.Boundaries(self.receiver.socket)
        self.addCleanup(boundaries.close)
        threading.Timer(1.5, leave.set).start()
        began = time.monotonic()
        with self.assertRaisesRegex(dws.DeadlineError, "did not commit the version that it holds back within 0.3 s"):
            boundaries.passed(0.3)
        # It has begun, so the end of the boundary waits for it.
        self.assertGreater(time.monotonic() - began, 1)
        thread.join()
        self.check(2)

    def test_engines_say_boundaries_outside_of_forward_passes(self) -> None:
        self.begin("immediate")
        with self.dws_engine.running(WAIT_SECONDS):
            with self.assertRaisesRegex(dws.StateError, r"boundary\(\) lets commits happen"):
                self.dws_engine.boundary()
        self.publish()
        self.await_version(self.dws_engine, 2)
        self.assertEqual(self.dws_engine.boundary().version, 2)
        refused = dwsctl("boundary", f"--socket={self.receiver.socket}")
        self.assertIn("--commit-policy is immediate: nothing is held back", refused.stderr)


class HoldGroupTest(GroupCase):
    """Two receivers of one engine; the leader's policy counts."""

    def start_member(self, index: int, members: int, policy: Optional[str] = None) -> Daemon:
        self.flags = ("--commit-policy=boundary",) if index == 0 else ()
        if policy is not None:
            self.flags = (f"--commit-policy={policy}",)
        return super().start_member(index, members)

    def await_held(self, version: int) -> None:
        def held() -> bool:
            group = self.status(0).receiver.group
            return (group.round_phase, group.round_version) == ("held", version)

        eventually(held, lambda: f"{version} is held: {self.status(0)}")

    def test_all_members_commit_at_the_leaders_boundaries(self) -> None:
        self.begin(2)
        self.publish()
        self.await_group(1)
        self.publish()
        self.await_held(2)
        self.publish()
        self.await_held(3)  # in place of version 2
        self.assertEqual(self.status(0).receiver.replaced_versions, 1)
        self.assertGreater(self.status(0).receiver.held_seconds, 0)
        self.assertEqual(self.status(1).receiver.commit_policy, "")
        self.assertEqual([self.ready(0)[0], self.ready(1)[0]], [True, True])
        self.await_group(1)
        pauses = self.pauses()
        self.assertEqual(self.ranks[1].engine.boundary().version, 1)  # a member decides nothing
        self.await_group(1)
        self.assertEqual(self.ranks[0].engine.boundary().version, 3)
        self.await_group(3)
        self.assertEqual(self.pauses(), [count + 1 for count in pauses])

        # A member that is drained, and one that restarts, while a version is held.
        at = f"--socket={self.cluster.receivers[1].socket}"
        refused = dwsctl("boundary", at)
        self.assertIn("this is member 1 of group 'engine': ask its leader", refused.stderr)
        self.publish()
        self.await_held(4)
        self.assertIn("drained at version 3", dwsctl("drain", at).stdout)
        self.assertEqual(self.ranks[0].engine.boundary().version, 3)
        self.assertEqual(dwsctl("drain", "--undo", at).returncode, 0)
        self.await_held(4)
        self.cluster.receivers[1].kill()
        # Before the leader knows, a boundary would pause the engine for a commit that the member misses.
        eventually(
            lambda: self.status(0).receiver.held_seconds == 0, lambda: f"none is held: {self.status(0)}"
        )
        self.assertEqual(self.ranks[0].engine.boundary().version, 3)
        self.cluster.receivers[1].start()
        self.await_held(4)
        self.await_group(3)
        self.assertIn(
            "the engine has version 4",
            dwsctl("boundary", f"--socket={self.cluster.receivers[0].socket}").stdout,
        )
        self.await_group(4)

    def test_a_member_with_a_policy_of_its_own_is_refused(self) -> None:
        self.cluster.start_sender(0)
        self.start_member(0, 2)
        with self.assertRaisesRegex(
            DaemonFailed,
            "max-behind:3 is given to member 1 of group .*engine.*: expected only on its leader",
        ):
            self.start_member(1, 2, "max-behind:3")


if __name__ == "__main__":
    unittest.main()
