"""Fixture for tests of receivers that serve each other: daemons as on different hosts, and a receiver of the
test's own that serves as badly as a test wants."""

from __future__ import annotations

import os
import queue
import threading
from concurrent import futures
from typing import Any, Callable, Iterator, Optional

import grpc
import numpy as np

import dws
from dws._proto import delta_pb2, sync_pb2, sync_pb2_grpc
from tests.integration.certificates import Files
from tests.integration.cluster import PROTOCOL_MAJOR, Daemon
from tests.integration.hostile_case import channel
from tests.integration.integration_case import IntegrationCase, change, eventually

ELEMENTS = (1500 * 701, 33, 900 * 400)  # several blocks a slice, odd tails
BLOCK_ELEMENTS = 65_536
FRAME_BYTES_MAX = 1 << 20
SENDER_FLAGS = ("--insecure",)


class PeersCase(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(41)
        self.version = 0

    def begin(self, *flags: str, elements: tuple[int, ...] = ELEMENTS) -> None:
        """Brings a trainer to version 1."""
        self.sender = self.cluster.start_sender(0, *(flags or SENDER_FLAGS))
        self.dws_trainer = self.trainer()
        self.source = self.dws_trainer.register(
            {f"t{i}": self.random.standard_normal(n, np.float32) for i, n in enumerate(elements)}
        )
        self.publish()
        # Nobody can map the sender's memory: receivers are on other hosts.
        os.unlink(f"{self.sender.socket}.handles")

    def publish(self, share: float = 0.01) -> None:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, share)
        self.dws_trainer.publish(self.version)

    def model_bytes(self) -> int:
        return sum(array.nbytes for array in self.source.values())

    def join(self, name: str, *flags: str) -> tuple[Daemon, dws.Engine, dict[str, Any]]:
        """A receiver that serves others, with an engine that has attached. `flags` may name another
        way to the sender."""
        way = () if any(flag.startswith("--full-way") for flag in flags) else ("--full-way=auto",)
        receiver = self.cluster.start_receiver(
            name,
            *self.peer_flags(name),
            *way,
            *flags,
            senders=not any(flag.startswith("--sender=") for flag in flags),
        )
        engine = self.engine(receiver)
        live = engine.attach({n: np.zeros(a.size, np.float32) for n, a in self.source.items()})
        return receiver, engine, live

    def peer_flags(self, name: str) -> list[str]:
        return ["--insecure", f"--serve-peers={self.cluster.host}:0"]

    def check(self, engine: dws.Engine, live: dict[str, Any]) -> None:
        self.await_version(engine, self.version)
        self.assert_same_weights(engine, live, self.source)

    def came_by(self, receiver: Daemon, way: str) -> float:
        return receiver.metric("dws_receiver_source_bytes_total", f'content="full",source="{way}"')

    def served(self, receiver: Daemon) -> float:
        """Bytes that it has sent to others."""
        return receiver.metric("dws_receiver_peer_served_bytes_total")

    def sender_bytes(self) -> float:
        """Bytes of full tensors that the sender has sent."""
        kinds = ('kind="full"', 'kind="full_copied"')
        return sum(self.sender.metric("dws_sender_served_bytes_total", kind) for kind in kinds)

    def await_serving(self, receiver: Daemon, count: float) -> None:
        """Returns once it has sent so many bytes to others."""
        eventually(lambda: self.served(receiver) >= count, lambda: f"{self.served(receiver)} sent")


# Sends what is asked for; raises grpc.RpcError through `context`.
Serve = Callable[[Any, Any], Iterator[Any]]


class FakePeer(sync_pb2_grpc.SyncServiceServicer):
    """A receiver that says that it has a version, and serves it by `serve`."""

    def __init__(
        self,
        sender: Daemon,
        version: int,
        serve: Serve,
        files: Optional[Files] = None,
        credentials: Any = None,
    ) -> None:
        """`files`: its certificate at the sender; `credentials`: of its own server; None: without TLS."""
        self.asked = threading.Event()
        self._serve = serve
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        sync_pb2_grpc.add_SyncServiceServicer_to_server(self, self._server)
        port = (
            self._server.add_insecure_port("127.0.0.1:0")
            if credentials is None
            else self._server.add_secure_port("127.0.0.1:0", credentials)
        )
        self.address = f"127.0.0.1:{port}"
        self._server.start()
        self._up: queue.Queue[Optional[Any]] = queue.Queue()
        self._channel = channel(sender.ports["sync"], files)
        hello = sync_pb2.Hello(
            job_id="test",
            receiver_id="fake",
            protocol_major=PROTOCOL_MAJOR,
            peer_address=self.address,
        )
        self._up.put(sync_pb2.SyncUp(hello=hello))
        stream = sync_pb2_grpc.SyncServiceStub(self._channel).Sync(iter(self._up.get, None))
        # The stream is announced before its first version: what is acknowledged then is not that version's weights.
        announce = next(down.announce for down in stream if down.announce.versions)
        ack = sync_pb2.Ack(
            version=version,
            stage=sync_pb2.Ack.COMMITTED,
            stream=announce.stream,
            state_token=announce.state_token,
        )
        self._up.put(sync_pb2.SyncUp(ack=ack))
        # Messages are handled in their order: once this is answered, the sender has taken the Ack.
        probe = sync_pb2.Refine(id=1, stream=announce.stream, probe=True)
        self._up.put(sync_pb2.SyncUp(refine=probe))
        next(down for down in stream if down.HasField("refine_reply"))
        self._reader = threading.Thread(target=self._read, args=(stream,))
        self._reader.start()

    @staticmethod
    def _read(stream: Any) -> None:
        try:
            for _ in stream:
                pass
        except grpc.RpcError:
            pass  # closed

    def FetchFull(self, request: Any, context: Any) -> Iterator[Any]:
        self.asked.set()
        yield from self._serve(request, context)

    def close(self) -> None:
        self._up.put(None)
        self._channel.close()
        self._server.stop(0)
        self._reader.join()


def frames(request: Any, sizes: list[int], content: Callable[[int, int, int], bytes]) -> Iterator[Any]:
    """What `request` asks for. `sizes`: of the slices, in bytes. `content`: of a slice, from an offset, so
    many bytes."""
    block_bytes = 4 * BLOCK_ELEMENTS
    for blocks in request.blocks:
        size = sizes[blocks.rank_slice]
        for block in range(blocks.first_block, blocks.first_block + blocks.block_count):
            begin = block * block_bytes
            count = min(block_bytes, size - begin)
            entry = delta_pb2.FrameEntry(first_block=block, block_count=1, size_bytes=count)
            data = content(blocks.rank_slice, begin, count)
            yield sync_pb2.FullFrame(rank_slice=blocks.rank_slice, entry=entry, data=data)
