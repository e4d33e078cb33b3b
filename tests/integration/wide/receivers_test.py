"""One sender and 200 receivers over connections of their own: every one of them has every version, also after
`kill -9` of the sender, and what the sender keeps and shows of each is bounded."""

from __future__ import annotations

import json
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import WAIT_SECONDS, IntegrationCase, change, eventually
from tools.bench.receivers.light_receivers import LightReceivers, count_known, raise_descriptors

RECEIVERS = 200
LISTED = 64  # in the status
LABELLED_METRICS = 4  # with a label for each listed receiver
# A welcome tells of all of them.
SMALL_TENSORS = 1500
LARGE_ELEMENTS = 4 << 20
# About 64 KiB, and room for what does not grow with receivers.
BYTES_PER_RECEIVER_MAX = 128 << 10


class ReceiversTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        raise_descriptors(4 * RECEIVERS + 256)
        self.sender = self.cluster.start_sender(0, "--insecure")
        self.random = np.random.default_rng(7)
        weights: dict[str, Any] = {
            f"model.layers.{i}.norm.weight": self.random.standard_normal(8, np.float32)
            for i in range(SMALL_TENSORS)
        }
        weights["large"] = self.random.standard_normal(LARGE_ELEMENTS, np.float32)
        self.job = self.trainer()
        self.source = self.job.register(weights)
        self.version = 0

    def publish(self) -> int:
        change(self.source["large"], self.random, 0.05)  # more than an announcement can carry
        self.version += 1
        self.job.publish(self.version)
        return self.version

    def commit(self, receivers: LightReceivers) -> dict[str, Any]:
        """Publishes a version. Returns what the receivers say once all have committed it."""
        version = self.publish()
        result = self.job.wait(version, "all", WAIT_SECONDS)
        self.assertEqual(len(result.committed), receivers.count)
        self.assertEqual(result.left_out, ())
        answer = receivers.wait(version, WAIT_SECONDS)
        self.assertEqual(len(answer["times"]), receivers.count, "a receiver has left it out")
        return answer

    def assert_bounded(self, present: int) -> None:
        status = json.loads(self.sender.page("/status"))["sender"]
        self.assertEqual(status["receivers_present"], present)
        self.assertEqual(len(status["receivers"]), LISTED)
        labels = self.sender.page("/metrics").count("receiver_id=")
        self.assertEqual(labels, LABELLED_METRICS * LISTED)
        self.assertEqual(
            self.sender.metric("dws_sender_receivers", 'state="present"'), present
        )

    def test_all_commit_every_version_before_and_after_a_kill_of_the_sender(self) -> None:
        self.publish()
        self.publish()
        alone = self.sender.own_bytes()
        with LightReceivers(self.sender.address, RECEIVERS, "test") as receivers:
            receivers.wait(self.version, WAIT_SECONDS)
            eventually(
                lambda: self.sender.own_bytes() - alone <= RECEIVERS * BYTES_PER_RECEIVER_MAX,
                lambda: f"{(self.sender.own_bytes() - alone) >> 10} KiB for {RECEIVERS} receivers, "
                f"at most {BYTES_PER_RECEIVER_MAX >> 10} KiB for each",
            )
            before = self.commit(receivers)
            after = self.commit(receivers)
            self.assertEqual(after["deltas"] - before["deltas"], RECEIVERS)
            self.assert_bounded(RECEIVERS)

            eventually(
                lambda: count_known(self.sender.folder) == RECEIVERS,
                lambda: str(count_known(self.sender.folder)),
            )
            self.sender.kill()
            self.sender.start()
            self.job.reconnect()
            self.commit(receivers)  # also waits for receivers that are not back yet
            before = receivers.at(self.version)
            after = self.commit(receivers)
            self.assertEqual(after["deltas"] - before["deltas"], RECEIVERS)
            self.assert_bounded(RECEIVERS)
        self.assert_log_bounded(self.sender)

    def assert_log_bounded(self, sender: Daemon) -> None:
        # Twice so many connected, over the process before and the one after.
        for event in ("receiver_connected", "receiver_awaited"):
            lines = sender.logged(event)
            self.assertGreater(lines, 0, event)
            self.assertLess(lines, RECEIVERS, event)


if __name__ == "__main__":
    unittest.main()
