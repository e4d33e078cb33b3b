"""kill -9 of the leader, and of a member, of a commit group at every point of their protocol: no two
ranks of the engine ever run with different versions, and the group recovers on the newest
version."""

from __future__ import annotations

import os
import re
import unittest

from tests.integration.cluster import Daemon
from tests.integration.fault_tally import FaultTally
from tests.integration.group_case import GroupCase
from tests.integration.integration_case import eventually

MEMBERS = 3
# On the way to the first version, and from one version to the next.
TIMES = (1, 2)
# Passed by the leader only.
LEADER_ONLY = ("group.decide.", "group.pause.", "group.commit.after_send", "group.settle.")
# Passed once.
ONCE = ("receiver.attach.",)
# Failpoints of a commit of any receiver: in a group it interrupts the other members too.
COMMIT = (
    "receiver.attach.after_digests",
    "receiver.commit.after_intent",
    "receiver.commit.after_pause",
    "receiver.commit.inside_scatter",
    "receiver.commit.after_scatter",
    "receiver.commit.after_record",
    "receiver.commit.after_ack",
)


def failpoints() -> list[str]:
    with open("common/base/failpoint.h") as header:
        return re.findall(r'^    "(group\.[a-z_.]+)",$', header.read(), re.MULTILINE)


class GroupKillTest(GroupCase):
    tally = FaultTally("kill -9 of a receiver of a group")

    @classmethod
    def tearDownClass(cls) -> None:
        print(cls.tally, flush=True)

    def setUp(self) -> None:
        super().setUp()
        self.use_failpoints("RECEIVER")
        self.deaths = 0

    def start_armed(self, victim: int, armed: str) -> None:
        self.cluster.start_sender(0)
        for index in range(MEMBERS):
            if index == victim:
                os.environ["DWS_FAILPOINT"] = armed
            self.start_member(index, MEMBERS)
            os.environ.pop("DWS_FAILPOINT", None)

    def revive(self) -> None:
        """Restarts the process that died, without the failpoint."""
        process = self.victim.process
        if process is None or process.poll() is None:
            return
        self.assertEqual(process.returncode, -9, self.victim.log_tail())
        self.deaths += 1
        self.tally.injected()
        self.victim.start()

    def has_died(self) -> bool:
        self.revive()
        return self.deaths == 1

    def check(self, victim: int, name: str, at: int) -> None:
        self.start_armed(victim, f"{name}:kill@{at}")
        self.victim: Daemon = self.cluster.receivers[victim]
        self.register()
        for index in range(MEMBERS):
            self.attach(index, MEMBERS)
        self.watch()
        for _ in range(at + 1):
            self.await_group(self.publish(), self.revive)
        eventually(self.has_died, lambda: f"{name} was passed less than {at} times")
        # The others changed no version without it; from now on each version takes one pause of all.
        released = self.pauses()
        for count in (1, 2):
            self.await_group(self.publish())
            self.assertEqual(self.pauses(), [before + count for before in released])

    def test_a_group_recovers_after_all_its_members_are_killed_at_once(self) -> None:
        """All receivers of the group are killed, between versions and in the middle of one."""
        self.begin(MEMBERS)
        self.await_group(self.publish())
        for share in (0.01, 0.6):
            version = self.publish(share)
            for receiver in self.cluster.receivers:
                receiver.kill()
                self.tally.injected()
            for receiver in self.cluster.receivers:
                receiver.start()
            self.await_group(version)


def _add(victim: int, name: str, at: int) -> None:
    def test(self: GroupKillTest) -> None:
        self.check(victim, name, at)

    role = "leader" if victim == 0 else "member"
    setattr(GroupKillTest, f"test_{role}_{name.replace('.', '_')}_{at}", test)


for _name in [*failpoints(), *COMMIT]:
    for _victim in (0, 1):
        if _victim == 0 or not _name.startswith(LEADER_ONLY):
            for _at in (1,) if _name.startswith(ONCE) else TIMES:
                _add(_victim, _name, _at)


if __name__ == "__main__":
    unittest.main()
