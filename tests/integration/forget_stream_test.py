"""Incarnations that would shut out every later trainer: refused if they are ahead of the clock,
and otherwise forgotten by an operator."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import unittest
from concurrent import futures
from typing import Any, Iterator

import grpc
import numpy as np

import dws
from dws._proto import delta_pb2, sync_pb2, sync_pb2_grpc
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually, welcome_of

DWSCTL = os.path.abspath("tools/dwsctl/dwsctl")
SHAPE = (300, 500)
HIGHEST = (1 << 64) - 1
HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class LyingSender(sync_pb2_grpc.SyncServiceServicer):
    """Sends every receiver the same welcome."""

    def __init__(self, welcome: Any, address: str) -> None:
        self.welcome = welcome
        self.greeted = 0
        self._over = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        sync_pb2_grpc.add_SyncServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(address)
        self._server.start()

    def Sync(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        next(requests)
        self.greeted += 1
        yield sync_pb2.SyncDown(nonce=HIGHEST - 1, welcome=self.welcome)
        announce = sync_pb2.Announce(
            stream=self.welcome.stream, rank_epoch=self.welcome.rank_epoch, versions=[HIGHEST]
        )
        yield sync_pb2.SyncDown(nonce=HIGHEST, announce=announce)
        while context.is_active() and not self._over.wait(0.05):
            pass

    def stop(self) -> None:
        self._over.set()
        self._server.stop(0).wait()


class ForgetStreamTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(31)
        # Plain TCP, where anybody can listen at the address of a sender that is down.
        self.sender = self.cluster.start_sender(0, "--insecure")

    def registered(self, incarnation: int) -> tuple[dws.Trainer, Any]:
        trainer = self.trainer(stream=dws.Stream.new(incarnation))
        return trainer, trainer.register({"w": self.random.standard_normal(SHAPE, np.float32)})

    def publish(self, trainer: dws.Trainer, source: Any) -> None:
        change(source["w"], self.random, 0.01)
        trainer.publish(trainer.last_version + 1)

    def check(self, trainer: dws.Trainer, source: Any) -> None:
        """Checks that the engine has this trainer's newest version."""
        eventually(
            lambda: self.reader.grant is not None
            and (self.reader.grant.stream, self.reader.grant.version)
            == (trainer.stream, trainer.last_version),
            lambda: f"{trainer.stream}: the engine has {self.reader.grant}",
        )
        self.assert_same_weights(self.reader, self.live, source)

    def start_engine(self) -> None:
        self.receiver = self.cluster.start_receiver("receiver-0", "--insecure")
        self.reader = self.engine(self.receiver)
        self.live = self.reader.attach({"w": np.zeros(SHAPE, np.float32)})

    def dwsctl(self, code: int, *args: str) -> str:
        ran = subprocess.run([DWSCTL, *args], capture_output=True, text=True, timeout=120)
        self.assertEqual(ran.returncode, code, f"{args}: {ran.stdout}{ran.stderr}")
        return ran.stdout + ran.stderr

    def status_of(self, daemon: Daemon) -> str:
        command = [DWSCTL, "status", "--socket", daemon.socket]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout

    def forget(self, daemon: Daemon, stream: dws.Stream) -> str:
        socket = ("--socket", daemon.socket)
        self.assertIn(f"--stream={stream}", self.dwsctl(4, "forget-stream", *socket))
        return self.dwsctl(0, "forget-stream", "--stream", str(stream), *socket)

    def test_an_incarnation_ahead_of_the_clock_is_refused_at_registration(self) -> None:
        for incarnation in (HIGHEST, now_ms() + 25 * HOUR_MS):
            with self.assertRaisesRegex(dws.DwsError, "ahead of this host's clock"):
                self.registered(incarnation)
        trainer, source = self.registered(5)  # a job's restart counter
        self.start_engine()
        self.publish(trainer, source)
        self.check(trainer, source)

    def test_a_receiver_refuses_a_sender_ahead_of_the_clock_and_follows_the_real_one(self) -> None:
        trainer, source = self.registered(now_ms())
        self.publish(trainer, source)
        poisons = {
            "its incarnation": {
                "stream": delta_pb2.StreamId(incarnation=HIGHEST, id_hi=6, id_lo=6)
            },
            "its rank epoch": {"rank_epoch": HIGHEST},
        }
        address = f"127.0.0.1:{self.sender.ports['sync']}"
        truth = welcome_of(f"127.0.0.1:{self.sender.ports['sync']}")
        for number, (reason, fields) in enumerate(poisons.items()):
            welcome = sync_pb2.Welcome()
            welcome.CopyFrom(truth)
            welcome.MergeFrom(sync_pb2.Welcome(**fields))
            # The liar listens at the sender's address while that is down.
            self.sender.kill()
            liar = LyingSender(welcome, address)
            self.addCleanup(liar.stop)
            self.assertEqual(liar.port, self.sender.ports["sync"])
            if number == 0:
                self.receiver = self.cluster.start_receiver("receiver-0", "--insecure")
            eventually(
                lambda: f"{reason} {HIGHEST} is ahead of this host"
                in self.receiver.log_tail(1000),
                lambda: self.receiver.log_tail(50),
            )
            # The liar is asked again, because the clock may be right by then.
            eventually(lambda: liar.greeted >= 2, lambda: self.receiver.log_tail(50))
            liar.stop()
            self.sender.start()
            trainer.reconnect()
            if number == 0:
                self.reader = self.engine(self.receiver)
                self.live = self.reader.attach({"w": np.zeros(SHAPE, np.float32)})
            self.publish(trainer, source)
            self.check(trainer, source)

    def test_a_trainer_that_is_shut_out_is_followed_after_the_stream_is_forgotten(self) -> None:
        wrong, wrong_source = self.registered(now_ms() + 12 * HOUR_MS)  # a clock that is ahead
        self.start_engine()
        self.publish(wrong, wrong_source)
        self.check(wrong, wrong_source)
        self.assertIn(
            "stop it first",
            self.dwsctl(
                4, "forget-stream", "--stream", str(wrong.stream), "--socket", self.sender.socket
            ),
        )
        wrong.close()
        eventually(
            lambda: "trainer   present" not in self.status_of(self.sender),
            lambda: self.status_of(self.sender),
        )
        with self.assertRaisesRegex(dws.DwsError, "dwsctl forget-stream"):
            self.registered(now_ms())
        self.assertIn("is forgotten; start the trainer", self.forget(self.sender, wrong.stream))
        with self.assertRaisesRegex(dws.StateError, r"forget it.*dws\.Stream\.new\(\)"):
            again = self.trainer(stream=wrong.stream)
            again.register({"w": np.zeros(SHAPE, np.float32)})
        # The receiver still refuses the lower stream until it forgets too.
        right, right_source = self.registered(now_ms())
        self.publish(right, right_source)
        eventually(
            lambda: "dwsctl forget-stream" in self.receiver.log_tail(1000),
            lambda: self.receiver.log_tail(50),
        )
        self.forget(self.receiver, wrong.stream)
        self.check(right, right_source)
        self.publish(right, right_source)
        self.check(right, right_source)
        # Nothing of the stream is left on disk.
        self.receiver.kill()
        self.receiver.start()
        self.publish(right, right_source)
        self.check(right, right_source)

    def test_an_engine_whose_stream_was_forgotten_is_paused_until_a_version_is_proved(self) -> None:
        trainer, source = self.registered(now_ms())
        self.start_engine()
        self.publish(trainer, source)
        self.check(trainer, source)
        self.sender.stop()
        self.forget(self.receiver, trainer.stream)
        with self.assertRaises(dws.DwsError):
            self.reader.wait_ready(0.5)
        self.assertIn("503", self.dwsctl_ready())
        self.sender.start()
        trainer.reconnect()
        self.publish(trainer, source)
        self.check(trainer, source)

    def test_forget_stream_waits_for_a_running_engine_beyond_the_silence_timeout(self) -> None:
        trainer, source = self.registered(now_ms())
        self.start_engine()
        self.publish(trainer, source)
        self.check(trainer, source)
        self.sender.stop()
        order: list[str] = []
        timeout = ("--timeout", "1")  # 1 s of silence
        command = ("forget-stream", "--stream", str(trainer.stream), "--socket", self.receiver.socket)
        waiting = threading.Thread(target=lambda: order.append(self.dwsctl(0, *command, *timeout)))
        with self.reader.running():
            waiting.start()
            time.sleep(4)
            self.assertEqual(order, [])  # it waits: the engine computes with the weights
            self.assertIn(str(trainer.stream), self.status_of(self.receiver))
        waiting.join(30)
        self.assertEqual(len(order), 1)
        self.assertIn("waits for its turn", order[0])
        self.assertIn("is forgotten; its engine runs again once", order[0])
        with self.assertRaises(dws.DwsError):
            self.reader.wait_ready(0.5)

    def dwsctl_ready(self) -> str:
        """The receiver's /readyz code, as a probe sees it."""
        try:
            return self.receiver.page("/readyz")
        except OSError as error:  # includes urllib's HTTPError
            return str(error)


if __name__ == "__main__":
    unittest.main()
