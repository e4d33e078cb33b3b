"""A commit group over two hosts, each a network namespace, whose network fails. Skipped if the
test cannot make namespaces."""

from __future__ import annotations

import unittest

from tests.integration.group_case import GroupCase
from tests.integration.integration_case import eventually
from tests.integration.network_hosts import NetworkHosts


class GroupNetworkTest(GroupCase):
    def test_a_group_recovers_after_its_hosts_lost_their_connection(self) -> None:
        hosts = NetworkHosts.of_test(self)
        self.flags = ("--insecure",)
        hosts.enter(self.cluster, 0)
        self.cluster.start_sender(0, "--insecure")
        self.start_member(0, 2)
        hosts.enter(self.cluster, 1)
        self.start_member(1, 2)
        self.register()
        for index in range(2):
            self.attach(index, 2)
        self.watch()
        self.await_group(self.publish())
        self.await_group(self.publish())

        hosts.set_link(1, False)
        released = self.pauses()
        self.publish()
        # Each side notices separately.
        eventually(
            lambda: "receiver 'member-1', is not connected" in self.ready(0)[1],
            lambda: f"{self.ready(0)}",
        )
        eventually(
            lambda: not self.status(1).receiver.group.leader_connected, lambda: f"{self.status(1)}"
        )
        self.publish()
        self.assertEqual([rank.engine.grant.version for rank in self.ranks], [2, 2])
        self.assertEqual(self.pauses(), released)

        hosts.set_link(1, True)
        self.await_group(4)


if __name__ == "__main__":
    unittest.main()
