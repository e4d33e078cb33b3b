"""What another user of the same machine tries against a job. Started as root, it becomes the user nobody
once all modules are loaded:

    stranger.py connect PATH...       connects to unix sockets
    stranger.py call ADDRESS          fetches, asks and orders at a plain TCP address
    stranger.py serve PATH            takes the path of a sender's socket, until its stdin ends

Each prints its result as one line of JSON; `serve` first prints a line when it listens.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from concurrent import futures
from typing import Any, Iterator

import grpc

from dws._proto import admin_pb2, admin_pb2_grpc, sync_pb2, sync_pb2_grpc
from tests.integration.cluster import PROTOCOL_MAJOR

NOBODY = 65534
CALL_SECONDS = 20.0
# The operators' calls that change something.
ORDERS = {
    method.name: getattr(admin_pb2, method.input_type.name)()
    for method in admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods
    if method.name not in ("Status", "Watch")
}


def become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            return type(error).__name__
    return "connected"


def call(address: str) -> dict[str, list[str]]:
    """Returns code and details of each call."""
    outcomes: dict[str, list[str]] = {}
    with grpc.insecure_channel(address) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        for name, request in ORDERS.items():
            try:
                for _ in getattr(admin, name)(request, timeout=CALL_SECONDS):
                    pass
                outcomes[name] = ["OK", ""]
            except grpc.RpcError as error:
                outcomes[name] = [error.code().name, error.details()]  # type: ignore[attr-defined]
        status = admin.Status(admin_pb2.StatusRequest(), timeout=CALL_SECONDS)
        outcomes["Status"] = ["OK", status.job_id]
    return outcomes


class Impostor(sync_pb2_grpc.SyncServiceServicer):
    """Claims to be the sender of a stream above all others."""

    def __init__(self) -> None:
        self.hellos = 0

    def Sync(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        self.hellos += 1
        next(request_iterator)
        welcome = sync_pb2.Welcome(job_id="test", protocol_major=PROTOCOL_MAJOR)
        welcome.stream.incarnation = 2**64 - 1
        yield sync_pb2.SyncDown(welcome=welcome)
        for _ in request_iterator:
            pass


def serve(path: str) -> dict[str, int]:
    impostor = Impostor()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    sync_pb2_grpc.add_SyncServiceServicer_to_server(impostor, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    os.chmod(path, 0o666)
    print(json.dumps("listening"), flush=True)
    sys.stdin.read()
    server.stop(None).wait()
    return {"hellos": impostor.hellos}


def main() -> None:
    command, *arguments = sys.argv[1:]
    become_nobody()
    outcome: Any
    if command == "connect":
        outcome = [connect(path) for path in arguments]
    elif command == "call":
        outcome = call(arguments[0])
    else:
        outcome = serve(arguments[0])
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
