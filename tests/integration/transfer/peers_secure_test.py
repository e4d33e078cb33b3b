"""Receivers that serve each other over mutual TLS: a receiver of the job may read another, nobody else may, and
only a receiver of the job is read."""

from __future__ import annotations

import shutil
import tempfile
import unittest
from typing import Any, Iterator, Optional

import grpc

from dws._proto import delta_pb2, sync_pb2, sync_pb2_grpc
from tests.integration.certificates import Authority, Files, read
from tests.integration.hostile_case import CALL_SECONDS, channel, code_of
from tests.integration.transfer.peers_case import FakePeer, PeersCase, frames

DENIED = grpc.StatusCode.PERMISSION_DENIED


class PeersSecureTest(PeersCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.mkdtemp(prefix="dws-ca-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder)
        self.authority = Authority(folder, "ca")
        self.other = Authority(folder, "other")
        self.begin(*self.files("s", "dws://test/publish/0").flags())

    def files(self, name: str, *identities: str) -> Files:
        return self.authority.issue(name, *identities)

    def peer_flags(self, name: str) -> list[str]:
        files = self.files(name, f"dws://test/receive/{name}")
        return [*files.flags(), "--serve-peers=127.0.0.1:0"]

    def full(self, port: int, files: Optional[Files]) -> grpc.StatusCode:
        """The outcome of a request for full tensors that nobody has."""
        stream = delta_pb2.StreamId(incarnation=1, id_lo=1)
        request = sync_pb2.FetchFullRequest(stream=stream, version=7)
        with channel(port, files) as connection:
            sync = sync_pb2_grpc.SyncServiceStub(connection)
            return code_of(lambda: list(sync.FetchFull(request, timeout=CALL_SECONDS)))

    def test_a_receiver_of_the_job_is_read_over_mutual_tls(self) -> None:
        first, engine, live = self.join("first")
        self.check(engine, live)
        second, engine, live = self.join("second")
        self.check(engine, live)
        self.assertEqual(self.came_by(second, "peer"), self.model_bytes())
        self.assertEqual(self.served(first), self.model_bytes())

    def test_nobody_else_reads_a_receiver(self) -> None:
        first, engine, live = self.join("first")
        self.check(engine, live)
        port = first.ports["peers"]
        allowed = self.files("friend", "dws://test/receive/friend")
        self.assertEqual(self.full(port, allowed), grpc.StatusCode.ABORTED)  # no such version
        for name, identity in (
            ("job", "dws://else/receive/friend"),
            ("sender", "dws://test/publish/1"),
            ("train", "dws://test/train/1"),
            ("ann", "dws://test/operate/ann"),
        ):
            self.assertEqual(self.full(port, self.files(name, identity)), DENIED, identity)
        stranger = self.other.issue("x", "dws://test/receive/x", ca=self.authority.pem)
        for files in (None, stranger):
            self.assertEqual(self.full(port, files), grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(self.served(first), 0)

    def test_a_receiver_asks_for_others_in_its_own_name_alone(self) -> None:
        _, engine, live = self.join("first")
        self.check(engine, live)
        liar = self.files("liar", "dws://test/receive/liar")
        publisher = self.files("p", "dws://test/publish/1")
        with channel(self.sender.ports["sync"], liar) as connection:
            sync = sync_pb2_grpc.SyncServiceStub(connection)
            request = sync_pb2.PeersRequest(version=1, receiver_id="first")
            self.assertEqual(code_of(lambda: sync.Peers(request, timeout=CALL_SECONDS)), DENIED)
        with channel(self.sender.ports["sync"], publisher) as connection:
            sync = sync_pb2_grpc.SyncServiceStub(connection)
            self.assertEqual(code_of(lambda: sync.Peers(request, timeout=CALL_SECONDS)), DENIED)

    def test_what_is_no_receiver_of_the_job_is_not_read(self) -> None:
        served: list[int] = []

        def truth(request: Any, context: Any) -> Iterator[Any]:
            arrays = [array.tobytes() for array in self.source.values()]
            sizes = [len(array) for array in arrays]
            for frame in frames(request, sizes, lambda part, at, n: arrays[part][at : at + n]):
                served.append(len(frame.data))
                yield frame

        for name, identity, reads in (
            ("sender", "dws://test/publish/1", False),
            ("job", "dws://else/receive/fake", False),
            ("fake", "dws://test/receive/fake", True),
        ):
            own = self.files("fake-client", "dws://test/receive/fake")
            server = self.files(f"server-{name}", identity)
            credentials = grpc.ssl_server_credentials(
                [(read(server.key), read(server.cert))], read(server.ca), True
            )
            peer = FakePeer(self.sender, self.version, truth, own, credentials)
            try:
                receiver, engine, live = self.join(f"joiner-{name}")
                self.check(engine, live)
            finally:
                peer.close()
            brought = self.model_bytes() if reads else 0
            self.assertEqual(self.came_by(receiver, "peer"), brought, identity)
            self.assertEqual(receiver.logged("peer_left_out"), 0 if reads else 1)
            receiver.stop()  # it would be read next
        self.assertTrue(served)


if __name__ == "__main__":
    unittest.main()
