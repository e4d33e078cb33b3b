"""dws.ray with real daemons, and a stand-in for Ray: they find each other, are restarted, and follow a sender that moves."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Callable

import numpy as np

import dws
from tests.clients.python.ray import stand_in_ray
from tests.integration.cluster import RECEIVER, SENDER

RAY = stand_in_ray.install()

import dws.ray  # noqa: E402

WAIT_SECONDS = 60.0
SIZE = 1000


def flags(daemon: dws.ray.RayDaemon, name: str) -> list[str]:
    found = Path(f"/proc/{daemon.pid}/cmdline").read_text().split("\0")
    return [flag.partition("=")[2] for flag in found if flag.startswith(f"--{name}=")]


class RayDaemonsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.top = folder.name
        self.addCleanup(RAY.actors.clear)
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)

    def on(self, node: str, start: Callable[..., dws.ray.RayDaemon], *arguments: Any, **options: Any) -> dws.ray.RayDaemon:
        """A daemon on a node, each of which has a run folder of its own."""
        RAY.node = node
        program = SENDER if start is dws.ray.sender else RECEIVER
        options = {"program": program, "run_dir": f"{self.top}/{node}", "insecure": True, "stop_timeout": 5, **options}
        return self.stack.enter_context(start("job", *arguments, **options))

    def eventually(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def trainers(self, *senders: dws.ray.RayDaemon) -> tuple[list[dws.Trainer], list[Any]]:
        stream = dws.Stream.new()
        made = [self.stack.enter_context(dws.Trainer(each.socket, "job", rank, len(senders), stream)) for rank, each in enumerate(senders)]
        return made, [each.register({f"r{rank}": np.zeros(SIZE, np.float32)})[f"r{rank}"] for rank, each in enumerate(made)]

    def engine(self, receiver: dws.ray.RayDaemon, ranks: int) -> tuple[dws.Engine, dict[str, Any]]:
        engine = self.stack.enter_context(dws.Engine(receiver.socket))
        return engine, engine.attach({f"r{rank}": np.ones(SIZE, np.float32) for rank in range(ranks)}, timeout=WAIT_SECONDS)

    def follows(self, trainers: tuple[list[dws.Trainer], list[Any]], engine: dws.Engine, live: dict[str, Any], version: int) -> None:
        for trainer, weights in zip(*trainers):
            weights[version] += trainer.rank + version
            trainer.publish(version)

        def arrived() -> bool:
            with engine.running(WAIT_SECONDS) as grant:
                return (grant.stream, grant.version) == (trainers[0][0].stream, version)

        self.eventually(arrived, f"version {version} has not come")
        with engine.running(WAIT_SECONDS):
            for rank, weights in enumerate(trainers[1]):
                np.testing.assert_array_equal(live[f"r{rank}"].view(np.uint32), weights.view(np.uint32))

    def test_a_receiver_that_was_first_follows_senders_of_its_node_and_of_others(self) -> None:
        receiver = self.on("a", dws.ray.receiver, "r", start_timeout=0)
        self.assertIsNone(receiver.pid)
        with self.assertRaisesRegex(dws.DaemonUnavailableError, "receiver 'r' of job 'job' does not run"):
            receiver.check()
        senders = [self.on("b", dws.ray.sender, 0, 2), self.on("a", dws.ray.sender, 1, 2)]
        receiver.wait_serving(WAIT_SECONDS)
        self.assertRegex(flags(receiver, "sender")[0], r"^127\.0\.0\.1:\d+$")
        self.assertEqual(flags(receiver, "sender")[1:], [f"unix:{senders[1].socket}"])
        trainers = self.trainers(*senders)
        engine, live = self.engine(receiver, 2)
        for version in (1, 2):
            self.follows(trainers, engine, live, version)
        self.stack.close()
        self.assertEqual([name for node in ("a", "b") for name in os.listdir(f"{self.top}/{node}")], [])
        self.assertEqual(RAY.actors, {})

    def test_what_ends_by_itself_is_told_and_started_again_on_its_port_with_its_state(self) -> None:
        sender = self.on("b", dws.ray.sender)
        receiver = self.on("a", dws.ray.receiver, "r")
        trainers = self.trainers(sender)
        engine, live = self.engine(receiver, 1)
        self.follows(trainers, engine, live, 1)
        address = flags(receiver, "sender")
        for daemon in (receiver, sender):
            before = daemon.pid or 0
            with self.assertLogs("dws.ray", logging.ERROR) as logged:
                os.kill(before, signal.SIGKILL)
                self.eventually(lambda daemon=daemon, before=before: daemon.pid not in (None, before), "it is not started again")
            self.assertRegex(logged.output[0], f"{daemon.name} is started again in 1 s: .* has ended by itself: SIGKILL")
            daemon.check()
        trainers[0][0].reconnect(WAIT_SECONDS)
        self.assertEqual(trainers[0][0].last_version, 1)  # of the ledger
        self.assertEqual(flags(receiver, "sender"), address)
        self.follows(trainers, engine, live, 2)

    def test_receivers_follow_a_sender_that_comes_back_elsewhere_and_engines_go_on(self) -> None:
        sender = self.on("b", dws.ray.sender)
        receiver = self.on("a", dws.ray.receiver, "r")
        engine, live = self.engine_after(sender, receiver)
        before = receiver.pid
        sender.close()
        moved = self.on("c", dws.ray.sender)
        trainers = self.trainers(moved)
        self.follows(trainers, engine, live, 1)
        self.assertNotEqual(receiver.pid, before)
        receiver.check()

    def engine_after(self, sender: dws.ray.RayDaemon, receiver: dws.ray.RayDaemon) -> tuple[dws.Engine, dict[str, Any]]:
        trainers = self.trainers(sender)
        engine, live = self.engine(receiver, 1)
        self.follows(trainers, engine, live, 1)
        for trainer in trainers[0]:
            trainer.close()
        return engine, live

    def test_a_sender_of_a_killed_owner_leaves_its_port_to_the_next_one(self) -> None:
        first = self.on("b", dws.ray.sender)
        port = flags(self.on("a", dws.ray.receiver, "r"), "sender")
        first._leave()  # as if its owner had been killed: nothing is removed, the table ends
        first._daemon.kill()
        self.on("b", dws.ray.sender)
        self.assertEqual(flags(self.on("d", dws.ray.receiver, "other"), "sender"), port)

    def test_the_later_one_of_a_name_takes_the_place_of_the_one_before(self) -> None:
        self.on("b", dws.ray.sender)
        first = self.on("a", dws.ray.receiver, "r")
        with self.assertLogs("dws.ray", logging.ERROR):
            second = self.on("c", dws.ray.receiver, "r")
            self.eventually(lambda: first.pid is None, "the first one has not ended")
        with self.assertRaisesRegex(dws.StateError, "receiver 'r' of job 'job' was stopped: a later one has taken its place, node"):
            first.check()
        second.check()

    def test_mistakes_that_do_not_pass_are_told_and_not_tried_again(self) -> None:
        self.on("b", dws.ray.sender)
        with self.assertLogs("dws.ray", logging.ERROR), self.assertRaisesRegex(dws.DaemonFailedError, "(?s)exit status 2.*scrub-rat"):
            self.on("a", dws.ray.receiver, "r", scrub_rat=1)

    def test_a_node_without_tcp_is_named(self) -> None:
        self.on("b", dws.ray.sender, insecure=None)
        with self.assertRaisesRegex(dws.DeadlineError, "sender of rank 0 on node 127.0.0.1, process .* listens on no TCP address"):
            self.on("a", dws.ray.receiver, "r", start_timeout=1.5)
        self.on("b", dws.ray.receiver, "same-node", insecure=None).check()

    def test_a_driver_puts_a_daemon_beside_an_actor(self) -> None:
        actor = stand_in_ray.Actor(type("Any", (), {"__ray_call__": lambda self, call, *rest: call(self, *rest)})(), None)
        RAY.node = "a"
        socket = dws.ray.beside(actor, dws.ray.sender, "job", program=SENDER, run_dir=self.top, stop_timeout=5)
        self.assertTrue(os.path.exists(socket))
        (daemon,) = dws.ray.daemon._running
        self.stack.enter_context(daemon)
        self.assertEqual(daemon.socket, socket)


if __name__ == "__main__":
    unittest.main()
