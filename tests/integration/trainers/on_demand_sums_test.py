"""Ranks that train on demand on two hosts, whose senders add up the gradients of their host for owners on the other one."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np

import dws
from dws.dtypes import DType
from tests.integration.trainers.on_demand_case import UNITS, Job, OnDemandCase, Rank

WORLD = 4  # ranks 0 and 1 are on one host, 2 and 3 on the other
MICROBATCHES = (3, 2, 0, 1)  # of each rank
ROOM = 1 << 20  # for all units
ROOM_OF_FIRST = 1024  # not for the second unit
Pushes = list[list[list[np.ndarray[Any, Any]]]]  # by rank, microbatch and unit: by owner and element


def elements_of(unit: int) -> int:
    return UNITS[unit].shard_elements(WORLD)


ALL_ELEMENTS = sum(map(elements_of, range(len(UNITS))))


class HostSumsTest(OnDemandCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(7)

    def start_hosts(self, room: int, dtype: DType, exact: bool) -> None:
        """Also does a minibatch without a microbatch, after which all senders know of each other's hosts."""
        self.job = Job(ranks=WORLD, gradients=dtype, exact=exact)
        self.start_job(flags=lambda rank: [f"--host-id={'ab'[rank // 2]}", f"--host-accumulate-bytes={room}"])
        self.each(Rank.publish_first_step)

    def draw(self) -> Pushes:
        """Gradients of a minibatch: normal FP32 numbers, or those that are exact as BF16, or whose sums are exact in FP64."""

        def of_unit(unit: int) -> np.ndarray[Any, Any]:
            values = self.random.normal(0, 1e-3, (WORLD, elements_of(unit))).astype(np.float32)
            if self.job.gradients == DType.BF16:
                return (values.view(np.uint32) >> 16).astype(np.uint16)
            if self.job.exact:
                return np.float32(np.round(values * 2**30) / 2**30)
            return values

        return [[[of_unit(unit) for unit in range(len(UNITS))] for _ in range(count)] for count in MICROBATCHES]

    @staticmethod
    def as_numbers(pushed: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """FP64."""
        if pushed.dtype == np.uint16:
            pushed = (pushed.astype(np.uint32) << 16).view(np.float32)
        return pushed.astype(np.float64)

    def run_rank(self, rank: Rank, pushes: Pushes) -> Any:
        """Takes part in the next attempt."""
        rank.begin()
        for microbatch in pushes[rank.rank]:
            rank.traffic.begin_microbatch()
            rank.check_gathers()
            for index, gradients in enumerate(microbatch):
                rank.push_unit(index, gradients)
        return rank.finish(float(len(pushes[rank.rank])))

    def check(self, views: list[Any], pushes: Pushes) -> None:
        """Checks the sums of a minibatch: equal to the bit if they are exact, else within FP32's rounding."""
        for rank, view in zip(self.ranks, views):
            self.assertEqual(view.step.weight, sum(MICROBATCHES))
            self.assertEqual(view.exact, self.job.exact)
            for unit, found in enumerate(rank.gradients()):
                pieces = [self.as_numbers(each[unit][rank.rank]) for of_rank in pushes for each in of_rank]
                true = np.sum(pieces, axis=0)
                if self.job.exact:
                    np.testing.assert_array_equal(found, true.astype(np.float32))
                else:
                    bound = (len(pieces) - 1) * 2.0**-24 * np.sum(np.abs(pieces), axis=0) * 1.01
                    self.assertTrue(bool((np.abs(found - true) <= bound).all()))

    def fetched(self) -> list[int]:
        """By owner: bytes of gradients that came from the other host."""
        return [int(sender.metric("dws_sender_train_pulled_bytes_total", "grpc")) for sender in self.cluster.senders]

    def metric(self, name: str) -> list[int]:
        return [int(sender.metric(f"dws_sender_train_{name}")) for sender in self.cluster.senders]

    def step(self) -> list[int]:
        """A minibatch. Returns what each owner has fetched from the other host."""
        before, pushes = self.fetched(), self.draw()
        self.check(self.each(lambda rank: self.run_rank(rank, pushes)), pushes)
        self.each(Rank.publish)
        return [now - then for now, then in zip(self.fetched(), before)]

    def check_one_sum(self, dtype: DType, exact: bool) -> None:
        self.start_hosts(ROOM, dtype, exact)
        width = 8 if exact else 4
        for _ in range(2):
            self.assertEqual(self.step(), [width * ALL_ELEMENTS] * WORLD)
        # Each host has two owners elsewhere and two senders that add: one each.
        of_host = [sum(MICROBATCHES[:2]), sum(MICROBATCHES[2:])]
        self.assertEqual(self.metric("combined_pieces_total"), [2 * len(UNITS) * of_host[r // 2] for r in range(WORLD)])
        pushed = 2 * dtype.itemsize * ALL_ELEMENTS
        self.assertEqual(self.metric("combined_bytes_total"), [pushed * of_host[r // 2] for r in range(WORLD)])
        for room in self.metric("host_accumulators_bytes"):
            self.assertGreaterEqual(room, width * ALL_ELEMENTS)
            self.assertLessEqual(room, ROOM)

    def test_a_host_sends_one_fp32_sum_of_bf16_gradients(self) -> None:
        self.check_one_sum(DType.BF16, exact=False)

    def test_a_host_sends_one_fp32_sum_of_fp32_gradients(self) -> None:
        self.check_one_sum(DType.F32, exact=False)

    def test_a_host_sends_one_exact_sum_of_bf16_gradients(self) -> None:
        self.check_one_sum(DType.BF16, exact=True)

    def test_a_host_sends_one_exact_sum_of_fp32_gradients(self) -> None:
        self.check_one_sum(DType.F32, exact=True)

    def test_without_room_each_rank_sends_each_microbatch(self) -> None:
        self.start_hosts(0, DType.BF16, exact=True)
        pushed = 2 * ALL_ELEMENTS
        elsewhere = [sum(MICROBATCHES[2:]), sum(MICROBATCHES[:2])]
        self.assertEqual(self.step(), [pushed * elsewhere[r // 2] for r in range(WORLD)])
        self.assertEqual(self.metric("host_accumulators_bytes"), [0] * WORLD)

    def test_a_unit_that_has_no_room_goes_to_its_owner_directly(self) -> None:
        self.start_hosts(ROOM_OF_FIRST, DType.BF16, exact=True)
        elsewhere = [sum(MICROBATCHES[2:]), sum(MICROBATCHES[:2])]
        self.assertEqual(self.step(), [8 * elements_of(0) + 2 * elements_of(1) * elsewhere[r // 2] for r in range(WORLD)])
        self.assertGreater(min(self.metric("host_accumulators_bytes")), 0)
        self.assertLessEqual(max(self.metric("host_accumulators_bytes")), ROOM_OF_FIRST)

    def test_an_addition_that_was_rounded_on_another_host_is_told_by_the_owner(self) -> None:
        self.start_hosts(ROOM, DType.F32, exact=True)
        pushes: Pushes = [[], [], [], []]
        for rank, value in ((0, 1.0), (1, 2.0**-60)):  # their sum has more bits than FP64
            gradients = np.zeros((WORLD, elements_of(0)), np.float32)
            gradients[3] = value
            pushes[rank] = [[gradients]]
        views = self.each(lambda rank: self.run_rank(rank, pushes))
        self.assertEqual([view.exact for view in views], [True, True, True, False])
        np.testing.assert_array_equal(self.ranks[3].gradients()[0], np.float32(1.0))

    def test_a_sender_that_adds_for_its_host_is_killed_in_the_middle_and_the_minibatch_is_done_again(self) -> None:
        self.start_hosts(ROOM, DType.BF16, exact=True)
        pushes = self.draw()
        self.each(Rank.begin)
        for rank in self.ranks[:2]:  # their sums for the other host are begun
            for index, gradients in enumerate(pushes[rank.rank][0]):
                rank.push_unit(index, gradients)
        self.ranks[0].traffic.allocate(0, "all that was pushed is added")
        killed = self.cluster.senders[1]
        killed.kill()
        killed.start()

        def go_on(rank: Rank) -> Any:
            with self.assertRaises((dws.RankLostError, dws.DaemonUnavailableError)):
                rank.finish(1.0)
            while True:
                rank.traffic.end()
                rank.membership.join_if_lost(rank.version)
                try:
                    return self.run_rank(rank, pushes)
                except (dws.RankLostError, dws.MinibatchAbandonedError):
                    pass  # the sender was back only then

        self.check(self.each(go_on), pushes)
        self.each(Rank.publish)
        self.step()
        self.assertGreater(self.metric("combined_pieces_total")[1], 0)


if __name__ == "__main__":
    unittest.main()
