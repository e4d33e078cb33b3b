"""A commit group over mutual TLS: who may join it, and whom its members accept as their leader."""

from __future__ import annotations

import queue
import shutil
import tempfile
import unittest
from concurrent import futures
from typing import Any, Iterator, Optional

import grpc

from dws._proto import group_pb2, group_pb2_grpc
from tests.integration.certificates import Authority, Files, read
from tests.integration.cluster import PROTOCOL_MAJOR
from tests.integration.group_case import GroupCase
from tests.integration.hostile_case import channel
from tests.integration.integration_case import eventually

CALL_SECONDS = 20


class Impostor(group_pb2_grpc.GroupServiceServicer):
    """Welcomes every caller."""

    def Join(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        next(request_iterator)
        welcome = group_pb2.GroupWelcome(receiver_id="leader", protocol_major=PROTOCOL_MAJOR)
        yield group_pb2.GroupDown(welcome=welcome)
        for _ in request_iterator:
            pass


class GroupSecureTest(GroupCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="dws-ca-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        self.authority = Authority(self.folder, "ca")

    def files(self, name: str, role: str) -> Files:
        return self.authority.issue(name, f"dws://test/{role}")

    def start_secure(self) -> None:
        self.cluster.start_sender(0, *self.files("s", "publish/0").flags())
        for index in range(2):
            self.flags = tuple(self.files(f"m{index}", f"receive/member-{index}").flags())
            self.start_member(index, 2)

    def hello(self, **changes: Any) -> Any:
        fields = {
            "job_id": "test",
            "receiver_id": "member-1",
            "protocol_major": PROTOCOL_MAJOR,
            "group_id": "engine",
            "member_index": 1,
            "member_count": 2,
        }
        return group_pb2.GroupUp(hello=group_pb2.GroupHello(**{**fields, **changes}))

    def refusal(self, files: Optional[Files], *messages: Any) -> tuple[grpc.StatusCode, str]:
        """How the leader ends a Join of this caller."""
        silence: queue.Queue[Any] = queue.Queue()  # the caller keeps the stream open

        def say() -> Iterator[Any]:
            yield from messages
            yield silence.get()

        with channel(self.cluster.receivers[0].ports["admin"], files) as connection:
            call = group_pb2_grpc.GroupServiceStub(connection).Join(say(), timeout=CALL_SECONDS)
            try:
                for _ in call:
                    pass
            except grpc.RpcError as error:
                silence.put(messages[-1])
                return error.code(), error.details()  # type: ignore[attr-defined]
        raise AssertionError("the leader has ended the stream without a word")

    def test_a_group_changes_versions_over_tls(self) -> None:
        self.start_secure()
        self.register()
        for index in range(2):
            self.attach(index, 2)
        self.watch()
        for _ in range(3):
            self.await_group(self.publish())

    def test_only_a_receivers_own_certificate_may_join_under_its_name(self) -> None:
        self.start_secure()
        denied = grpc.StatusCode.PERMISSION_DENIED
        for role in ("operate/ann", "publish/0"):
            code, details = self.refusal(self.files(f"x-{role[0]}", role), self.hello())
            self.assertEqual(code, denied)
            self.assertIn("needs a certificate with role receive of job 'test'", details)
        code, details = self.refusal(self.files("other", "receive/other"), self.hello())
        self.assertEqual(code, denied)
        wanted = "receiver 'member-1' needs a certificate with dws://test/receive/member-1"
        self.assertIn(wanted, details)

    def test_members_leave_a_leader_that_is_not_a_receiver_of_the_job(self) -> None:
        self.cluster.start_sender(0, *self.files("s", "publish/0").flags())
        files = self.files("l", "operate/ann")
        server = grpc.server(futures.ThreadPoolExecutor(4))
        group_pb2_grpc.add_GroupServiceServicer_to_server(Impostor(), server)
        credentials = grpc.ssl_server_credentials(
            [(read(files.key), read(files.cert))], read(files.ca), True
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        self.addCleanup(server.stop, None)
        flags = self.files("m1", "receive/member-0").flags()
        self.cluster.start_receiver(
            "member-0", *self.group_flags(1, 2, f"127.0.0.1:{port}"), *flags
        )
        eventually(
            lambda: f"the leader at 127.0.0.1:{port} needs a certificate with role receive of job"
            in self.status(0).receiver.group.last_error,
            lambda: f"{self.status(0).receiver.group}",
        )
        self.assertFalse(self.status(0).receiver.group.leader_connected)

    def test_a_member_that_sends_invalid_messages_is_disconnected(self) -> None:
        self.start_secure()
        eventually(lambda: self.status(1).receiver.group.leader_connected, lambda: "member 1")
        self.cluster.receivers[1].stop()
        mine = self.files("again", "receive/member-1")
        report = group_pb2.GroupUp(report=group_pb2.GroupReport(seen=0))
        staged = group_pb2.GroupUp(staged=group_pb2.GroupStaged(round=1))
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        first = "expected GroupHello as the first message of a Join stream"
        for messages, code, wanted in (
            ((report,), invalid, first),
            ((self.hello(), self.hello()), invalid, first),
            ((self.hello(), staged), invalid, "a group's STAGED: stream id"),
            ((self.hello(receiver_id="x" * 300),), invalid, "ids of 300 bytes"),
            ((self.hello(member_index=2),), invalid, "expected 1 to 1"),
            ((self.hello(protocol_major=99),), grpc.StatusCode.UNIMPLEMENTED, "protocol 99.0"),
            ((self.hello(member_count=3),), grpc.StatusCode.FAILED_PRECONDITION, "has 3 members"),
        ):
            with self.subTest(wanted):
                found, details = self.refusal(mine, *messages)
                self.assertEqual(found, code, details)
                self.assertIn(wanted, details)
        # None of these callers has taken the member's place.
        self.cluster.receivers[1].start()
        eventually(lambda: self.status(1).receiver.group.leader_connected, lambda: "member 1")


if __name__ == "__main__":
    unittest.main()
