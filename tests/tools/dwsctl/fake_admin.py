"""A daemon's AdminService in this process, for tests that run the dwsctl program."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any, Iterator, Optional

import grpc

from dws._proto import admin_pb2, admin_pb2_grpc


class FakeAdmin(admin_pb2_grpc.AdminServiceServicer):  # type: ignore[misc]
    """Answers like a receiver; can be started and stopped repeatedly at the same port."""

    def __init__(self) -> None:
        self.reply = admin_pb2.StatusReply(daemon="dws-receiver", build_version="0.1.0", ready=True)
        self.reply.receiver.receiver_id = "rollout-0"
        self.reply.receiver.committed_version = 100
        self.reply.receiver.newest_version = 101
        self.reply.receiver.version_lag = 1
        self.reply.receiver.stage = "fetching"
        self.reply.receiver.target_version = 101
        self.reply.receiver.stage_total_bytes = 1000
        self.finish = threading.Event()  # ends operations
        self.watchers = 0
        self.interval = 0.1  # of a watch, in seconds
        self.port = 0
        self._server: Optional[grpc.Server] = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        # Without it, two servers could share the port.
        options = (("grpc.so_reuseport", 0),)
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=options)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        assert self.port != 0
        self._server.start()

    def stop(self) -> None:
        assert self._server is not None
        self.finish.set()
        self._server.stop(0).wait()

    def Status(self, request: Any, context: Any) -> Any:
        return self.reply

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:
        self.watchers += 1
        while context.is_active():
            receiver = self.reply.receiver
            receiver.stage_done_bytes = (receiver.stage_done_bytes + 50) % 1000
            receiver.committed_version += 1
            receiver.newest_version += 1
            yield self.reply
            self.finish.wait(self.interval)

    def _operate(self, step: str, context: Any) -> Iterator[Any]:
        done = 0
        while context.is_active() and not self.finish.wait(0.1):
            done = min(done + 10, 900)
            yield admin_pb2.OperationProgress(step=step, done_bytes=done, total_bytes=1000, version=7)
        yield admin_pb2.OperationProgress(
            step="done", done_bytes=1000, total_bytes=1000, version=7, finished=True
        )

    def Verify(self, request: Any, context: Any) -> Iterator[Any]:
        return self._operate("comparing live weights", context)

    def Resync(self, request: Any, context: Any) -> Iterator[Any]:
        return self._operate("fetching", context)

    def Drain(self, request: Any, context: Any) -> Iterator[Any]:
        return self._operate("waiting for the commit in flight", context)
