"""Commits between the running() blocks of an engine: those of tasks that overlap, and what counts as the pause."""

from __future__ import annotations

import asyncio
import time
import unittest
from typing import Any

import numpy as np

from tests.integration.integration_case import WAIT_SECONDS, IntegrationCase, change, eventually

SHAPE = (300, 500)
# A forward pass, longer than any commit here takes.
PASS_SECONDS = 3.0


class RunningTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(5)
        self.start()
        self.receiver = self.cluster.receivers[0]
        self.dws_trainer = self.trainer()
        self.source = self.dws_trainer.register({"w": np.zeros(SHAPE, np.float32)})["w"]
        self.published: dict[int, Any] = {}
        self.publish(1)
        self.dws_engine = self.engine()
        self.live = self.dws_engine.attach({"w": np.zeros(SHAPE, np.float32)})["w"]
        self.await_version(self.dws_engine, 1)

    def publish(self, version: int) -> None:
        change(self.source, self.random, 0.05)
        self.published[version] = self.source.copy()
        self.dws_trainer.publish(version)

    def test_versions_are_committed_between_the_blocks_of_tasks_that_overlap(self) -> None:
        async def request(number: int) -> None:
            await asyncio.sleep(0.005 * number)
            while True:
                async with self.dws_engine.running(WAIT_SECONDS) as grant:
                    await asyncio.sleep(0.03)
                    np.testing.assert_array_equal(self.live, self.published[grant.version])
                    if grant.version == 6:
                        return

        async def serve() -> None:
            requests = asyncio.gather(*(request(number) for number in range(8)))
            for version in range(2, 7):
                await asyncio.to_thread(self.publish, version)
                await asyncio.to_thread(self.dws_trainer.wait, version)
            await requests

        asyncio.run(serve())

    def test_a_pass_that_a_commit_waits_for_is_no_part_of_the_pause(self) -> None:
        with self.dws_engine.running(WAIT_SECONDS):
            self.publish(2)
            eventually(lambda: self.dws_engine.grant is None, lambda: "the pause is asked for")
            time.sleep(PASS_SECONDS)  # the pass
        self.await_version(self.dws_engine, 2)
        self.dws_trainer.wait(2)
        self.assertEqual(self.receiver.metric("dws_receiver_pause_seconds_count"), 1)
        self.assertGreaterEqual(self.receiver.metric("dws_receiver_commit_seconds_sum"), PASS_SECONDS)
        self.assertLess(self.receiver.metric("dws_receiver_pause_seconds_sum"), PASS_SECONDS)
        self.assertLess(self.dws_engine.stats().lease.last_pause_seconds, PASS_SECONDS)


if __name__ == "__main__":
    unittest.main()
