"""A membership with a sender that says what the test wants."""

from __future__ import annotations

import os
import queue
import socket
import tempfile
import threading
import time
import unittest
from concurrent import futures
from typing import Any, Iterator, Optional

import grpc

from dws._proto import on_demand_pb2, on_demand_pb2_grpc, train_pb2
from dws.errors import (
    DaemonUnavailableError,
    DeadlineError,
    InvalidArgumentError,
    MinibatchAbandonedError,
    RankLostError,
    StateError,
    VersionLostError,
)
from dws.on_demand.member import AttemptId, Member, Waits
from tests.clients.python.fake_daemons import HandleSocket

View = on_demand_pb2.MinibatchView
FIRST, SECOND = AttemptId(1, 7, 1), AttemptId(1, 7, 2)


def view(phase: Any, attempt: Optional[AttemptId] = FIRST, reason: str = "", rank: Optional[int] = None) -> Any:
    """`reason`, `rank`: of the last decision to abandon."""
    message = View(phase=phase, version=3, waits_for="rank 1 to finish")
    if attempt is not None:
        message.attempt.CopyFrom(attempt.to_proto())
    if reason:
        message.abandoned.CopyFrom(train_pb2.AbandonDecision(next=message.attempt, reason=reason, rank=rank))
    return message


class Sender(on_demand_pb2_grpc.OnDemandServiceServicer):
    """Serves OnDemandService only."""

    def __init__(self, folder: str) -> None:
        self.socket = os.path.join(folder, "d.sock")
        self.handles = HandleSocket(self.socket + ".handles")
        self.views: queue.Queue[Any] = queue.Queue()
        self.requests: list[Any] = []
        self.follows = 0
        self.gathers = threading.Event()  # not set: gathers wait
        self.gathers.set()
        self.fails: Optional[tuple[grpc.StatusCode, str]] = None
        self.breaks = 0  # calls that end as if the connection did
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        on_demand_pb2_grpc.add_OnDemandServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def _answer(self, request: Any, context: Any, reply: Any) -> Any:
        self.requests.append(request)
        if self.breaks:
            self.breaks -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "keepalive watchdog timeout")
        if self.fails is not None:
            context.abort(*self.fails)
        return reply

    def Join(self, request: Any, context: Any) -> Any:
        reply = on_demand_pb2.JoinReply(token=self.handles.token(), handle_socket=self.handles.path, member=5)
        return self._answer(request, context, reply)

    def Follow(self, request: Any, context: Any) -> Iterator[Any]:
        self.follows += 1
        while (message := self.views.get()) is not None:
            if message == "broken":
                context.abort(grpc.StatusCode.UNAVAILABLE, "keepalive watchdog timeout")
            yield message

    def Gather(self, request: Any, context: Any) -> Any:
        reply = on_demand_pb2.GatherReply(offset_bytes=64, size_bytes=8)
        self.gathers.wait()
        return self._answer(request, context, reply)

    def Finish(self, request: Any, context: Any) -> Any:
        return self._answer(request, context, on_demand_pb2.FinishReply())

    def Abandon(self, request: Any, context: Any) -> Any:
        return self._answer(request, context, on_demand_pb2.AbandonReply())

    def Skip(self, request: Any, context: Any) -> Any:
        return self._answer(request, context, on_demand_pb2.SkipReply())

    def stop(self) -> None:
        self.gathers.set()
        self.views.put(None)
        self._server.stop(None).wait()
        self.handles.close()


class MemberTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.sender = Sender(folder.name)
        self.addCleanup(self.sender.stop)
        self.member = Member(self.sender.socket, "job", 0, timeout=20)
        self.addCleanup(self.member.close)

    def join(self, first: Any = None) -> Member:
        """With news, and in the attempt FIRST."""
        self.member.join(on_demand_pb2.JoinRequest(session=9), [0], 10)
        self.sender.views.put(first or view(View.PHASE_OPEN))
        self.member.wait(lambda news: news.phase != View.PHASE_UNSPECIFIED, "news")
        self.member.attempt = FIRST
        return self.member

    def test_joining_passes_the_memory_and_a_refusal_says_why(self) -> None:
        self.sender.fails = (grpc.StatusCode.FAILED_PRECONDITION, "it has no --train-peers")
        with self.assertRaisesRegex(StateError, "joining training on demand as rank 0: it has no --train-peers"):
            self.member.join(on_demand_pb2.JoinRequest(), [0], 10)
        self.sender.fails = (grpc.StatusCode.INVALID_ARGUMENT, "unit 'u'")
        with self.assertRaisesRegex(InvalidArgumentError, "unit 'u'"):
            self.member.join(on_demand_pb2.JoinRequest(), [0], 10)
        self.sender.fails = None
        self.join()
        self.assertEqual(len(self.sender.handles.received[0]), 1)

    def test_an_abandoned_attempt_is_raised_with_its_reason_and_rank(self) -> None:
        member = self.join()
        member.check()
        self.sender.views.put(view(View.PHASE_OPEN, SECOND, "it was killed", rank=4))
        with self.assertRaisesRegex(RankLostError, "because of rank 4: it was killed") as caught:
            member.wait(lambda _: False, "nothing")
        self.assertEqual((caught.exception.rank, caught.exception.reason), (4, "it was killed"))
        self.assertIsNone(member.attempt)
        member.attempt = SECOND
        self.sender.views.put(view(View.PHASE_OPEN, AttemptId(1, 7, 3), "nobody knows"))
        with self.assertRaisesRegex(MinibatchAbandonedError, "nobody knows") as caught_too:
            member.wait(lambda _: False, "nothing")
        self.assertNotIsInstance(caught_too.exception, RankLostError)

    def test_a_broken_connection_is_followed_again_while_the_handle_socket_lives(self) -> None:
        member = self.join()
        self.sender.views.put("broken")
        self.sender.views.put(view(View.PHASE_SEALED))
        member.wait(lambda news: news.phase == View.PHASE_SEALED, "news over the next connection")
        self.assertEqual(self.sender.follows, 2)
        self.assertIsNone(member.lost)
        member.check()
        self.sender.handles.connections[0].shutdown(socket.SHUT_RDWR)
        self.sender.views.put("broken")
        with self.assertRaises(DaemonUnavailableError):
            member.wait(lambda _: False, "nothing", 10)
        self.assertEqual(self.sender.follows, 2)

    def test_an_attempt_that_is_lost_is_raised_when_the_reason_is_known(self) -> None:
        member = self.join()
        self.sender.views.put(view(View.PHASE_LOST))
        threading.Timer(0.3, self.sender.views.put, [view(View.PHASE_OPEN, SECOND, "why", rank=0)]).start()
        started = time.monotonic()
        with self.assertRaisesRegex(RankLostError, "why"):
            member.wait(lambda _: False, "nothing")
        self.assertGreaterEqual(time.monotonic() - started, 0.25)

    def test_a_wait_that_is_too_long_says_what_the_sender_waits_for(self) -> None:
        member = self.join()
        with self.assertRaisesRegex(DeadlineError, "the end: not after 0.1 s; .*: rank 1 to finish"):
            member.wait(lambda _: False, "the end", 0.1)

    def test_leases_are_released_with_the_next_gather(self) -> None:
        member = self.join()
        calls = [member.gather(unit, 3, unit == 0) for unit in (0, 1)]
        for call in calls:
            member.settle(call, "gathering")
            member.release(call)
        forgotten = member.gather(2, 3, False)
        member.forget(forgotten)
        forgotten.future.result()
        deadline = time.monotonic() + 10  # the callback runs on a thread of gRPC
        while time.monotonic() < deadline:
            member.gather(3, 3, False).future.result()
            if self.sender.requests[-1].released:
                break
        gathers = sorted(self.sender.requests[1:], key=lambda gather: gather.lease)  # calls run side by side
        self.assertEqual([g.begins_microbatch for g in gathers[:3]], [True, False, False])
        self.assertEqual([gather.lease for gather in gathers], list(range(1, len(gathers) + 1)))
        self.assertEqual(list(gathers[2].released), [1, 2])
        self.assertEqual(list(gathers[-1].released), [3])

    def test_calls_are_made_again_while_the_handle_socket_lives(self) -> None:
        member = self.join()
        self.sender.breaks = 2
        call = member.gather(4, 3, True)
        self.assertEqual(member.settle(call, "gathering").offset_bytes, 64)
        gathers = self.sender.requests[1:]
        self.assertEqual(len(gathers), 3)
        self.assertEqual(gathers, gathers[:1] * 3)  # of the same lease
        decided = view(View.PHASE_STEPPED)
        decided.step.CopyFrom(train_pb2.StepDecision(attempt=FIRST.to_proto(), norm=2.0, weight=5.0, finite=True))
        self.sender.views.put(decided)
        self.sender.breaks = 1
        member.finish(4, 2.5, Waits())
        self.assertEqual(self.sender.requests[-2], self.sender.requests[-1])
        self.sender.breaks = 1
        member.skip(1)
        self.assertEqual([request.minibatch for request in self.sender.requests[-2:]], [1, 1])

    def test_a_call_is_not_made_again_after_the_end_of_the_attempt_or_of_the_sender(self) -> None:
        member = self.join()
        self.sender.breaks = 1 << 20
        threading.Timer(0.3, self.sender.views.put, [view(View.PHASE_OPEN, SECOND, "why", rank=1)]).start()
        with self.assertRaisesRegex(RankLostError, "why"):
            member.settle(member.gather(0, 3, True), "gathering")
        threading.Timer(0.3, self.sender.handles.connections[0].shutdown, [socket.SHUT_RDWR]).start()
        with self.assertRaises(DaemonUnavailableError):
            member.settle(member.gather(0, 3, True), "gathering")
        before = len(self.sender.requests)
        time.sleep(0.2)
        self.assertEqual(len(self.sender.requests), before)

    def test_leases_of_a_gather_that_was_lost_are_released_with_the_next(self) -> None:
        member = self.join()
        first = member.gather(0, 3, True)
        member.settle(first, "gathering")
        member.release(first)
        self.sender.breaks = 1 << 20
        lost = member.gather(1, 3, False)
        self.sender.views.put(view(View.PHASE_OPEN, SECOND, "why", rank=1))
        with self.assertRaises(RankLostError):
            member.settle(lost, "gathering")
        self.assertIsNotNone(lost.future.exception())
        self.sender.breaks = 0
        released: list[int] = []
        deadline = time.monotonic() + 10  # the callback runs on a thread of gRPC
        while not released and time.monotonic() < deadline:
            member.gather(2, 3, True).future.result()
            released = list(self.sender.requests[-1].released)
        self.assertEqual(released, [1, 2])

    def test_a_gather_ends_when_its_attempt_is_over(self) -> None:
        member = self.join()
        self.sender.gathers.clear()
        call = member.gather(0, 3, True)
        self.sender.views.put(view(View.PHASE_OPEN, SECOND, "why", rank=1))
        with self.assertRaises(RankLostError):
            member.settle(call, "gathering")

    def test_a_gather_that_fails_because_the_attempt_is_over_says_that(self) -> None:
        member = self.join()
        self.sender.fails = (grpc.StatusCode.ABORTED, "rank 1 no longer has version 3")
        threading.Timer(0.3, self.sender.views.put, [view(View.PHASE_OPEN, SECOND, "why", rank=1)]).start()
        with self.assertRaises(RankLostError):
            member.settle(member.gather(0, 3, True), "gathering")
        with self.assertRaisesRegex(VersionLostError, "no longer has version 3"):  # in no attempt
            member.settle(member.gather(0, 3, True), "gathering")

    def test_finishing_returns_the_decision(self) -> None:
        member = self.join()
        decided = view(View.PHASE_STEPPED)
        decided.step.CopyFrom(train_pb2.StepDecision(attempt=FIRST.to_proto(), norm=2.0, weight=5.0, finite=True))
        threading.Timer(0.1, self.sender.views.put, [view(View.PHASE_SEALED)]).start()
        threading.Timer(0.3, self.sender.views.put, [decided]).start()
        waits = Waits()
        self.assertEqual(member.finish(4, 2.5, waits).step.norm, 2.0)
        self.assertGreater(waits.decision_seconds, 0.1)
        finish = self.sender.requests[-1]
        self.assertEqual((finish.member, finish.pushes, finish.weight), (5, 4, 2.5))
        self.assertEqual(AttemptId.from_proto(finish.attempt), FIRST)
        self.assertIsNone(member.attempt)
        member.skip(1)
        self.assertEqual(self.sender.requests[-1].minibatch, 1)

    def test_the_end_of_the_sender_ends_all_waits(self) -> None:
        member = self.join()
        threading.Timer(0.1, self.sender.views.put, [None]).start()
        with self.assertRaises(DaemonUnavailableError):
            member.wait(lambda _: False, "nothing")
        self.assertIsNotNone(member.lost)
        member.abandon("an attempt is over with its membership")  # tells nobody, and does not fail

    def test_giving_an_attempt_up_says_why(self) -> None:
        member = self.join()
        member.abandon("no memory left")
        self.assertEqual(self.sender.requests[-1].reason, "no memory left")
        before = len(self.sender.requests)
        member.abandon("again")  # in no attempt
        self.assertEqual(len(self.sender.requests), before)


if __name__ == "__main__":
    unittest.main()
