"""Stand-ins for the daemons in this process: gRPC on a unix socket, with the handle socket beside it.

They follow the .proto files as simply as possible and let a test decide the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import queue
import secrets
import socket
import struct
import threading
from concurrent import futures
from typing import Any, Optional

import grpc
import numpy as np

import dws
from dws._proto import delta_pb2, engine_pb2, engine_pb2_grpc, trainer_pb2, trainer_pb2_grpc


def _let_go(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the test has closed it
        if not connection.recv(1):
            connection.shutdown(socket.SHUT_RDWR)


class HandleSocket:
    """Accepts registrations: checks the token, keeps the descriptors mapped."""

    def __init__(self, path: str, lets_go: bool = True) -> None:
        """Args:
        lets_go: whether a client that ends its registration sees the end of the connection at
          once. A test may change it for later clients.
        """
        self.path = path
        self.lets_go = lets_go
        self.answers = threading.Event()  # not set: clients wait for the answer
        self.answers.set()
        self.tokens: set[bytes] = set()
        self.received: list[list[int]] = []
        self.connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def token(self) -> bytes:
        token = secrets.token_bytes(16)
        self.tokens.add(token)
        return token

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            descriptors: list[int] = []
            while True:
                payload, got, _, _ = socket.recv_fds(connection, 64, 253)
                descriptors += got
                if len(descriptors) >= struct.unpack("<I", payload[16:])[0]:
                    break
            if payload[:16] in self.tokens:
                self.tokens.remove(payload[:16])
                self.received.append(descriptors)
                self.connections.append(connection)
                self.answers.wait()
                lets_go = self.lets_go  # the client goes on with the answer, and the test with it
                with contextlib.suppress(OSError):  # the test has closed it
                    connection.send(b"ok")
                if lets_go:
                    threading.Thread(target=_let_go, args=(connection,), daemon=True).start()
            else:
                connection.send(b"error: the token is unknown, used or expired; register again")
                connection.close()

    def close(self) -> None:
        self.answers.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):  # the client is gone
                connection.shutdown(socket.SHUT_RDWR)  # wakes a thread in recv
            connection.close()


class _FakeDaemon:
    def __init__(self, folder: str, name: str) -> None:
        self.socket = os.path.join(folder, name)
        self.handles = HandleSocket(self.socket + ".handles")
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        self._add(self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def _add(self, server: Any) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Ends like a killed daemon: removes the sockets and closes every connection."""
        if os.path.exists(self.handles.path):
            os.unlink(self.handles.path)
            self._server.stop(None).wait()
            self.handles.close()


class FakeSender(_FakeDaemon, trainer_pb2_grpc.TrainerServiceServicer):
    """Keeps published data by rank slice: flat arrays of raw elements in slice order."""

    def __init__(self, folder: str) -> None:
        self.register: Any = None
        self.slices: dict[int, np.ndarray[Any, Any]] = {}
        self.puts: list[Any] = []
        self.aborted: list[int] = []
        self.published: list[int] = []
        self.refuse: Optional[str] = None
        self.fail_puts = False
        self.wait_code: Optional[grpc.StatusCode] = None
        self.wait_details = b""
        # Not set: calls that read the weights (`reads`) or all calls (`answers`) get no answer.
        self.reads = threading.Event()
        self.answers = threading.Event()
        self.reads.set()
        self.answers.set()
        super().__init__(folder, "sender.sock")

    def _add(self, server: Any) -> None:
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(self, server)

    def region(self) -> bytes:
        """The resident region's bytes, read through the last descriptor."""
        return _map_read_only(self.handles.received[-1][0])

    def Register(self, request: Any, context: Any) -> Any:
        if self.refuse is not None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self.refuse)
        self.register = request
        return trainer_pb2.RegisterReply(
            token=self.handles.token(), handle_socket=self.handles.path, session=7
        )

    def Begin(self, request: Any, context: Any) -> Any:
        return trainer_pb2.BeginReply()

    def Put(self, request: Any, context: Any) -> Any:
        if self.fail_puts:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this test refuses puts")
        ring = self.register.ring
        memory = np.frombuffer(self.region(), np.uint8)
        memory = memory[request.bucket * ring.bucket_bytes :][: ring.bucket_bytes]
        self.puts.append(request)
        elements = slice_elements(self.register.layout)
        for piece in request.pieces:
            count, itemsize = elements[piece.rank_slice]
            target = self.slices.setdefault(piece.rank_slice, np.zeros(count * itemsize, np.uint8))
            begin = piece.first_block * 65536 * itemsize
            end = min(begin + piece.block_count * 65536 * itemsize, target.size)
            target[begin:end] = memory[piece.offset_bytes :][: end - begin]
        return trainer_pb2.PutReply()

    def Abort(self, request: Any, context: Any) -> Any:
        self.answers.wait()
        self.aborted.append(request.version)
        return trainer_pb2.AbortReply()

    def Publish(self, request: Any, context: Any) -> Any:
        self.answers.wait()
        self.reads.wait()
        if not context.is_active():
            return trainer_pb2.PublishReply()
        self.published.append(request.version)
        return trainer_pb2.PublishReply(changed_elements=3, total_elements=10, capture_seconds=0.5)

    def Wait(self, request: Any, context: Any) -> Any:
        if self.wait_code is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", self.wait_details),))
            context.abort(self.wait_code, "as the test wants")
        return trainer_pb2.WaitReply(committed=["a"], wire_bytes=request.policy)


class FakeReceiver(_FakeDaemon, engine_pb2_grpc.EngineServiceServicer):
    """One lease at a time; a test sends LeaseDown messages and reads LeaseUp ones."""

    def __init__(self, folder: str) -> None:
        self.attached: Any = None
        self.generation = 0
        self.refuse: Optional[str] = None
        self.refuse_code = grpc.StatusCode.INVALID_ARGUMENT
        self.has_layout = threading.Event()  # not set: an attach waits
        self.has_layout.set()
        self.waits_for = ""
        self.leases: queue.Queue[tuple[queue.Queue[Any], queue.Queue[Any]]] = queue.Queue()
        self.holds = False  # boundaries are not over before they are ended
        self.boundaries: queue.Queue[Any] = queue.Queue()  # requests of Boundary and EndBoundary
        self._open: dict[int, threading.Event] = {}
        super().__init__(folder, "receiver.sock")

    def _add(self, server: Any) -> None:
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, server)

    def Attach(self, request: Any, context: Any) -> Any:
        if self.refuse is not None:
            context.abort(self.refuse_code, self.refuse)
        self.has_layout.wait()
        if not context.is_active():
            return engine_pb2.AttachReply()
        self.attached = request
        self.generation += 1
        return engine_pb2.AttachReply(
            token=self.handles.token(),
            handle_socket=self.handles.path,
            generation=self.generation,
        )

    def Why(self, request: Any, context: Any) -> Any:
        return engine_pb2.WhyReply(waits_for=self.waits_for)

    def Boundary(self, request: Any, context: Any) -> Any:
        over = self._open.setdefault(request.boundary_id, threading.Event())
        context.add_callback(over.set)
        self.boundaries.put(request)
        if request.stays or self.holds:
            over.wait()
        return engine_pb2.BoundaryReply(version=7)

    def EndBoundary(self, request: Any, context: Any) -> Any:
        self.boundaries.put(request)
        self._open.pop(request.boundary_id).set()
        return engine_pb2.BoundaryReply(version=7)

    def Lease(self, up: Any, context: Any) -> Any:
        down: queue.Queue[Any] = queue.Queue()
        ups: queue.Queue[Any] = queue.Queue()

        def read() -> None:
            try:
                for message in up:
                    ups.put(message)
            except grpc.RpcError:
                pass

        if not context.add_callback(lambda: down.put(None)):
            return  # the client has hung up already, so nothing would end this call
        threading.Thread(target=read, daemon=True).start()
        self.leases.put((down, ups))
        while (message := down.get()) is not None:
            yield message

    def writable_region(self) -> mmap.mmap:
        descriptor = self.handles.received[-1][0]
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


def resume(version: int, pause_id: int = 0, stream: dws.Stream = dws.Stream(1, 2)) -> Any:
    """A LeaseDown that releases the engine."""
    return engine_pb2.LeaseDown(
        resume=engine_pb2.Resume(
            pause_id=pause_id,
            version=version,
            stream=stream.to_proto(),
            state_token=delta_pb2.Digest(lane0=0xAB, lane1=0xCD),
        )
    )


def pause(pause_id: int) -> Any:
    return engine_pb2.LeaseDown(pause=engine_pb2.Pause(pause_id=pause_id))


def slice_elements(layout: Any) -> list[tuple[int, int]]:
    """(elements, bytes of one) for each rank slice of a RankLayout message."""
    sizes = {1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 2, 8: 2, 9: 2, 10: 2}
    found = []
    for shard in layout.shards:
        spec = shard.tensor
        itemsize = sizes.get(spec.dtype, 8 if spec.dtype > 13 else 4)
        extents = [[extent] for extent in spec.shape]
        grid = [(cuts.dim, cuts.at) for cuts in spec.grid] or [(spec.cut_dim, spec.cuts)]
        cells = [(c.first, c.count) for c in shard.cells]
        cells = cells or [(shard.first_slice, shard.slice_count)]
        for (dim, at), (first, count) in zip(grid, cells):
            if spec.shape:
                bounds = [0, *at, spec.shape[dim]]
                extents[dim] = list(np.diff(bounds))[first : first + count]
        for box in itertools.product(*extents):
            found.append((int(np.prod(box, dtype=np.int64)), itemsize))
    return found


def _map_read_only(descriptor: int) -> bytes:
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
        return mapped[:]
