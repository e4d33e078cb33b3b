"""One engine over the receivers of a commit group: all of its ranks change from one version to the
next together, with one pause, or none does."""

from __future__ import annotations

import json
import unittest
from typing import Any

import grpc

import dws
from tests.integration.admin_case import ADMIN
from tests.integration.cluster import DaemonFailed
from tests.integration.group_case import EngineRank, GroupCase
from tests.integration.integration_case import eventually
from tests.integration.reflection_client import ReflectionClient


class GroupTest(GroupCase):
    def follow(self, members: int) -> None:
        self.begin(members)
        self.await_group(self.publish())
        released = self.pauses()
        for count in range(1, 6):
            version = self.publish()
            self.await_group(version)
            self.assertEqual(self.pauses(), [before + count for before in released])
        result = self.dws_trainer.wait(version, timeout=60)
        self.assertEqual(len(result.committed), members)

    def test_two_members_change_versions_together_with_one_pause_each(self) -> None:
        self.follow(2)

    def test_three_members_change_versions_together_with_one_pause_each(self) -> None:
        self.follow(3)

    def test_no_member_commits_while_one_member_cannot(self) -> None:
        self.begin(2)
        self.await_group(self.publish())
        member = self.cluster.receivers[1]
        member.kill()
        eventually(lambda: not self.ranks[1].engine.stats().connected, lambda: "the engine sees it")
        released = self.pauses()
        self.publish()
        self.publish()
        eventually(
            lambda: self.status(0).receiver.newest_version == 3, lambda: "the leader hears of it"
        )
        eventually(
            lambda: "receiver 'member-1', is not connected" in self.ready(0)[1],
            lambda: f"{self.ready(0)}",
        )
        # The leader's rank keeps running its version, and so does the rank whose receiver is down.
        self.assertEqual(self.pauses(), released)
        self.assertEqual([rank.engine.grant.version for rank in self.ranks], [1, 1])
        member.start()
        self.await_group(3)

    def test_a_group_is_complete_again_after_its_leader_restarts(self) -> None:
        self.begin(2)
        self.await_group(self.publish())
        leader = self.cluster.receivers[0]
        leader.stop()
        self.publish()
        eventually(
            lambda: "the leader of group 'engine'" in self.ready(1)[1], lambda: f"{self.ready(1)}"
        )
        leader.start()
        self.await_group(2)

    def test_members_may_start_and_attach_in_any_order(self) -> None:
        self.cluster.start_sender(0)
        self.register()
        self.start_member(0, 2)
        self.attach(0, 2)
        self.publish()
        eventually(
            lambda: "member 1 of group 'engine' has not connected yet" in self.ready(0)[1],
            lambda: f"{self.ready(0)}",
        )
        self.start_member(1, 2)
        eventually(
            lambda: "receiver 'member-1', has no engine" in self.ready(0)[1],
            lambda: f"{self.ready(0)}",
        )
        self.assertIsNone(self.ranks[0].engine.grant)
        self.attach(1, 2)
        self.watch()
        self.await_group(1)

    def test_ranks_that_hold_the_same_rows_are_not_released(self) -> None:
        self.start_group(2)
        self.register()
        self.attach(0, 2)
        mistaken = EngineRank(self.engine(self.cluster.receivers[1]), 1, 2)
        mistaken.rows = self.ranks[0].rows
        mistaken.attach()
        self.publish()
        wanted = "no engine rank of group 'engine' holds slice 6 of tensor 'a'"
        eventually(lambda: wanted in self.ready(0)[1], lambda: f"{self.ready(0)}")
        self.assertEqual((self.ranks[0].engine.grant, mistaken.engine.grant), (None, None))
        mistaken.engine.close()
        self.attach(1, 2)
        self.watch()
        self.await_group(1)

    def test_a_receiver_that_does_not_belong_is_refused_with_the_reason(self) -> None:
        self.start_group(2)
        leader = self.cluster.receivers[0].address
        eventually(lambda: self.status(1).receiver.group.leader_connected, lambda: "member 1")
        same = self.group_flags(1, 2, leader)
        more = self.group_flags(2, 3, leader)
        other = [flag.replace("engine", "x") for flag in same]
        nobody = self.group_flags(1, 2, self.cluster.senders[0].address)
        for name, flags, wanted in (
            ("same", same, "member 1 of group 'engine' is receiver 'member-1'"),
            ("more", more, "says that group 'engine' has 3 members"),
            ("other", other, "belongs to group 'x' of job 'test'"),
            ("nobody", nobody, "--group-leader has to be the --listen of the receiver with"),
        ):
            with self.subTest(name):
                receiver = self.cluster.start_receiver(name, *flags)
                index = self.cluster.receivers.index(receiver)
                eventually(
                    lambda: wanted in self.status(index).receiver.group.last_error,
                    lambda: f"{self.status(index).receiver.group}",
                )
                self.assertEqual(receiver.log_tail(1000).count(" group_leader_refused "), 1)
        self.assertTrue(self.status(1).receiver.group.leader_connected)

    def test_status_shows_the_group(self) -> None:
        self.begin(3)
        self.await_group(self.publish())
        eventually(lambda: self.ready(0)[0] and self.ready(2)[0], lambda: f"{self.ready(0)}")
        group = self.status(0).receiver.group
        self.assertEqual((group.group_id, group.member_index, group.member_count), ("engine", 0, 3))
        names = [member.receiver_id for member in group.members]
        self.assertEqual(names, ["member-0", "member-1", "member-2"])
        self.assertTrue(all(m.connected and m.attached and m.released for m in group.members))
        self.assertEqual([m.live_version for m in group.members], [1, 1, 1])
        self.assertEqual((group.round_phase, group.decided_version), ("", 0))
        member = self.status(2).receiver.group
        self.assertTrue(member.leader_connected)
        self.assertEqual((member.phase, len(member.members)), ("idle", 0))
        shown = json.loads(self.cluster.receivers[0].page("/status"))
        self.assertEqual(shown["receiver"]["group"]["group_id"], "engine")
        leader = self.cluster.receivers[0]
        self.assertEqual(leader.metric("dws_receiver_group_members", 'state="connected"'), 3)
        self.assertEqual(self.cluster.receivers[1].metric("dws_receiver_group_leader_connected"), 1)

    def evict(self, index: int, member: int, reason: str = "its host has burnt") -> Any:
        """Sends the evict call to receiver `index`; returns its last answer."""
        with ReflectionClient(f"unix:{self.cluster.receivers[index].socket}") as client:
            return list(client.call(ADMIN, "Evict", member_index=member, reason=reason))[-1]

    def test_an_evicted_rank_stops_even_without_a_sender(self) -> None:
        self.begin(2)
        self.await_group(self.publish())
        self.cluster.receivers[1].kill()
        eventually(lambda: not self.ranks[1].engine.stats().connected, lambda: "the engine sees it")
        self.cluster.senders[0].kill()
        with self.assertRaisesRegex(grpc.RpcError, "501 bytes, expected at most 500"):
            self.evict(0, 1, "x" * 501)
        self.evict(0, 1, "\u00fc" * 250)  # six times as long in a header
        self.cluster.receivers[1].start()  # knows no layout
        for rank in self.ranks:
            eventually(lambda: rank.engine.grant is None, lambda: f"{rank.engine.stats()}")
            with self.assertRaisesRegex(dws.EnginePaused, "restart the group's receivers"):
                rank.engine.wait_ready(0.5)

    def test_an_evicted_member_ends_the_engine_everywhere(self) -> None:
        self.begin(3)
        self.await_group(self.publish())
        self.cluster.receivers[2].kill()
        eventually(
            lambda: "receiver 'member-2', is not connected" in self.ready(0)[1],
            lambda: f"{self.ready(0)}",
        )
        with self.assertRaisesRegex(grpc.RpcError, "ask its leader, the receiver at unix:"):
            self.evict(1, 2)
        with self.assertRaisesRegex(grpc.RpcError, "has no member 3, expected 0 to 2"):
            self.evict(0, 3)
        self.assertTrue(self.evict(0, 2).finished)
        with self.assertRaisesRegex(grpc.RpcError, "has ended already"):
            self.evict(0, 2)
        self.cluster.receivers[2].start()  # it learns of it after its start
        wanted = "the leader first, then the engine (member 2 was evicted: its host has burnt)"
        for index, rank in enumerate(self.ranks):
            eventually(
                lambda: rank.engine.grant is None
                and wanted in rank.engine.stats().last_error
                and wanted in self.ready(index)[1],
                lambda: f"{index}: {rank.engine.stats()} {self.ready(index)}",
            )
            with self.assertRaisesRegex(dws.EnginePaused, "has burnt"):
                rank.engine.wait_ready(0.5)
        self.publish()
        with self.assertRaises(dws.DeadlineError):
            self.dws_trainer.wait(2, policy=1, timeout=1)
        self.assertEqual([rank.engine.grant for rank in self.ranks], [None] * 3)

    def test_a_member_can_be_drained_and_resynchronised(self) -> None:
        self.begin(2)
        self.await_group(self.publish())
        client = ReflectionClient(f"unix:{self.cluster.receivers[1].socket}")
        self.addCleanup(client.close)
        list(client.call(ADMIN, "Drain"))
        self.publish()
        eventually(lambda: "drained by an operator" in self.ready(0)[1], lambda: f"{self.ready(0)}")
        self.assertEqual([rank.engine.grant.version for rank in self.ranks], [1, 1])
        list(client.call(ADMIN, "Drain", undo=True))
        self.await_group(2)
        for full in (False, True):
            released = self.pauses()
            last = list(client.call(ADMIN, "Resync", full=full))[-1]
            self.assertTrue(last.finished)
            self.assertEqual(last.version, 2)
            self.await_group(2)
            self.assertEqual(self.pauses(), [count + 1 for count in released])
        self.await_group(self.publish())

    def test_drift_of_a_member_is_repaired_by_the_group(self) -> None:
        self.begin(2)
        self.await_group(self.publish())
        client = ReflectionClient(f"unix:{self.cluster.receivers[1].socket}")
        self.addCleanup(client.close)
        eventually(  # a commit is counted after the release, once the ledger has it
            lambda: self.status(1).receiver.last_commit.version == 1,
            lambda: f"{self.status(1).receiver}",
        )
        repairs = self.status(1).receiver.repairs
        released = self.pauses()
        self.ranks[1].live["c"].reshape(-1).view("u4")[5] ^= 1
        last = list(client.call(ADMIN, "Verify"))[-1]
        self.assertEqual(last.mismatches, 1)
        # The member pauses, is repaired in a round of the group, and is released.
        eventually(
            lambda: self.status(1).receiver.repairs > repairs,
            lambda: f"{self.status(1).receiver}",
        )
        self.await_group(1)
        self.assertEqual(self.pauses(), [count + 1 for count in released])
        self.await_group(self.publish())

    def test_contradictory_group_flags_are_refused_at_start(self) -> None:
        self.cluster.start_sender(0)
        for options, wanted in (
            ("index=1", "group-id: not given"),
            ("id=g", "group-members: is 0, expected the number of receivers of group 'g'"),
            ("id=g members=2 index=2 leader=h:1", "group-index: is 2 of 2 members"),
            ("id=g members=2 index=1", "member 1 of group 'g' has to know its leader"),
            ("id=g members=2 leader=h:1", "group-leader: given to the leader"),
            ("id=g members=2 index=1 leader=h", "expected HOST:PORT of the group's leader"),
        ):
            with self.subTest(options):
                flags = [f"--group-{option}" for option in options.split()]
                with self.assertRaises(DaemonFailed) as caught:
                    self.cluster.start_receiver(f"r{len(self.cluster.receivers)}", *flags)
                self.assertIn(wanted, str(caught.exception).replace("\\'", "'"))


if __name__ == "__main__":
    unittest.main()
