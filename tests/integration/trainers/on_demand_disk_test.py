"""Training on demand beside a sender whose disk is full: it waits by name until the version is recorded, engines keep theirs, and
all go on when there is room.
"""

from __future__ import annotations

import os
import re
import time
import unittest
from concurrent import futures
from typing import Any

import numpy as np

from tests.integration.integration_case import eventually
from tests.integration.faults.small_disk import SMALL_DISK, can_mount, fill, on_disk
from tests.integration.trainers.on_demand_case import RANKS, OnDemandCase, Rank, weights_at

FULL = 1  # the rank whose sender has no room
VERSIONS_MAX = 500  # far more than the rest of a page, which a full disk still accepts
STAYS_SECONDS = 1.0
PUSHES = [[1.0], [2.0], []]
REASON = "No space left on device"


@unittest.skipUnless(can_mount(), "no mount namespaces for this user here")
class DiskTest(OnDemandCase):
    def start_on_small_disk(self) -> str:
        """Returns the state folder of the sender with the small disk."""
        peers = ",".join(f"unix:{self.cluster.folder}/sender-{rank}/d.sock" for rank in range(RANKS))
        state = f"{self.cluster.folder}/sender-{FULL}/state"
        for rank in range(RANKS):
            sender = self.cluster.add_sender(rank, f"--train-peers={peers}")
            if rank == FULL:
                os.mkdir(state)
                sender.command = on_disk(SMALL_DISK, state, sender.command)
            sender.start()
        self.cluster.start_receiver("receiver-0")
        self.start_ranks()
        self.dws_engine = self.engine()
        self.live = self.dws_engine.attach({name: np.zeros_like(each) for name, each in self.weights().items()})
        return state

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        return weights_at(self.job.units, self.ranks[0].version)

    def step(self) -> None:
        self.check_sums(self.minibatch(PUSHES), 3.0, 2.0)
        self.each(Rank.publish)

    def has(self, version: int) -> bool:
        grant = self.dws_engine.grant
        return grant is not None and grant.version == version

    def check_engine(self, version: int, weights: dict[str, np.ndarray[Any, Any]]) -> None:
        self.await_version(self.dws_engine, version)
        self.assert_same_weights(self.dws_engine, self.live, weights)

    def test_training_waits_for_a_sender_with_a_full_disk_by_name(self) -> None:
        state = self.start_on_small_disk()
        self.step()
        self.check_engine(2, self.weights())
        sender = self.cluster.senders[FULL]
        filler = fill(sender, state)
        for _ in range(VERSIONS_MAX):
            before = self.weights()
            self.step()
            version = self.ranks[0].version
            eventually(lambda: self.has(version) or REASON in sender.page("/status"), lambda: sender.page("/status"))
            if not self.has(version):
                break
        with futures.ThreadPoolExecutor(RANKS) as pool:
            # The ranks have published, but nobody gets the part that is not recorded.
            views = [pool.submit(self.attempt, rank, PUSHES[rank.rank]) for rank in self.ranks]
            waits = f"trainer rank {FULL} at [^ ]*: it has not published version {version}"
            eventually(lambda: bool(re.search(waits, self.cluster.senders[0].page("/status"))), lambda: "a gather waits by name")
            time.sleep(STAYS_SECONDS)
            self.assertEqual([rank.traffic.pushes for rank in self.ranks], [0] * RANKS)
            self.assertIn(REASON, sender.page("/status"))
            self.check_engine(version - 1, before)
            os.unlink(filler)
            self.check_engine(version, self.weights())
            self.check_sums([view.result() for view in views], 3.0, 2.0)
        self.each(Rank.publish)
        self.check_engine(version + 1, self.weights())
        for each in self.cluster.senders:
            self.assertEqual(each.metric("dws_sender_train_abandoned_total"), 0)


if __name__ == "__main__":
    unittest.main()
