"""A commit group of real receivers beside many others: its ranks change versions together, and nobody misses one,
also after `kill -9` of the sender."""

from __future__ import annotations

import unittest

from tests.integration.group_case import GroupCase
from tests.integration.integration_case import WAIT_SECONDS, eventually
from tools.bench.receivers.light_receivers import LightReceivers, count_known

MEMBERS = 2
OTHERS = 100


class ReceiversGroupTest(GroupCase):
    def commit(self, others: LightReceivers) -> None:
        version = self.publish()
        self.await_group(version)
        result = self.dws_trainer.wait(version, "all", WAIT_SECONDS)
        self.assertEqual(len(result.committed), MEMBERS + OTHERS)
        self.assertEqual(len(others.wait(version, WAIT_SECONDS)["times"]), OTHERS)

    def test_a_group_and_many_others_commit_every_version(self) -> None:
        self.begin(MEMBERS)
        self.await_group(self.publish())
        sender = self.cluster.senders[0]
        with LightReceivers(sender.address, OTHERS, "test") as others:
            others.wait(self.version, WAIT_SECONDS)
            for _ in range(3):
                self.commit(others)
            eventually(lambda: count_known(sender.folder) == OTHERS, lambda: str(count_known(sender.folder)))
            sender.kill()
            sender.start()
            self.dws_trainer.reconnect()
            for _ in range(3):
                self.commit(others)


if __name__ == "__main__":
    unittest.main()
