"""kill -9 of a sender at each failpoint of a minibatch, and again while it comes back: all ranks stay at a version or go to the
next one together, with the sums of an undisturbed minibatch to the bit, and a step that was recorded is not done again.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import time
import unittest
from concurrent import futures
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

import dws
from dws.on_demand.member import OPEN, STEPPED, AttemptId
from tests.integration.integration_case import eventually
from tests.integration.trainers.on_demand_case import RANKS, SECONDS, OnDemandCase, Rank

PUSHES = [[1 / 3, 0.7], [1.1], []]  # a rank needs no microbatch
FIRST = 3  # minibatches that nothing disturbs
AGAIN_SECONDS = 0.02
DEATH_SECONDS = 10.0  # after the ranks have published, which the sender records later
REDONE, STEPPED_ONCE, EITHER = "redone", "stepped once", "redone or stepped once"


class Point(NamedTuple):
    """Where a sender is killed.

    Attributes:
      armed: DWS_FAILPOINT; numbers count from the start of its process, whose rank joins first.
      outcome: of the minibatch.
      joining: it may be before the rank has joined, and taken part.
      again: the same of the next process, which is killed, too.
    """

    armed: str
    outcome: str
    joining: bool = False
    again: str = ""


def record_points() -> list[Point]:
    """The record is half written, for each time in a minibatch that it is."""
    return [Point(f"sender.train.inside_record:kill@{number}", EITHER, joining=True) for number in range(1, 8)]


# The version that is published once more when the rank joins is the first one, so the next one is the second.
POINTS = [
    *record_points(),
    *(Point(f"{name}:kill@1", EITHER, joining=True) for name in (
        "sender.register.after_record", "sender.publish.after_capture", "sender.publish.after_record", "sender.train.after_load",
        "sender.train.after_open",
    )),
    Point("sender.train.before_offer:kill@3", REDONE),
    Point("sender.train.before_finish:kill@3", REDONE),
    Point("sender.train.before_ack:kill@5", REDONE),
    Point("sender.train.inside_seal:kill@1", REDONE),
    Point("sender.train.after_seal:kill@1", REDONE),
    Point("sender.train.after_sealed:kill@1", REDONE),
    Point("sender.train.after_stepped:kill@1", STEPPED_ONCE),
    Point("sender.publish.after_capture:kill@2", STEPPED_ONCE),
    # Neither the ledger has the version nor the record; only the ledger; only the record; both.
    Point("sender.train.before_released:kill@1,sender.publish.after_seal:hold@2", STEPPED_ONCE),
    Point("sender.publish.after_record:kill@2,sender.train.before_released:hold@1", STEPPED_ONCE),
    Point("sender.train.after_released:kill@1,sender.publish.after_seal:hold@2", STEPPED_ONCE),
    Point("sender.publish.after_seal:kill@2", STEPPED_ONCE),
    Point("sender.publish.after_record:kill@2", STEPPED_ONCE),
    Point("sender.publish.after_retain:kill@2", STEPPED_ONCE),
    Point("sender.publish.after_announce:kill@2", STEPPED_ONCE),
    # Again, while the next process takes what the record has.
    *(Point("sender.train.after_stepped:kill@1", STEPPED_ONCE, again=f"{name}:kill@1") for name in (
        "sender.publish.after_record", "sender.train.after_load", "sender.train.inside_record", "sender.train.after_stepped",
    )),
    Point("sender.train.after_sealed:kill@1", REDONE, again="sender.train.after_sealed:kill@1"),
    Point("sender.publish.after_record:kill@2,sender.train.before_released:hold@1", STEPPED_ONCE,
          again="sender.train.before_released:kill@1"),
]
# The leader's own: it has told nobody, or some.
LEADER_POINTS = [
    *(Point(f"sender.train.before_ask:kill@{number + 1}", EITHER, joining=True) for number in range(RANKS)),
    *(Point(f"sender.train.before_abandon:kill@{number + 1}", EITHER, joining=True) for number in range(RANKS)),
    *(Point(f"sender.train.before_step:kill@{number + 1}", EITHER) for number in range(RANKS)),
    Point("sender.train.before_step:kill@3", EITHER, again="sender.train.before_ask:kill@3"),
]


class Took(NamedTuple):
    """What a rank has seen of a minibatch: the decision, and its sums then."""

    view: Any
    sums: list[np.ndarray[Any, Any]]


class RecoveryTest(OnDemandCase):
    def setUp(self) -> None:
        super().setUp()
        self.abandoned: list[dws.DwsError] = []

    def take(self, rank: Rank, scale: float) -> Took:
        """A minibatch of a rank, up to the next version, whatever happens to senders."""
        values = [value * scale for value in PUSHES[rank.rank]]
        view = self.decided(rank, values, self.abandoned.append)
        took = Took(view, [each.copy() for each in rank.gradients()])
        while True:
            try:
                rank.publish()
                return took
            except dws.DaemonUnavailableError:
                time.sleep(AGAIN_SECONDS)

    def joined(self, rank: Rank) -> bool:
        """Joins again if the rank's sender has ended, as the next minibatch does. False: it has only just ended."""
        try:
            rank.membership.join_if_lost(rank.version)
        except dws.DaemonUnavailableError:
            return False
        return True

    def settled(self) -> AttemptId:
        """Waits until all ranks are in one attempt, which it returns. That of a sender that started again is over."""
        found: set[tuple[int, AttemptId]] = set()

        def together() -> bool:
            found.clear()
            for rank in self.ranks:
                if not self.joined(rank):
                    return False
                found.add((rank.member.view.phase, AttemptId.from_proto(rank.member.view.attempt)))
            return len(found) == 1 and next(iter(found))[0] == OPEN

        eventually(together, lambda: f"one attempt, open on all ranks; found {found}")
        return next(iter(found))[1]

    def arm(self, victim: int, armed: str) -> None:
        held = os.path.join(self.cluster.senders[victim].folder, "held")
        if os.path.exists(held):
            os.unlink(held)
        self.cluster.senders[victim].start_armed(DWS_FAILPOINT=armed, DWS_FAILPOINT_HOLD=held)

    def await_death(self, victim: int, armed: str, ends: Sequence[futures.Future[Took]]) -> None:
        process = self.cluster.senders[victim].process
        assert process is not None
        while process.poll() is None and not all(end.done() for end in ends):
            time.sleep(AGAIN_SECONDS)
        try:
            process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            self.fail(f"{armed} was not reached: {[end.exception() for end in ends if end.done()]}")
        self.assertEqual(process.returncode, -signal.SIGKILL, self.cluster.senders[victim].log_tail())

    def check_point(self, victim: int, point: Point, scale: float) -> None:
        version, minibatch = self.ranks[0].version, self.ranks[0].done + 1
        sender = self.cluster.senders[victim]
        sender.kill()
        eventually(lambda: self.ranks[victim].member.lost is not None, lambda: "the rank notices the end of its sender")
        self.arm(victim, point.armed)
        attempt: Optional[AttemptId] = None if point.joining else self.settled()
        self.abandoned = []
        with futures.ThreadPoolExecutor(RANKS) as pool:
            ends = [pool.submit(self.take, rank, scale) for rank in self.ranks]
            try:
                self.await_death(victim, point.armed, ends)
                if point.again:
                    self.arm(victim, point.again)
                    self.await_death(victim, point.again, ends)
            finally:
                if sender.process is not None and sender.process.poll() is not None:
                    sender.start()
            found = [end.result(SECONDS) for end in ends]
        self.check_step(found, minibatch, scale)
        for rank, daemon in zip(self.ranks, self.cluster.senders):
            self.assertEqual(rank.version, version + 1)
            eventually(
                lambda: self.joined(rank) and daemon.metric("dws_sender_newest_version") == version + 1,
                lambda: f"{daemon.name} has another version than {version + 1}",
            )
        if attempt is not None:
            self.check_outcome(victim, point.outcome, attempt, AttemptId.from_proto(found[0].view.attempt))

    def check_step(self, found: Sequence[Took], minibatch: int, scale: float) -> None:
        """All ranks took one step of this minibatch, whose sums and norm are the undisturbed ones."""
        step = found[0].view.step
        for took, undisturbed in zip(found, self.undisturbed):
            self.assertEqual(took.view.phase, STEPPED)
            self.assertEqual(took.view.attempt.minibatch, minibatch)
            self.assertEqual(took.view.step, step)
            self.assertTrue(took.view.exact)
            for sums, wanted in zip(took.sums, undisturbed.sums):
                self.assertEqual(sums.tobytes(), (wanted * np.float32(scale)).tobytes())
        wanted_step = self.undisturbed[0].view.step
        self.assertEqual((step.norm, step.weight), (wanted_step.norm * scale, wanted_step.weight))

    def check_outcome(self, victim: int, outcome: str, began: AttemptId, decided: AttemptId) -> None:
        lost = [error for error in self.abandoned if isinstance(error, dws.MinibatchAbandonedError)]
        if outcome == STEPPED_ONCE:
            self.assertEqual((began, lost), (decided, []))
        elif outcome == REDONE:
            self.assertGreater(decided, began)
            self.assertIn(victim, [error.rank for error in lost if isinstance(error, dws.RankLostError)])

    def check_points(self, victim: int, points: Sequence[Point]) -> None:
        self.start_job()
        for _ in range(FIRST):
            self.undisturbed = self.each(lambda rank: self.take(rank, 1.0))
        # A power of two changes no digit of the sums, and tells them from those of the minibatch before.
        for number, point in enumerate(points):
            print(f"rank {victim}: {point.armed} {point.again}", flush=True)
            self.check_point(victim, point, math.ldexp(1.0, number % 7 - 3))

    def test_the_sender_of_another_rank_is_killed_at_each_failpoint(self) -> None:
        self.check_points(1, POINTS)

    def test_the_sender_with_the_leader_is_killed_at_each_failpoint(self) -> None:
        self.check_points(0, [*POINTS, *LEADER_POINTS])

    def test_no_failpoint_is_left_out(self) -> None:
        with open("common/base/failpoint.h") as header:
            names = set(re.findall(r'^    "(sender\.(?:train|publish)\.[a-z_]+)",$', header.read(), re.MULTILINE))
        reached = set()
        for point in [*POINTS, *LEADER_POINTS]:
            reached |= set(re.findall(r"(sender\.(?:train|publish)\.[a-z_]+):kill", f"{point.armed},{point.again}"))
        self.assertEqual(names, reached)


if __name__ == "__main__":
    unittest.main()
