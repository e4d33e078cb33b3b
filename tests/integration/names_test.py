"""Names with control characters are escaped in errors, logs, status and exceptions."""

from __future__ import annotations

import subprocess
import unittest
import unicodedata

import grpc
import numpy as np

import dws
from dws._proto import engine_pb2, engine_pb2_grpc, sync_pb2, sync_pb2_grpc, trainer_pb2
from dws._proto import trainer_pb2_grpc
from tests.integration.cluster import PROTOCOL_MAJOR
from tests.integration.integration_case import IntegrationCase, eventually

DWSCTL = "tools/dwsctl/dwsctl"
# A new line that forges a log level, colour, a title, C1's CSI, reversed text, invisible characters.
HOSTILE = "x\nE forged\r\x1b[31m\x1b]0;title\x07\x9b2J\u202etxt\u200b\u2028\x7f"
ESCAPED = r"x\x0aE forged\x0d\x1b[31m\x1b]0;title\x07\x9b2J\u202etxt\u200b\u2028\x7f"


class NamesTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.start()
        self.sender, self.receiver = self.cluster.senders[0], self.cluster.receivers[0]

    def check(self, text: str, lines: bool = False) -> None:
        for character in text.replace("\n", "") if lines else text:
            if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp"):
                self.fail(f"{character!r} in {text!r}")

    def check_error(self, call: object) -> str:
        with self.assertRaises(grpc.RpcError) as caught:
            call()  # type: ignore[operator]
        details: str = caught.exception.details()
        self.check(details)
        return details

    def channel(self, target: str) -> grpc.Channel:
        channel = grpc.insecure_channel(target)
        self.addCleanup(channel.close)
        return channel

    def test_the_clients_exceptions_escape_names(self) -> None:
        trainer = dws.Trainer(self.sender.socket, HOSTILE)
        self.addCleanup(trainer.close)
        with self.assertRaises(dws.DwsError) as caught:
            trainer.register({HOSTILE: np.zeros(3, np.float32)})
        self.check(str(caught.exception))
        self.assertIn(ESCAPED, str(caught.exception))
        good = self.trainer()
        views = good.register({HOSTILE: np.zeros(3, np.float32)})
        self.assertEqual(list(views), [HOSTILE])  # the name itself is unchanged
        with self.assertRaises(dws.DwsError) as caught:
            self.engine().attach({HOSTILE: np.zeros(4, np.float32)}, timeout=20)
        self.assertIn(ESCAPED, str(caught.exception))
        self.check(str(caught.exception))

    def test_the_daemons_errors_escape_names(self) -> None:
        trainers = trainer_pb2_grpc.TrainerServiceStub(self.channel(f"unix:{self.sender.socket}"))
        request = trainer_pb2.RegisterRequest(job_id=HOSTILE, world_size=1, client=HOSTILE)
        self.check_error(lambda: trainers.Register(request, timeout=20))
        trainer = self.trainer()
        trainer.register({HOSTILE: np.zeros(3, np.float32)})
        engines = engine_pb2_grpc.EngineServiceStub(self.channel(f"unix:{self.receiver.socket}"))
        attach = engine_pb2.AttachRequest(engine_world_size=1, client=HOSTILE)
        attach.views.add(engine_name=HOSTILE, tensor=HOSTILE + "?", dtype=1, whole=True)
        attach.regions.add(size_bytes=4096)
        self.assertIn(ESCAPED, self.check_error(lambda: engines.Attach(attach, timeout=20)))

    def test_a_receivers_name_and_errors_are_escaped(self) -> None:
        trainer = self.trainer()
        trainer.register({"w": np.zeros(3, np.float32)})
        trainer.publish(1)
        address = f"unix:{self.sender.socket}"
        stub = sync_pb2_grpc.SyncServiceStub(self.channel(address))
        done = self.enterContext(_Requests(stub))
        done.send(hello=sync_pb2.Hello(job_id="test", receiver_id=HOSTILE, protocol_major=PROTOCOL_MAJOR))
        nonce = done.announcement()
        done.send(
            nack=sync_pb2.Nack(
                nonce=nonce, version=1, code=15, message=HOSTILE, stream=trainer.stream.to_proto()
            )
        )
        status = [DWSCTL, "status", f"--socket={self.sender.socket}"]
        eventually(lambda: "forged" in self.run_command(status), lambda: self.run_command(status))
        for more in ([], ["--json"]):
            self.check(self.run_command([*status, *more]), lines=True)
        with self.assertRaises(dws.NotCommittedError) as caught:
            trainer.wait(1, 5, timeout=0.2)
        self.assertIn(ESCAPED, str(caught.exception))
        self.check(str(caught.exception))
        self.assertIn(HOSTILE, [r.receiver_id for r in caught.exception.missing])
        for page in ("/metrics", "/readyz"):
            self.check(self.sender.page(page).replace("\n", ""))
        for daemon in (self.sender, self.receiver):
            with open(daemon.log_path, encoding="utf-8") as log:
                self.check(log.read(), lines=True)
        self.assertNotIn("\nE forged", self.sender.log_tail(1000))

    def run_command(self, command: list[str]) -> str:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return result.stdout + result.stderr


class _Requests:
    """A Sync stream by hand."""

    def __init__(self, stub: sync_pb2_grpc.SyncServiceStub) -> None:
        import queue

        self._up: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._call = stub.Sync(iter(self._up.get, None))

    def send(self, **message: object) -> None:
        self._up.put(sync_pb2.SyncUp(**message))  # type: ignore[arg-type]

    def announcement(self) -> int:
        for message in self._call:
            if message.HasField("announce"):
                return int(message.nonce)
        raise AssertionError("the stream ended")

    def __enter__(self) -> "_Requests":
        return self

    def __exit__(self, *unused: object) -> None:
        self._up.put(None)
        self._call.cancel()


if __name__ == "__main__":
    unittest.main()
