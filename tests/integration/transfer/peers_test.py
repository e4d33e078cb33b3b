"""Engines feed engines: a joiner reads full tensors from another receiver. One that is killed, lies, is slow, or
gets another version costs time, and no wrong byte."""

from __future__ import annotations

import threading
import unittest
from typing import Any, Iterator, Optional

import grpc
import numpy as np

from dws._proto import delta_pb2, sync_pb2, sync_pb2_grpc
from tests.integration.cluster import PROTOCOL_MAJOR
from tests.integration.fault_proxy import FaultProxy
from tests.integration.integration_case import eventually
from tests.integration.transfer.peers_case import SENDER_FLAGS, FakePeer, PeersCase, frames

LARGE = (8_000_000,)  # takes seconds at the rate below
SLOW_RATE = "--serve-peers-rate=4MiB"
TAKEN = 4 << 20  # bytes: then the transfer is in the middle


class PeersTest(PeersCase):
    def sizes(self) -> list[int]:
        return [array.nbytes for array in self.source.values()]

    def fake(self, serve: Any, version: Optional[int] = None) -> FakePeer:
        peer = FakePeer(self.sender, version or self.version, serve)
        self.addCleanup(peer.close)
        return peer

    def test_a_joiner_gets_every_byte_from_another_receiver(self) -> None:
        self.begin()
        first, engine, live = self.join("first")
        self.check(engine, live)
        self.assertEqual(self.came_by(first, "grpc"), self.model_bytes())
        joined = [(first, engine, live)]
        for turn in range(3):
            receiver, engine, live = self.join(f"next-{turn}")
            self.check(engine, live)
            self.assertEqual(self.came_by(receiver, "peer"), self.model_bytes())
            self.assertEqual(self.came_by(receiver, "grpc"), 0)
            joined.append((receiver, engine, live))
        self.assertEqual(self.sender_bytes(), self.model_bytes())
        self.assertEqual(sum(self.served(r) for r, _, _ in joined), 3 * self.model_bytes())
        self.assertEqual(self.sender.metric("dws_sender_peers"), 4)
        self.assertEqual(self.sender.metric("dws_sender_peer_grants_total"), 1)
        self.assertEqual(self.sender.metric("dws_sender_peers_handed_out_total"), 3)
        # All of them follow.
        for _ in range(3):
            self.publish()
        for _, engine, live in joined:
            self.check(engine, live)

    def test_receivers_that_join_together_take_the_version_once_from_the_sender(self) -> None:
        self.begin()
        joined = [self.join(f"r{i}") for i in range(5)]
        for _, engine, live in joined:
            self.check(engine, live)
        self.assertEqual(self.sender_bytes(), self.model_bytes())
        self.assertEqual(self.sender.metric("dws_sender_peer_grants_lost_total"), 0)

    def test_a_receiver_that_serves_nobody_reads_the_sender(self) -> None:
        self.begin()
        _, engine, live = self.join("first")
        self.check(engine, live)
        plain = self.cluster.start_receiver("plain", "--insecure", "--full-way=auto")
        engine = self.engine(plain)
        live = engine.attach({n: a * 0 for n, a in self.source.items()})
        self.check(engine, live)
        self.assertEqual(self.came_by(plain, "grpc"), self.model_bytes())

    def test_a_required_way_is_not_left_for_other_receivers(self) -> None:
        self.begin()
        _, engine, live = self.join("first")
        self.check(engine, live)
        receiver, engine, live = self.join("second", "--full-way=grpc")
        self.check(engine, live)
        self.assertEqual(self.came_by(receiver, "grpc"), self.model_bytes())
        receiver, engine, live = self.join("third", "--full-way=peer")
        self.check(engine, live)
        self.assertEqual(self.came_by(receiver, "peer"), self.model_bytes())

    def test_a_receiver_that_reads_only_others_waits_for_one(self) -> None:
        self.begin()
        only, only_engine, only_live = self.join("only", "--full-way=peer")
        waiting = lambda: self.sender.metric("dws_sender_peers_waiting")
        eventually(lambda: waiting() == 1, lambda: f"{waiting()} wait")
        _, engine, live = self.join("other")
        self.check(engine, live)
        self.check(only_engine, only_live)
        self.assertEqual(self.came_by(only, "peer"), self.model_bytes())
        self.assertEqual(self.sender.metric("dws_sender_peer_grants_total"), 1)

    def test_a_peer_that_is_killed_costs_time(self) -> None:
        self.begin(elements=LARGE)
        first, engine, live = self.join("first", SLOW_RATE)
        self.check(engine, live)
        receiver, engine, live = self.join("second")
        self.await_serving(first, TAKEN)
        first.kill()
        self.check(engine, live)
        # What it had brought was kept.
        self.assertGreater(self.came_by(receiver, "peer"), TAKEN // 2)
        self.assertLess(self.came_by(receiver, "grpc"), self.model_bytes())
        self.assertEqual(receiver.logged("peer_left_out"), 1)

    def test_a_peer_whose_engine_gets_another_version_costs_time(self) -> None:
        self.begin(elements=LARGE)
        first, engine, live = self.join("first", SLOW_RATE)
        self.check(engine, live)
        _, late, late_live = self.join("second")
        self.await_serving(first, TAKEN)
        self.publish()
        self.check(engine, live)  # is not held up by its reader
        self.check(late, late_live)
        ended = first.metric("dws_receiver_peer_transfers_ended_total", "other_version")
        self.assertGreaterEqual(ended, 1)
        # The one that had begun read the rest from the sender.
        self.assertLess(self.sender_bytes(), 2 * self.model_bytes())

    def test_engines_that_restart_together_take_the_version_once_from_the_sender(self) -> None:
        self.begin()
        joined = [self.join(f"r{i}") for i in range(5)]
        for _, engine, live in joined:
            self.check(engine, live)
        self.assertEqual(self.sender_bytes(), self.model_bytes())
        # Their receivers go on, and had acknowledged the version.
        for _, engine, _ in joined:
            engine.close()
        again = []
        for receiver, _, _ in joined:
            engine = self.engine(receiver)
            live = engine.attach({n: np.zeros(a.size, np.float32) for n, a in self.source.items()})
            again.append((engine, live))
        for engine, live in again:
            self.check(engine, live)
        self.assertEqual(self.sender_bytes(), 2 * self.model_bytes(), self.cluster.logs(60))

    def test_those_that_wait_ask_again_when_their_connections_are_cut(self) -> None:
        self.begin(*SENDER_FLAGS, "--egress-limit=4MiB", elements=LARGE)
        self.join("first")
        eventually(lambda: self.sender_bytes() > TAKEN, lambda: "it is in the middle")
        proxy = self.enterContext(FaultProxy(self.sender.ports["sync"]))
        joined = [self.join(f"r{i}", f"--sender=127.0.0.1:{proxy.port}") for i in range(3)]
        waiting = lambda: self.sender.metric("dws_sender_peers_waiting")
        for _ in range(3):
            eventually(lambda: waiting() == 3, lambda: f"{waiting()} wait")
            proxy.cut()
        for _, engine, live in joined:
            self.check(engine, live)
        self.assertEqual(self.sender_bytes(), self.model_bytes())

    def test_an_acknowledgement_of_what_nobody_published_changes_nothing(self) -> None:
        self.begin()

        def serve(request: Any, context: Any) -> Iterator[Any]:
            yield from frames(request, self.sizes(), lambda part, begin, count: bytes(count))

        peer = self.fake(serve, version=99)
        receiver, engine, live = self.join("joiner")
        self.check(engine, live)
        self.assertFalse(peer.asked.is_set())
        self.assertEqual(self.came_by(receiver, "grpc"), self.model_bytes())

    def test_a_peer_that_lies_costs_time(self) -> None:
        self.begin()

        def lie(request: Any, context: Any) -> Iterator[Any]:
            yield from frames(request, self.sizes(), lambda part, begin, count: b"\x01" * count)

        peer = self.fake(lie)
        receiver, engine, live = self.join("joiner")
        self.check(engine, live)
        self.assertTrue(peer.asked.is_set(), receiver.log_tail(40) + self.sender.log_tail(40))
        self.assertEqual(receiver.logged("peer_left_out"), 1)
        self.assertEqual(self.came_by(receiver, "peer"), 0)
        self.assertEqual(self.came_by(receiver, "grpc"), self.model_bytes())

    def test_a_slice_that_begins_with_a_lie_and_ends_with_the_truth_is_read_again(self) -> None:
        self.begin()

        def lie(request: Any, context: Any) -> Iterator[Any]:
            wrong = frames(request, self.sizes(), lambda part, begin, count: b"\x02" * count)
            yield next(wrong)
            context.abort(grpc.StatusCode.UNAVAILABLE, "after one block")

        self.fake(lie)
        receiver, engine, live = self.join("joiner")
        self.check(engine, live)
        self.assertEqual(receiver.logged("full_slices_again"), 1)
        self.assertGreater(self.sender_bytes(), self.model_bytes() / 2)

    def test_a_peer_that_sends_what_nobody_asked_for_is_left(self) -> None:
        self.begin()

        def confuse(request: Any, context: Any) -> Iterator[Any]:
            for frame in frames(request, self.sizes(), lambda part, begin, count: bytes(count)):
                frame.rank_slice = 99
                yield frame

        self.fake(confuse)
        receiver, engine, live = self.join("joiner")
        self.check(engine, live)
        self.assertEqual(receiver.logged("peer_left_out"), 1)

    def test_a_peer_that_is_silent_costs_time(self) -> None:
        self.begin()
        over = threading.Event()
        self.addCleanup(over.set)

        def hang(request: Any, context: Any) -> Iterator[Any]:
            context.add_callback(over.set)  # the reader gave up
            over.wait()
            return
            yield

        self.fake(hang)
        receiver, engine, live = self.join("joiner")
        self.check(engine, live)
        self.assertEqual(receiver.logged("peer_left_out"), 1)
        self.assertEqual(self.came_by(receiver, "grpc"), self.model_bytes())

    def test_a_receiver_that_is_let_through_and_dies_gives_way_to_the_next(self) -> None:
        self.begin(*SENDER_FLAGS, "--egress-limit=4MiB", elements=LARGE)
        first, _, _ = self.join("first")
        eventually(lambda: self.sender_bytes() > TAKEN, lambda: "it is in the middle")
        _, engine, live = self.join("second")
        eventually(
            lambda: self.sender.metric("dws_sender_peers_waiting") == 1, lambda: "the second waits"
        )
        first.kill()
        self.check(engine, live)
        self.assertEqual(self.sender.metric("dws_sender_peer_grants_total"), 2)
        self.assertEqual(self.sender.metric("dws_sender_peer_grants_lost_total"), 1)

    def test_an_address_that_others_cannot_dial_is_refused(self) -> None:
        self.begin()
        for address in ("unix:/tmp/x", "nowhere", "host:0"):
            hello = sync_pb2.Hello(
                job_id="test",
                receiver_id="odd",
                protocol_major=PROTOCOL_MAJOR,
                peer_address=address,
            )
            with grpc.insecure_channel(self.sender.address) as channel:
                call = sync_pb2_grpc.SyncServiceStub(channel).Sync(
                    iter([sync_pb2.SyncUp(hello=hello)])
                )
                with self.assertRaises(grpc.RpcError) as refused:
                    list(call)
            self.assertEqual(
                refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, address  # type: ignore[attr-defined]
            )

    def test_what_a_receiver_serves_to_others_is_full_tensors_alone(self) -> None:
        self.begin()
        first, engine, live = self.join("first")
        self.check(engine, live)
        with grpc.insecure_channel(f"127.0.0.1:{first.ports['peers']}") as channel:
            sync = sync_pb2_grpc.SyncServiceStub(channel)
            for call in (
                lambda: sync.Describe(sync_pb2.DescribeRequest(), timeout=20),
                lambda: list(sync.Fetch(sync_pb2.FetchRequest(), timeout=20)),
                lambda: sync.Peers(sync_pb2.PeersRequest(), timeout=20),
                lambda: list(sync.Sync(iter([sync_pb2.SyncUp()]), timeout=20)),
            ):
                with self.assertRaises(grpc.RpcError) as refused:
                    call()
                self.assertEqual(refused.exception.code(), grpc.StatusCode.UNIMPLEMENTED)  # type: ignore[attr-defined]
            stream = delta_pb2.StreamId(incarnation=1, id_lo=1)
            for request in (
                sync_pb2.FetchFullRequest(stream=stream, version=1),
                sync_pb2.FetchFullRequest(stream=stream, version=1, trainer_rank=7),
            ):
                with self.assertRaises(grpc.RpcError) as refused:
                    list(sync.FetchFull(request, timeout=20))
                self.assertEqual(refused.exception.code(), grpc.StatusCode.ABORTED)  # type: ignore[attr-defined]
        self.assertEqual(self.served(first), 0)


if __name__ == "__main__":
    unittest.main()
