"""dwsctl against real daemons that a real trainer and a real engine use."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import grpc
import numpy as np

from dws._proto import sync_pb2, sync_pb2_grpc
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually, welcome_of

DWSCTL = os.path.abspath("tools/dwsctl/dwsctl")
SHAPES = {"a.weight": (300, 700), "b.weight": (64, 64)}


def dwsctl(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([DWSCTL, *args], capture_output=True, text=True, timeout=120)


class DwsctlTest(IntegrationCase):

    def setUp(self) -> None:
        super().setUp()
        self.start()
        self.sender = self.cluster.senders[0]
        self.receiver = self.cluster.receivers[0]
        self.publisher = self.trainer()
        self.weights = self.publisher.register(
            {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        )
        self.random = np.random.default_rng(7)
        self.rollout = self.engine()
        self.live = self.rollout.attach(
            {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        )
        for version in range(1, 4):
            self.publish(version)
        self.await_version(self.rollout, 3)

    def publish(self, version: int, wait: bool = True) -> None:
        for array in self.weights.values():
            change(array, self.random, 0.01)
        self.publisher.publish(version)
        if wait:
            self.publisher.wait(version, policy="all", timeout=60)

    def ask(self, daemon: Daemon, *args: str, code: int = 0) -> str:
        """Runs a command at the daemon's unix socket; checks its exit code and returns its output."""
        ran = dwsctl(*args, "--socket", daemon.socket)
        self.assertEqual(ran.returncode, code, f"{args}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    def ask_json(self, daemon: Daemon, *args: str, code: int = 0) -> Any:
        return json.loads(self.ask(daemon, *args, "--json", code=code).splitlines()[-1])

    def status(self, daemon: Daemon) -> Any:
        ran = dwsctl("status", "--json", "--socket", daemon.socket)
        self.assertIn(ran.returncode, (0, 1), ran.stderr)  # 1: not ready, for example drained
        return json.loads(ran.stdout)

    def test_status_tables_and_watch_show_what_was_published_and_committed(self) -> None:
        self.assertIn("committed 3, newest offered 3", self.ask(self.receiver, "status"))
        self.assertIn("trainer   present", self.ask(self.sender, "status"))
        versions = json.loads(self.ask(self.sender, "versions", "--json"))["versions"]
        self.assertEqual([version["version"] for version in versions], ["1", "2", "3"])
        self.assertEqual(versions[-1]["committed"], 1)
        receivers = json.loads(self.ask(self.sender, "receivers", "--json"))["receivers"]
        self.assertEqual(receivers[0]["receiver_id"], "receiver-0")
        self.assertEqual(receivers[0]["committed_version"], "3")
        last = json.loads(self.ask(self.receiver, "versions", "--json"))["last_commit"]
        self.assertEqual(last["version"], "3")
        self.assertLess(int(last["fetched_bytes"]), int(last["full_bytes"]) / 10)
        ran = dwsctl(
            "watch", "--once", "--socket", self.sender.socket, "--socket", self.receiver.socket
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("receiver-0: version 3, lag 0,", ran.stdout)
        self.assertIn("sender 0: version 3, lag 0,", ran.stdout)

    def test_watch_shows_that_a_daemon_stops_and_returns(self) -> None:
        command = [DWSCTL, "watch", "--json", "--interval=0.1", "--socket", self.receiver.socket]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            self.addCleanup(watch.kill)
            self.assertIn("status", json.loads(watch.stdout.readline()))
            self.receiver.stop()
            while "error" not in json.loads(watch.stdout.readline()):
                pass
            self.receiver.start()
            while "status" not in json.loads(watch.stdout.readline()):
                pass
            watch.terminate()
            self.assertEqual(watch.wait(20), 0)

    def test_plan_shows_what_the_receiver_takes_from_the_trainer(self) -> None:
        plan = json.loads(self.ask(self.receiver, "plan", "--json"))
        size = sum(int(np.prod(shape)) * 4 for shape in SHAPES.values())
        self.assertEqual((plan["job"], plan["trainer_ranks"]), (self.cluster.job_id, 1))
        (receiver,) = plan["receivers"]
        self.assertEqual(receiver["receiver_id"], "receiver-0")
        self.assertEqual(receiver["bytes_by_trainer_rank"], [size])
        self.assertEqual(receiver["delta"]["version"], 3)
        self.assertIn("1 ranks; 1 receivers, 1 engine ranks", self.ask(self.receiver, "plan"))
        self.ask(self.sender, "plan", code=4)  # it has none
        self.rollout.close()
        eventually(
            lambda: dwsctl("plan", "--socket", self.receiver.socket).returncode == 4,
            lambda: "the engine is gone, and so is its plan",
        )

    def test_verify_finds_a_changed_weight_and_the_receiver_repairs_it(self) -> None:
        self.assertIn("all as published at version 3", self.ask(self.receiver, "verify"))
        self.assertIn("all as published at version 3", self.ask(self.sender, "verify"))
        with self.rollout.running(60):
            self.live["b.weight"][0, 0] += 1
        report = self.ask_json(self.receiver, "verify", code=5)
        self.assertEqual(report["mismatches"], "1")
        self.assertEqual(report["mismatched"][0]["tensor"], "b.weight")
        eventually(
            lambda: dwsctl("verify", "--socket", self.receiver.socket).returncode == 0,
            lambda: "a repair",
        )
        self.assert_same_weights(self.rollout, self.live, self.weights)

    def test_resync_repairs_the_engine_and_prints_the_version(self) -> None:
        with self.rollout.running(60):
            self.live["a.weight"][5, 5] += 1
        self.assertIn("in step with the senders at version 3", self.ask(self.receiver, "resync"))
        self.assert_same_weights(self.rollout, self.live, self.weights)
        report = self.ask_json(self.receiver, "resync", "--full")
        self.assertTrue(report["finished"])
        self.ask(self.sender, "resync", code=4)

    def test_a_drained_receiver_commits_nothing_until_the_drain_is_undone(self) -> None:
        self.assertIn("drained at version 3", self.ask(self.receiver, "drain"))
        self.publish(4, wait=False)
        self.assertEqual(self.status(self.receiver)["drain"], "DRAIN_STATE_DRAINED")
        eventually(
            lambda: self.status(self.receiver)["receiver"]["newest_version"] == "4",
            lambda: "version 4 on offer",
        )
        self.assertEqual(self.status(self.receiver)["receiver"]["committed_version"], "3")
        self.assertIn("the drain has ended", self.ask(self.receiver, "drain", "--undo"))
        self.await_version(self.rollout, 4)

    def test_a_drained_sender_takes_no_versions_until_the_drain_is_undone(self) -> None:
        self.assertIn("drained, every present receiver", self.ask(self.sender, "drain"))
        with self.assertRaises(Exception):
            self.publisher.publish(4)
        self.ask(self.sender, "drain", "--undo")
        self.publish(5)

    def test_inspect_reads_the_ledgers_and_an_object_of_running_daemons(self) -> None:
        for daemon, name in ((self.sender, "sender"), (self.receiver, "receiver")):
            ran = dwsctl("inspect", os.path.join(daemon.folder, "state", f"{name}.ledger"))
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
            self.assertIn(f"{name} ledger", ran.stdout)
        path = os.path.join(self.cluster.folder, "object.dws")
        with open(path, "wb") as file:
            file.write(self.fetch(2, 3))
        ran = dwsctl("inspect", path)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("3 over 2", ran.stdout)

    def fetch(self, base: int, version: int) -> bytes:
        welcome = welcome_of(f"unix:{self.sender.socket}")
        request = sync_pb2.FetchRequest(
            stream=welcome.stream,
            layout_signature=welcome.layout_signature,
            base_version=base,
            version=version,
        )
        with grpc.insecure_channel(f"unix:{self.sender.socket}") as channel:
            chunks = sync_pb2_grpc.SyncServiceStub(channel).Fetch(request, timeout=30)
            return b"".join(chunk.data for chunk in chunks)


if __name__ == "__main__":
    import unittest

    unittest.main()
