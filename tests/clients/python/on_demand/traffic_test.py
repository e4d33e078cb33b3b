"""What waits for copies of a device, and what does not."""

from __future__ import annotations

import unittest

from dws.dtypes import DType
from dws.errors import DeadlineError, StateError
from dws.on_demand.deferred import Deferred
from tests.clients.python.on_demand.traffic_case import UNIT, Copy, FailedCopy, LateCopy, job


class DeferredTest(unittest.TestCase):
    def test_an_action_waits_for_its_copy_and_for_those_before(self) -> None:
        deferred, did = Deferred(), []
        copies = [Copy(), Copy(ended=True), Copy()]
        for i, copy in enumerate(copies):
            deferred.add(copy, lambda i=i: did.append(i))  # type: ignore[misc]
        deferred.run()
        self.assertEqual(did, [])
        copies[0].ended = True
        deferred.run()
        self.assertEqual(did, [0, 1])
        deferred.run(1)
        self.assertFalse(copies[2].waited_for)
        deferred.run(0)
        self.assertEqual(did, [0, 1, 2])
        self.assertTrue(copies[2].waited_for)

    def test_what_an_action_raises_is_raised_once(self) -> None:
        deferred, did = Deferred(), []

        def fail() -> None:
            raise StateError("as the test wants")

        deferred.add(Copy(ended=True), fail)
        deferred.add(Copy(ended=True), lambda: did.append(1))
        with self.assertRaisesRegex(StateError, "as the test wants"):
            deferred.run()
        deferred.run()
        self.assertEqual((did, len(deferred)), ([1], 0))

    def test_the_end_waits_for_copies_and_survives_a_device_that_has_failed(self) -> None:
        deferred, did = Deferred(), []
        first = Copy()
        deferred.add(first, lambda: did.append(1))
        deferred.add(FailedCopy(), lambda: did.append(2))
        with self.assertLogs("dws.on_demand.deferred", "WARNING") as logs:
            actions = deferred.end()
        self.assertTrue(first.waited_for)
        self.assertIn("an illegal memory access", logs.output[0])
        self.assertEqual((did, len(actions), len(deferred)), ([], 2, 0))


class TrafficTest(unittest.TestCase):
    def test_a_unit_is_let_go_of_when_its_copy_has_ended(self) -> None:
        with job() as rank:
            copy = Copy()
            rank.gather(copy)
            rank.traffic.begin_microbatch()
            self.assertEqual(rank.member.released, [])
            copy.ended = True
            rank.traffic.begin_microbatch()
            self.assertEqual(rank.member.released, [1])
            self.assertFalse(copy.waited_for)
            rank.gather(None)
            self.assertEqual(rank.member.released, [1, 2])

    def test_a_gather_waits_for_the_copy_that_has_the_last_slot_and_no_other(self) -> None:
        with job(prefetch=1) as rank:  # three slots
            copies = [Copy() for _ in range(3)]
            for copy in copies:
                rank.gather(copy)
            self.assertEqual([copy.waited_for for copy in copies], [False, False, False])
            gathering = rank.traffic.start_gather(0, "gathering")
            self.assertEqual([copy.waited_for for copy in copies], [True, False, False])
            self.assertEqual(rank.member.released, [1])
            rank.traffic.start_gather(0, "gathering ahead")
            self.assertEqual([copy.waited_for for copy in copies], [True, True, False])
            rank.traffic.end_gather(gathering, lambda offset: None)

    def test_gradients_are_pushed_in_order_when_their_copies_have_ended(self) -> None:
        with job() as rank:
            first, second = Copy(), Copy(ended=True)
            rank.push(first, 11)
            rank.push(second, 22)
            rank.traffic.begin_microbatch()
            self.assertEqual((rank.pushed(), rank.traffic.pushes), ([], 0))
            first.ended = True
            rank.traffic.begin_microbatch()
            self.assertEqual((rank.pushed(), rank.traffic.pushes), ([(1, 11), (2, 22)], 2))
            self.assertFalse(first.waited_for)

    def test_a_push_waits_for_a_copy_that_makes_room_which_is_no_wait_for_owners(self) -> None:
        with job() as rank:
            rank.push(LateCopy(20, rank.take), 11)
            rank.push(LateCopy(0, rank.take), 22)
            rank.push(None, 33)  # the sender takes the first two as soon as they are pushed
            self.assertEqual(rank.traffic.pushes, 3)
            self.assertEqual(rank.traffic.waits.push_seconds, 0.0)

    def test_copies_that_do_not_end_are_named_when_the_time_is_over(self) -> None:
        with job(seconds=0.01) as rank:
            rank.push(Copy())
            rank.push(Copy())
            with self.assertRaisesRegex(DeadlineError, "no room in the outbox .* the device has not ended 2 copies to it"):
                rank.traffic.allocate(0, "pushing")

    def test_all_is_pushed_and_compared_before_the_attempt_is_finished(self) -> None:
        with job() as rank:
            checked: list[int] = []
            rank.push(Copy(), 11)
            rank.traffic.check_later(Copy(), lambda: checked.append(1))
            rank.traffic.settle()
            self.assertEqual((rank.pushed(), rank.traffic.pushes, checked), ([(1, 11)], 1, [1]))

    def test_the_end_of_an_attempt_waits_for_copies_frees_buffers_and_pushes_nothing(self) -> None:
        with job() as rank:
            copies = [Copy() for _ in range(3)]
            rank.gather(copies[0])
            rank.push(copies[1])
            rank.traffic.allocate(0, "pushing")
            rank.traffic.check_later(copies[2], lambda: self.fail("compared after the end"))
            rank.traffic.end()
            self.assertEqual([copy.waited_for for copy in copies], [True, True, True])
            self.assertEqual((rank.pushed(), rank.member.released), ([], [1]))
            rank.traffic.begin()
            for _ in range(2):
                rank.push(None)
            self.assertEqual([number for number, _ in rank.pushed()], [1, 2])

    def test_gradients_of_an_attempt_that_is_over_are_not_pushed(self) -> None:
        with job() as rank:
            copy = Copy()
            rank.push(copy)
            rank.member.attempt = None
            copy.ended = True
            rank.traffic.begin_microbatch()
            self.assertEqual(rank.pushed(), [])
            rank.traffic.end()


if __name__ == "__main__":
    unittest.main()
