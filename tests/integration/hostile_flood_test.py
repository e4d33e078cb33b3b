"""Clients that send too much, too slowly, nothing or invalid bytes, and many of them."""

import random
import socket
import threading
import time
import unittest
from typing import Any, Callable, Optional

import grpc

from dws._proto import admin_pb2, engine_pb2, sync_pb2, trainer_pb2
from tests.integration.certificates import Files
from tests.integration.hostile_case import HostileCase, ask_status, channel, code_of
from tests.integration.integration_case import eventually

CONNECTIONS = 10_000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SLOW_SECONDS = 40.0
FUZZ_CALLS = 30  # of each method


def tcp(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20)


def unix(path: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, kind)
    connection.connect(path)  # waits for room in the queue; with a timeout it would fail instead
    connection.settimeout(20)
    return connection


class FloodTest(HostileCase):
    def drop(self, connect: Callable[[], socket.socket], words: bytes = b"") -> None:
        """Opens and drops CONNECTIONS, half of them after some bytes."""
        for index in range(CONNECTIONS):
            try:
                with connect() as connection:
                    if index % 2 == 1:
                        connection.sendall(words)
            except OSError:
                pass  # refused, or the daemon hung up first; both are allowed

    def test_dropped_connections_to_the_tls_port_change_nothing(self) -> None:
        self.drop(lambda: tcp(self.sender.ports["sync"]), b"\x16\x03\x01\x02\x00\x01")

    def test_dropped_connections_to_the_unix_socket_change_nothing(self) -> None:
        self.drop(lambda: unix(self.receiver.socket), PREFACE)

    def test_dropped_connections_to_the_handle_socket_change_nothing(self) -> None:
        path = self.sender.socket + ".handles"
        self.drop(lambda: unix(path, socket.SOCK_SEQPACKET), b"x" * 20)

    def test_dropped_connections_to_http_change_nothing(self) -> None:
        self.drop(lambda: tcp(self.sender.ports["http"]), b"GET /healthz HT")

    def test_silent_clients_beyond_a_unix_sockets_limit_are_disconnected(self) -> None:
        clients = [unix(self.sender.socket) for _ in range(400)]
        self.addCleanup(lambda: [client.close() for client in clients])
        eventually(lambda: "the limit is 256" in self.sender.log_tail(2000), self.sender.log_tail)
        # Wait five seconds: the silent clients among the first are disconnected after ten.
        ended = sum(_ends(client, 5) for client in clients[256:])
        self.assertEqual(ended, 400 - 256)
        # Silent clients are disconnected, and then there is room again.
        eventually(lambda: _ends(clients[0]), lambda: "the first client is still connected")
        with grpc.insecure_channel(f"unix:{self.sender.socket}") as connection:
            eventually(lambda: code_of(lambda: ask_status(connection, 2)) == grpc.StatusCode.OK,
                       self.sender.log_tail)  # fmt: skip


def _ends(client: socket.socket, seconds: float = 1) -> bool:
    """Returns whether the daemon disconnects it within `seconds`."""
    client.settimeout(seconds)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


class SlowTest(HostileCase):
    def test_clients_that_never_finish_are_disconnected(self) -> None:
        sync, http = self.sender.ports["sync"], self.sender.ports["http"]
        slow = {
            "TLS, nothing": (tcp(sync), b""),
            "TLS, byte by byte": (
                tcp(sync),
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500,
            ),
            "unix, nothing": (unix(self.sender.socket), b""),
            "unix, preface byte by byte": (unix(self.sender.socket), PREFACE),
            "handles, nothing": (unix(self.sender.socket + ".handles", socket.SOCK_SEQPACKET), b""),
            "HTTP, nothing": (tcp(http), b""),
            "HTTP, head byte by byte": (
                tcp(http),
                b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * 99,
            ),
        }
        ended: dict[str, float] = {}
        threads = [
            threading.Thread(target=_drip, args=(name, *each, ended)) for name, each in slow.items()
        ]
        for thread in threads:
            thread.start()
        # Meanwhile other clients are served.
        while any(thread.is_alive() for thread in threads):
            self.assertEqual(self.state(self.sender), self.before[0])
            threads[0].join(1)
            for thread in threads:
                thread.join(0.1)
        self.assertEqual(sorted(ended), sorted(slow), "those that are not here were never ended")


def _drip(name: str, connection: socket.socket, words: bytes, ended: dict[str, float]) -> None:
    """Sends a byte a second until the other end hangs up."""
    begin = time.monotonic()
    position = 0
    with connection:
        while time.monotonic() < begin + SLOW_SECONDS:
            try:
                if position < len(words):
                    connection.send(words[position : position + 1])
                    position += 1
                connection.settimeout(1)
                if connection.recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            return
    ended[name] = time.monotonic() - begin


class OversizedTest(HostileCase):
    def test_a_message_beyond_the_limit_is_refused(self) -> None:
        large = bytes(65 << 20)
        for files, target in (
            (self.operator, f"127.0.0.1:{self.sender.ports['sync']}"),
            (None, f"unix:{self.sender.socket}"),
        ):
            with _channel(target, files) as connection:
                call = connection.unary_unary("/dws.v1.AdminService/Status")
                code = code_of(lambda: call(large, timeout=20))
                self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_a_head_beyond_the_limit_is_refused(self) -> None:
        with channel(self.sender.ports["sync"], self.operator) as connection:
            call = connection.unary_unary("/dws.v1.AdminService/Status")
            code = code_of(lambda: call(b"", timeout=20, metadata=[("x-large", "x" * 100_000)]))
            self.assertNotEqual(code, grpc.StatusCode.OK)

    def test_an_http_head_beyond_the_limit_is_refused(self) -> None:
        with tcp(self.sender.ports["http"]) as connection:
            try:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Large: " + b"x" * (8 << 20))
                reply = connection.recv(100)
            except OSError:
                reply = b""
        self.assertNotIn(b" 200 ", reply)


def _channel(target: str, files: Optional[Files]) -> grpc.Channel:
    if target.startswith("unix:"):
        return grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
    return channel(int(target.rpartition(":")[2]), files)


class FuzzTest(HostileCase):
    """Fuzzes every method with bytes that are no message and with messages that make no sense."""

    SEED = 20

    def mutate(self, message: Any) -> bytes:
        """A message of the type filled at random, and often damaged afterwards."""
        self.fill(message, 0)
        data = bytearray(message.SerializePartialToString())
        how = self.random.randrange(4)
        if how == 1 and data:
            for _ in range(self.random.randint(1, 8)):
                data[self.random.randrange(len(data))] = self.random.randrange(256)
        elif how == 2:
            data = data[: self.random.randint(0, len(data))]
        elif how == 3:
            data += self.random.randbytes(self.random.randint(0, 40))
        return bytes(data)

    def fill(self, message: Any, depth: int) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.random.random() < 0.4 or depth > 4:
                continue
            repeated = field.label == field.LABEL_REPEATED
            for _ in range(self.random.choice([1, 2, 5]) if repeated else 1):
                if field.message_type is not None:
                    part = getattr(message, field.name)
                    self.fill(part.add() if repeated else part, depth + 1)
                    continue
                value = self.value(field)
                if repeated:
                    getattr(message, field.name).append(value)
                else:
                    setattr(message, field.name, value)

    def value(self, field: Any) -> Any:
        if field.name == "session":
            return self.random.getrandbits(64) | 2**63  # belongs to nobody
        if field.cpp_type == field.CPPTYPE_STRING:
            size = self.random.choice([0, 1, 16, 300, 5000])
            if field.type == field.TYPE_BYTES:
                return self.random.randbytes(size)
            return self.random.choice(["test", "receiver-0", "w", "\u00e9" * size, "x" * size])
        if field.cpp_type == field.CPPTYPE_BOOL:
            return self.random.random() < 0.5
        if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
            return self.random.choice([0.0, -1.0, 1e308, float("nan"), float("inf")])
        if field.cpp_type == field.CPPTYPE_ENUM:
            return self.random.choice([0, 1, 2, 99])
        bits = 31 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 63
        return self.random.choice([0, 1, 2, 65536, 2**bits - 1, self.random.getrandbits(bits)])

    def setUp(self) -> None:
        super().setUp()
        print(f"seed {self.SEED}")
        self.random = random.Random(self.SEED)

    def throw(self, connection: grpc.Channel, module: Any, skip: tuple[str, ...] = ()) -> None:
        calls = 0
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                if method.name in skip:
                    continue
                for _ in range(FUZZ_CALLS):
                    kind = getattr(module, method.input_type.name)
                    requests = [self.mutate(kind()) for _ in range(self.random.randint(1, 3))]
                    call = connection.stream_stream(f"/{service.full_name}/{method.name}")
                    code_of(lambda: _first(call(iter(requests), timeout=0.25)))
                    calls += 1
        self.assertGreater(calls, FUZZ_CALLS)

    def test_fuzzing_the_sync_service_changes_nothing(self) -> None:
        files = self.authority.issue("fuzz-r", "dws://test/receive/fuzz")
        with channel(self.sender.ports["sync"], files) as connection:
            self.throw(connection, sync_pb2)
        # Its connections are closed; the sender only remembers that this client connected.
        self.before[0] = self.state(self.sender)

    def test_fuzzing_the_admin_service_changes_nothing(self) -> None:
        for port in (self.sender.ports["sync"], self.receiver.ports["admin"]):
            with channel(port, self.operator) as connection:
                # Any bytes that parse are valid orders for these methods.
                self.throw(connection, admin_pb2, skip=("Drain", "Resync"))

    def test_fuzzing_the_trainer_service_changes_nothing(self) -> None:
        with _channel(f"unix:{self.sender.socket}", None) as connection:
            self.throw(connection, trainer_pb2)

    def test_fuzzing_the_engine_service_changes_nothing(self) -> None:
        with _channel(f"unix:{self.receiver.socket}", None) as connection:
            self.throw(connection, engine_pb2)


def _first(call: Any) -> None:
    for _ in call:
        call.cancel()
        return


if __name__ == "__main__":
    unittest.main()
