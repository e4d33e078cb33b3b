"""Strangers, and peers with the wrong certificate: refused, and they change nothing."""

import ssl
import socket
import subprocess
import unittest
from concurrent import futures
from typing import Any, Iterator, Optional

import grpc

from dws._proto import admin_pb2, objects_pb2, sync_pb2, sync_pb2_grpc, train_pb2
from tests.integration.certificates import Authority, Files, read
from tests.integration.cluster import PROTOCOL_MAJOR, DaemonFailed
from tests.integration.hostile_case import CALL_SECONDS, HostileCase, ask_status, channel, code_of
from tests.integration.integration_case import eventually

OK = grpc.StatusCode.OK
DENIED = grpc.StatusCode.PERMISSION_DENIED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
NOTHING: bytes = b""


def raw_call(connection: grpc.Channel, path: str, request: bytes = NOTHING) -> bytes:
    """Sends one message and returns the first reply, for any kind of method."""
    call = connection.stream_stream(path)(iter([request]), timeout=CALL_SECONDS)
    for reply in call:
        call.cancel()
        return bytes(reply)
    return NOTHING


class StrangerTest(HostileCase):
    def refused(self, files: Optional[Files], code: grpc.StatusCode = UNAVAILABLE) -> None:
        for daemon in self.daemons:
            port = daemon.ports.get("sync") or daemon.ports["admin"]
            with channel(port, files) as connection:
                self.assertEqual(code_of(lambda: ask_status(connection)), code, daemon.name)

    def test_a_certificate_of_another_ca_is_refused(self) -> None:
        other = Authority(self.authority.folder, "other")
        identity = "dws://test/operate/ann"
        self.refused(other.issue("stranger", identity, ca=self.authority.pem))
        # A client that trusts another CA refuses the daemon.
        self.refused(self.authority.issue("sceptic", identity, ca=other.pem))

    def test_an_expired_certificate_is_refused(self) -> None:
        self.refused(self.authority.issue("old", "dws://test/operate/ann", begins_in_days=-9,
                                          ends_in_days=-1))  # fmt: skip

    def test_a_certificate_that_is_not_valid_yet_is_refused(self) -> None:
        self.refused(self.authority.issue("new", "dws://test/operate/ann", begins_in_days=2,
                                          ends_in_days=3))  # fmt: skip

    def test_a_client_without_a_certificate_is_refused(self) -> None:
        credentials = grpc.ssl_channel_credentials(read(self.authority.pem))
        for port in (self.sender.ports["sync"], self.receiver.ports["admin"]):
            with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as connection:
                self.assertEqual(code_of(lambda: ask_status(connection)), UNAVAILABLE)

    def test_plaintext_to_a_tls_port_is_refused(self) -> None:
        self.refused(None)

    def test_tls_to_a_plaintext_port_is_refused(self) -> None:
        plain = self.cluster.start_sender(7, "--insecure")
        self.addCleanup(plain.stop)
        with channel(plain.ports["sync"], None) as connection:
            self.assertEqual(code_of(lambda: ask_status(connection)), OK)
        with channel(plain.ports["sync"], self.operator) as connection:
            self.assertEqual(code_of(lambda: ask_status(connection)), UNAVAILABLE)

    def handshake(self, version: ssl.TLSVersion) -> str:
        """The TLS version agreed on; raises SSLError if there is none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.operator.ca)
        context.load_cert_chain(self.operator.cert, self.operator.key)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        address = ("127.0.0.1", self.sender.ports["sync"])
        with socket.create_connection(address, CALL_SECONDS) as plain:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
                return tls.version() or ""

    def test_only_tls_1_2_and_1_3_are_accepted(self) -> None:
        self.assertEqual(self.handshake(ssl.TLSVersion.TLSv1_2), "TLSv1.2")
        self.assertEqual(self.handshake(ssl.TLSVersion.TLSv1_3), "TLSv1.3")
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            # The daemon hangs up; the library on this side does not refuse.
            with self.assertRaises((ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)):
                self.handshake(version)


class RoleTest(HostileCase):
    # Method, and the roles that may call it.
    METHODS = {
        "dws.v1.SyncService/Sync": {"receive"},
        "dws.v1.SyncService/Describe": {"publish", "receive"},
        "dws.v1.SyncService/Fetch": {"publish", "receive"},
        "dws.v1.SyncService/FetchFull": {"publish", "receive"},
        "dws.v1.SyncService/OpenFabric": {"publish", "receive"},
        "dws.v1.SyncService/OpenGpuCopies": {"receive"},
        "dws.v1.SyncService/OpenSnapshot": {"publish", "receive"},
        "dws.v1.TrainService/Train": {"train"},
        "dws.v1.TrainService/FetchPiece": {"train"},
        "dws.v1.TrainService/OpenOutbox": {"train"},
        "dws.v1.TrainService/OpenHostCopy": {"train"},
        "dws.v1.PeerObjectService/Fetch": {"train"},
        "dws.v1.AdminService/Status": {"publish", "train", "receive", "operate"},
        "dws.v1.AdminService/Watch": {"publish", "train", "receive", "operate"},
        "dws.v1.AdminService/Plan": {"operate"},
        "dws.v1.AdminService/Verify": {"operate"},
        "dws.v1.AdminService/Resync": {"operate"},
        "dws.v1.AdminService/Boundary": {"operate"},
        "grpc.health.v1.Health/Check": {"publish", "train", "receive", "operate", "stranger"},
    }
    WHO = {
        "publish": "dws://test/publish/0",
        "train": "dws://test/train/0",
        "receive": "dws://test/receive/receiver-0",
        "operate": "dws://test/operate/ann",
        "stranger": "dws://another/operate/ann",
    }

    def test_each_role_may_call_its_methods_and_no_others(self) -> None:
        for role, identity in self.WHO.items():
            files = self.authority.issue(f"role-{role}", identity)
            with channel(self.sender.ports["sync"], files) as connection:
                for method, allowed in self.METHODS.items():
                    code = code_of(lambda: raw_call(connection, f"/{method}"))
                    with self.subTest(role=role, method=method, code=code):
                        self.assertEqual(code == DENIED, role not in allowed)
                        if method == "dws.v1.AdminService/Drain":
                            self.assertEqual(code, DENIED)
                for method in ("dws.v1.TrainerService/Register", "dws.v1.Nobody/Nothing"):
                    code = code_of(lambda: raw_call(connection, f"/{method}"))
                    self.assertEqual(code, UNIMPLEMENTED)

    def test_only_operators_may_drain(self) -> None:
        for role in ("publish", "train", "receive", "stranger"):
            files = self.authority.issue(f"drain-{role}", self.WHO[role])
            for port in (self.sender.ports["sync"], self.receiver.ports["admin"]):
                with channel(port, files) as connection:
                    code = code_of(lambda: raw_call(connection, "/dws.v1.AdminService/Drain"))
                    self.assertEqual(code, DENIED)

    def test_a_certificate_without_an_identity_may_only_ask_for_health(self) -> None:
        files = self.authority.issue("nobody")
        with channel(self.sender.ports["sync"], files) as connection:
            self.assertEqual(
                code_of(lambda: raw_call(connection, "/grpc.health.v1.Health/Check")), OK
            )
            self.assertEqual(code_of(lambda: ask_status(connection)), DENIED)

    def hello(self, files: Files, receiver_id: str, job_id: str = "test") -> bytes:
        hello = sync_pb2.SyncUp(
            hello=sync_pb2.Hello(job_id=job_id, receiver_id=receiver_id, protocol_major=PROTOCOL_MAJOR)
        )
        with channel(self.sender.ports["sync"], files) as connection:
            return raw_call(connection, "/dws.v1.SyncService/Sync", hello.SerializeToString())

    def test_a_receivers_id_must_be_the_one_in_its_certificate(self) -> None:
        files = self.authority.issue("twin", "dws://test/receive/twin%2F1")
        self.assertTrue(
            sync_pb2.SyncDown.FromString(self.hello(files, "twin/1")).HasField("welcome")
        )
        with channel(self.sender.ports["sync"], self.operator) as connection:
            eventually(  # the call ends here before the sender notices it
                lambda: not any(
                    receiver.receiver_id == "twin/1" and receiver.present
                    for receiver in ask_status(connection).sender.receivers
                ),
                self.sender.log_tail,
            )
        self.before[0] = self.state(self.sender)  # the sender now knows the twin
        for receiver_id, job_id in (("receiver-0", "test"), ("twin/1", "other"), ("", "test")):
            self.assertEqual(code_of(lambda: self.hello(files, receiver_id, job_id)), DENIED)


class TrainTest(HostileCase):
    """Senders with --train-peers: each has both roles, and speaks for its own rank."""

    def files(self, rank: int, *roles: str) -> Files:
        uris = [f"dws://test/{role}/{rank}" for role in roles]
        return self.authority.issue(f"{'-'.join(roles)}-{rank}", *uris)

    def start(self, files: Files, rank: int, peers: list[str]) -> Any:
        return self.cluster.start_sender(rank, *files.flags(), f"--train-peers={','.join(peers)}")

    def test_a_sender_without_the_role_does_not_train(self) -> None:
        files = self.files(2, "publish")
        with self.assertRaisesRegex(DaemonFailed, "must have the URI dws://test/train/2 .*, found dws://test/publish/2"):
            self.start(files, 2, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"])

    def test_a_certificate_speaks_for_its_own_rank_only(self) -> None:
        sender = self.start(self.files(3, "publish", "train"), 3, [f"127.0.0.1:{port}" for port in (1, 2, 3, 4)])
        self.addCleanup(sender.stop)
        own = self.files(1, "publish", "train")

        def hello(rank: int) -> Any:
            return train_pb2.TrainUp(hello=train_pb2.TrainHello(
                job_id="test", protocol_major=PROTOCOL_MAJOR, trainer_rank=rank, wanted_rank=3))  # fmt: skip

        def piece(rank: int) -> Any:
            return train_pb2.FetchPieceRequest(trainer_rank=rank, number=1)

        def fetched(rank: int) -> Any:
            wanted = objects_pb2.FetchObjectRequest(trainer_rank=3, key=objects_pb2.ObjectKey(name="x", number=1))
            return objects_pb2.FetchPeerObjectRequest(job_id="test", trainer_rank=rank, wanted=wanted)

        for path, request in (("TrainService/Train", hello), ("TrainService/FetchPiece", piece),
                              ("PeerObjectService/Fetch", fetched)):  # fmt: skip
            for rank, denied in ((1, False), (0, True), (3, True)):
                with self.subTest(path=path, rank=rank), channel(sender.ports["sync"], own) as connection:
                    said = ""
                    try:
                        raw_call(connection, f"/dws.v1.{path}", request(rank).SerializeToString())
                    except grpc.RpcError as error:
                        said = f"{error.code()}: {error.details()}"
                    refused = f"needs a certificate with dws://test/train/{rank}, the one shown has"
                    self.assertEqual(refused in said, denied, said)
                    self.assertEqual(str(DENIED) in said, denied, said)


class FakeSender(sync_pb2_grpc.SyncServiceServicer):
    """Sends Welcome for a rank, with any certificate."""

    def __init__(self, files: Files, rank: int) -> None:
        self.rank = rank
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        credentials = grpc.ssl_server_credentials(
            [(read(files.key), read(files.cert))], read(files.ca), True
        )
        self.port = self.server.add_secure_port("127.0.0.1:0", credentials)
        sync_pb2_grpc.add_SyncServiceServicer_to_server(self, self.server)
        self.server.start()

    def Sync(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        next(requests)
        yield sync_pb2.SyncDown(
            nonce=1,
            welcome=sync_pb2.Welcome(
                job_id="test", trainer_rank=self.rank, world_size=1, protocol_major=PROTOCOL_MAJOR
            ),
        )
        for _ in requests:
            pass


class ImpostorTest(HostileCase):
    def last_error(self, files: Files, *flags: str) -> str:
        """A receiver's error for a sender of rank 0 with this certificate."""
        fake = FakeSender(files, 0)
        self.addCleanup(lambda: fake.server.stop(0).wait())
        own = self.authority.issue("late", "dws://test/receive/late")
        receiver = self.cluster.start_receiver(
            "late", *own.flags(), f"--sender=127.0.0.1:{fake.port}", *flags, senders=False
        )
        self.addCleanup(receiver.stop)

        text = ""  # the next attempt may clear it

        def said() -> bool:
            nonlocal text
            with channel(receiver.ports["admin"], self.operator) as connection:
                text = ask_status(connection).receiver.senders[0].last_error
            return text not in ("", "not connected yet")

        eventually(said, lambda: receiver.log_tail())
        return text

    def test_a_senders_rank_must_be_the_one_in_its_certificate(self) -> None:
        right = self.authority.issue("rank-0", "dws://test/publish/0")
        self.assertNotIn("certificate", self.last_error(right))  # the fake's empty layout

    def test_another_rank_of_the_job_is_refused(self) -> None:
        wrong = self.authority.issue("rank-1", "dws://test/publish/1")
        self.assertIn("dws://test/publish/0, the one shown has dws://test/publish/1",
                      self.last_error(wrong))  # fmt: skip

    def test_a_sender_of_another_job_is_refused(self) -> None:
        wrong = self.authority.issue("job-2", "dws://other/publish/0")
        self.assertIn("dws://test/publish/0", self.last_error(wrong))

    def test_a_sender_with_another_host_name_is_refused_unless_expected(self) -> None:
        named = self.authority.issue("named", "dws://test/publish/0", hosts=["DNS:sender.example"])
        self.assertNotIn("layout", self.last_error(named))

    def test_a_host_name_that_is_expected_is_accepted(self) -> None:
        named = self.authority.issue("named", "dws://test/publish/1", hosts=["DNS:sender.example"])
        # The host name passed; the identity is checked next.
        self.assertIn("dws://test/publish/1",
                      self.last_error(named, "--tls-server-name=sender.example"))  # fmt: skip

    def refuses_to_start(self, *flags: str) -> str:
        with self.assertRaises(DaemonFailed) as caught:
            self.cluster.start_sender(5, *flags)
        return str(caught.exception)

    def test_a_daemon_refuses_unusable_certificates_at_start(self) -> None:
        issue = self.authority.issue
        own = issue("five", "dws://test/publish/5")
        other = issue("six", "dws://test/publish/6")
        old = issue("five-old", "dws://test/publish/5", begins_in_days=-3, ends_in_days=-1)
        self.assertIn("dws://test/publish/5", self.refuses_to_start(*other.flags()))
        self.assertIn("expired", self.refuses_to_start(*old.flags()))
        self.assertIn("not that of the certificate",
                      self.refuses_to_start(*Files(own.ca, own.cert, other.key).flags()))  # fmt: skip
        self.assertIn("--tls-key missing", self.refuses_to_start(*own.flags()[:2]))
        self.assertIn("No such file", self.refuses_to_start(*own.flags()[:2], "--tls-key=/nowhere"))
        stranger = Authority(self.authority.folder, "stranger")
        self.assertIn("not signed by a CA",
                      self.refuses_to_start(*Files(stranger.pem, own.cert, own.key).flags()))  # fmt: skip


if __name__ == "__main__":
    unittest.main()
