"""Fixture for the hostile tests: a pair of daemons with mutual TLS that have synced a version, and
a check that no test changes their state."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, ClassVar, Optional

import grpc
import numpy as np
import unittest

import dws
from dws._proto import admin_pb2, admin_pb2_grpc
from tests.integration.certificates import Authority, Files, read
from tests.integration.cluster import Cluster, Daemon
from tests.integration.integration_case import eventually

CALL_SECONDS = 20.0
# What the allocator may keep (heap_trimmer.h), caches of the libraries, and the noise of a small heap. A
# flood whose memory does not return costs more.
RSS_GROWTH_BYTES_MAX = 64 << 20


def channel(port: int, files: Optional[Files], server_name: str = "") -> grpc.Channel:
    """A new connection to a port of this machine; `files` None: plaintext."""
    options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1)]
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    target = f"127.0.0.1:{port}"
    if files is None:
        return grpc.insecure_channel(target, options)
    credentials = grpc.ssl_channel_credentials(read(files.ca), read(files.key), read(files.cert))
    return grpc.secure_channel(target, credentials, options)


def ask_status(
    connection: grpc.Channel, seconds: float = CALL_SECONDS, wait_for_ready: bool = False
) -> Any:
    return admin_pb2_grpc.AdminServiceStub(connection).Status(
        admin_pb2.StatusRequest(), timeout=seconds, wait_for_ready=wait_for_ready
    )


def code_of(call: Any) -> grpc.StatusCode:
    """The status code of `call`, a function that makes an RPC."""
    try:
        call()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        return code
    return grpc.StatusCode.OK


def rss_bytes(daemon: Daemon) -> int:
    assert daemon.process is not None
    with open(f"/proc/{daemon.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(daemon: Daemon) -> int:
    assert daemon.process is not None
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def state_of(reply: Any) -> Any:
    """The state that no stranger may change."""
    sender, receiver = reply.sender, reply.receiver
    return (
        reply.ready,
        sender.newest_version,
        sender.trainer_present,
        sender.rank_epoch,
        [v.version for v in sender.versions],
        [(r.receiver_id, r.present, r.committed_version) for r in sender.receivers],
        receiver.committed_version,
        receiver.commits,
        [(s.address, s.connected) for s in receiver.senders],
        [(e.engine_rank, e.attached, e.generation) for e in receiver.engine_ranks],
        reply.drain,
    )


class HostileCase(unittest.TestCase):
    """One secure pair for all tests of a class. No test may change its state."""

    cluster: ClassVar[Cluster]
    authority: ClassVar[Authority]
    operator: ClassVar[Files]
    sender: ClassVar[Daemon]
    receiver: ClassVar[Daemon]

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.mkdtemp(prefix="dws-ca-", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.authority = Authority(folder, "ca")
        issue = cls.authority.issue
        cls.operator = issue("operator", "dws://test/operate/ann")
        cls.cluster = Cluster("test")
        cls.addClassCleanup(cls.cluster.stop)
        cls.sender = cls.cluster.start_sender(0, *issue("sender", "dws://test/publish/0").flags())
        cls.receiver = cls.cluster.start_receiver(
            "receiver-0", *issue("receiver", "dws://test/receive/receiver-0").flags()
        )
        trainer = dws.Trainer(cls.sender.socket, "test")
        cls.addClassCleanup(trainer.close)
        trainer.register({"w": np.arange(100_000, dtype=np.float32)})
        engine = dws.Engine(cls.receiver.socket)
        cls.addClassCleanup(engine.close)
        engine.attach({"w": np.zeros(100_000, np.float32)})
        trainer.publish(1)
        trainer.wait(1)
        # The state before the tests: the receiver counts a commit, and is ready, after it reports it.
        for daemon in (cls.sender, cls.receiver):
            eventually(lambda: cls.settled(daemon), daemon.log_tail)

    @classmethod
    def settled(cls, daemon: Daemon) -> bool:
        port = daemon.ports.get("sync") or daemon.ports["admin"]
        with channel(port, cls.operator) as connection:
            status = ask_status(connection)
        return bool(status.ready and status.receiver.commits == (daemon is cls.receiver))

    def setUp(self) -> None:
        self.before = [self.state(daemon) for daemon in self.daemons]
        self.rss_before = [rss_bytes(daemon) for daemon in self.daemons]
        self.files_before = [open_files(daemon) for daemon in self.daemons]
        self.addCleanup(self.check_unharmed)

    @property
    def daemons(self) -> list[Daemon]:
        return [self.sender, self.receiver]

    def state(self, daemon: Daemon) -> Any:
        """The status that an honest client gets; fails if the daemon is down."""
        port = daemon.ports.get("sync") or daemon.ports["admin"]
        with channel(port, self.operator) as connection:
            # After a flood the port may refuse for a moment; the call waits for that.
            return state_of(ask_status(connection, wait_for_ready=True))

    def check_unharmed(self) -> None:
        for index, daemon in enumerate(self.daemons):
            assert daemon.process is not None
            self.assertIsNone(daemon.process.poll(), daemon.log_tail())
            eventually(
                lambda: self.state(daemon) == self.before[index],
                lambda: f"{daemon.name} was {self.before[index]}, is {self.state(daemon)}",
            )
            eventually(
                lambda: open_files(daemon) <= self.files_before[index] + 8,
                lambda: f"{open_files(daemon)} files are open, were {self.files_before[index]}",
            )
            if "ASAN_OPTIONS" in os.environ:
                continue  # AddressSanitizer keeps freed memory on purpose
            eventually(
                lambda: rss_bytes(daemon) <= self.rss_before[index] + RSS_GROWTH_BYTES_MAX,
                lambda: f"{daemon.name} grew from {self.rss_before[index]} to {rss_bytes(daemon)}",
            )
