"""Training on demand with a real sender for each rank: steps, and ranks and senders that are gone and come back."""

from __future__ import annotations

import math
import threading
import time
import unittest

import numpy as np

import dws
from dws.dtypes import DType
from dws.on_demand.member import DECIDED, Member
from dws.on_demand.rank_memory import RankMemory
from tests.integration.trainers.on_demand_case import RANKS, SECONDS, UNITS, OnDemandCase, Rank


class OnDemandTest(OnDemandCase):
    def test_ranks_gather_push_and_step_with_any_numbers_of_microbatches(self) -> None:
        self.start_job()
        for pushes in ([[1.0, 2.0], [4.0], []], [[], [], [8.0] * 7], [[0.5], [0.25], [2.0**-30]]):
            views = self.minibatch([list(each) for each in pushes])
            self.check_sums(views, sum(map(sum, pushes)), sum(map(len, pushes)))
            self.each(Rank.publish)
        self.assertEqual([rank.version for rank in self.ranks], [4] * RANKS)

    def test_a_sender_says_how_long_its_rank_has_waited(self) -> None:
        self.start_job()

        def run(rank: Rank) -> None:
            rank.begin()
            time.sleep(0.5 * rank.rank)
            rank.finish(1.0)
            rank.publish()

        for _ in range(2):  # the second one says what was waited in the first
            self.each(run)
        name = "dws_sender_train_wait_seconds_total"
        waited = [sender.metric(name, 'cause="decision"') for sender in self.cluster.senders]
        self.assertGreater(waited[0], 0.9)
        self.assertLess(waited[2], 0.5)
        for cause in ("gather", "push"):
            self.assertEqual(self.cluster.senders[0].metric(name, f'cause="{cause}"'), 0)

    def test_a_gradient_that_is_not_finite_is_skipped_by_all(self) -> None:
        self.start_job()
        views = self.minibatch([[1.0], [math.nan], []])
        for rank, view in zip(self.ranks, views):
            self.assertIn(view.phase, DECIDED)
            self.assertFalse(view.step.finite)
            with self.assertRaisesRegex(dws.StateError, "version 2"):
                rank.trainer.publish(2)
        self.each(lambda rank: rank.member.skip(rank.done))
        views = self.minibatch([[1.0], [2.0], []])
        self.check_sums(views, 3.0, 2.0)
        self.each(Rank.publish)
        self.assertEqual([view.version for view in views], [1] * RANKS)

    def test_a_rank_that_is_gone_is_named_in_two_seconds_and_may_come_back(self) -> None:
        self.start_job()
        self.each(Rank.begin)
        lost = self.ranks[1]
        for rank in self.ranks[:2]:
            rank.push(1.0)
        left: list[float] = []

        def leave() -> None:
            left.append(time.monotonic())
            lost.member.close()

        threading.Timer(0.5, leave).start()
        for rank in (self.ranks[0], self.ranks[2]):
            with self.assertRaises(dws.RankLostError) as caught:
                rank.finish(1.0)
            self.assertLess(time.monotonic() - left[0], 2.0)
            self.assertEqual(caught.exception.rank, 1)
            rank.traffic.end()
        lost.join()
        views = self.minibatch([[1.0], [2.0], [4.0]])  # what was pushed before is gone
        self.check_sums(views, 7.0, 3.0)
        self.each(Rank.publish)

    def restart_sender(self, rank: int) -> None:
        self.cluster.senders[rank].kill()
        self.cluster.senders[rank].start()

    def test_a_sender_that_is_killed_before_the_decision_is_joined_again(self) -> None:
        self.start_job()
        self.each(Rank.publish_first_step)
        self.each(Rank.begin)
        for rank in self.ranks[:2]:
            rank.push(1.0)
        self.restart_sender(1)
        with self.assertRaises(dws.DaemonUnavailableError):
            self.ranks[1].finish(1.0)
        self.ranks[1].traffic.end()
        for rank in (self.ranks[0], self.ranks[2]):
            with self.assertRaisesRegex(dws.RankLostError, "because of rank 1"):
                rank.finish(1.0)
            rank.traffic.end()
        self.ranks[1].membership.join_if_lost(2)
        self.check_sums(self.minibatch([[1.0], [2.0], [4.0]]), 7.0, 3.0)
        self.each(Rank.publish)

    def test_a_sender_that_is_killed_after_the_decision_still_has_it(self) -> None:
        self.start_job()
        for killed in (1, 0):  # 0 has the leader
            views = self.minibatch([[1.0], [2.0], [4.0]])
            self.restart_sender(killed)
            lost = self.ranks[killed]
            while lost.member.lost is None:
                time.sleep(0.01)
            lost.membership.join_if_lost(lost.version)
            again = lost.member.wait(lambda view: view.phase in DECIDED, "the decision")
            self.assertEqual(again.step, views[killed].step)
            views[killed] = again
            self.check_sums(views, 7.0, 3.0)
            self.each(Rank.publish)

    def test_a_gather_that_waits_too_long_names_who_has_not_published(self) -> None:
        self.start_job(seconds=6.0)
        waiting = self.ranks[0]
        self.each(Rank.begin)
        self.each(lambda rank: rank.finish(1.0))
        for rank in self.ranks[:2]:
            rank.publish()
        waiting.begin()
        with self.assertRaisesRegex(dws.DeadlineError, "unit 'first'.*: trainer rank 2 at .*: it has not published version 2"):
            waiting.check_gathers()

    def test_a_rank_that_gives_up_says_why_to_the_others(self) -> None:
        self.start_job()
        self.each(Rank.begin)
        self.ranks[2].member.abandon("no memory left")
        for rank in self.ranks[:2]:
            with self.assertRaisesRegex(dws.RankLostError, "because of rank 2: .*no memory left"):
                rank.finish(1.0)
            rank.traffic.end()
        self.check_sums(self.minibatch([[1.0], [], []]), 1.0, 1.0)

    def test_a_sender_without_peers_refuses_by_name(self) -> None:
        self.cluster.start_sender(0)
        trainer = dws.Trainer(self.cluster.senders[0].socket, "test")
        self.addCleanup(trainer.close)
        trainer.register({"a": np.zeros(4, np.float32)})
        trainer.publish(1)
        member = Member(self.cluster.senders[0].socket, "test", 0, SECONDS)
        self.addCleanup(member.close)
        with self.assertRaisesRegex(dws.StateError, "start it with --train-peers"):
            memory = RankMemory(UNITS, RANKS, DType.F32, DType.F32, 1, False)
            outbox = memory.outbox(2)
            self.addCleanup(outbox.close)
            member.join(memory.request(trainer.session, outbox), memory.descriptors(outbox), SECONDS)


if __name__ == "__main__":
    unittest.main()
