"""Another user of the same machine: what they can reach of a job by default and with --insecure,
and which senders a receiver trusts. Tests that need a second user are skipped unless run as root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from typing import Any

import numpy as np

from tests.integration import cluster
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually
from tests.integration.reflection_client import ReflectionClient
from tests.integration.stranger import NOBODY, ORDERS

ADMIN = "dws.v1.AdminService"
STRANGER = [sys.executable, os.path.abspath("tests/integration/stranger.py")]
LISTENING = "0A"  # TCP_LISTEN, as in /proc/net/tcp
needs_root = unittest.skipUnless(os.geteuid() == 0, "becoming another user needs root")


def listening_ports(daemon: Daemon) -> list[str]:
    """Addresses that the process itself listens on over TCP, as in /proc/net/tcp."""
    assert daemon.process is not None
    proc = f"/proc/{daemon.process.pid}"
    sockets = set()
    for number in os.listdir(f"{proc}/fd"):
        try:
            sockets.add(os.readlink(f"{proc}/fd/{number}"))
        except FileNotFoundError:
            pass  # closed meanwhile
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"{proc}/net/{table}") as lines:
            for fields in (line.split() for line in list(lines)[1:]):
                if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                    found.append(fields[1])
    return found


def stranger(*arguments: str) -> Any:
    """Runs stranger.py as another user; returns its result."""
    done = subprocess.run([*STRANGER, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class OpenDoorTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        os.chmod(self.cluster.folder, 0o755)  # the sockets themselves have to refuse others
        self.random = np.random.default_rng(4)

    def sync(self) -> None:
        """Publishes version 1 and waits for it."""
        self.dws_trainer = self.trainer()
        self.source = self.dws_trainer.register({"w": np.zeros((300, 500), np.float32)})
        self.dws_engine = self.engine()
        self.live = self.dws_engine.attach({"w": np.zeros((300, 500), np.float32)})
        change(self.source["w"], self.random, 0.5)
        self.dws_trainer.publish(1)
        self.await_version(self.dws_engine, 1)
        self.assert_same_weights(self.dws_engine, self.live, self.source)

    def status(self, daemon: Daemon) -> Any:
        with ReflectionClient(f"unix:{daemon.socket}") as client:
            return client.call(ADMIN, "Status")

    def test_by_default_no_daemon_has_a_tcp_port(self) -> None:
        self.cluster.pages = False
        self.start()
        self.sync()
        for daemon in self.cluster.daemons:
            self.assertEqual(daemon.ports, {})
            self.assertEqual(listening_ports(daemon), [])
            self.assertEqual(list(self.status(daemon).insecure), [])

    @needs_root
    def test_by_default_another_user_reaches_no_socket(self) -> None:
        self.start()
        for daemon in self.cluster.daemons:
            self.assertEqual(len(listening_ports(daemon)), 1)  # the pages
            self.assertEqual(stranger("connect", daemon.socket), ["PermissionError"])

    def refused_start(self, program: str, *flags: str) -> str:
        folder = self.cluster.folder
        command = [program, "--job-id=test", f"--socket={folder}/x.sock", f"--state-dir={folder}/x"]
        done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr

    def test_without_tls_or_insecure_no_daemon_uses_tcp(self) -> None:
        receiver = (cluster.RECEIVER, "--receiver-id=r")
        for command, found in (
            ((cluster.SENDER, "--listen=127.0.0.1:0"), "--listen 127.0.0.1:0 without TLS"),
            ((*receiver, "--sender=127.0.0.1:1"), "--sender 127.0.0.1:1 without TLS"),
            (
                (*receiver, "--sender=unix:/s.sock", "--listen=[::1]:0"),
                "--listen [::1]:0 without TLS",
            ),
            (
                (cluster.SENDER, "--train-peers=unix:/s.sock,127.0.0.1:1"),
                "--train-peers 127.0.0.1:1 without TLS",
            ),
        ):
            with self.subTest(command):
                error = self.refused_start(*command)
                for word in (found, "--tls-ca", "dws-certificates", "--insecure"):
                    self.assertIn(word, error)
        self.assertIn("absolute path", self.refused_start(*receiver, "--sender=unix:s.sock"))
        twice = self.refused_start(cluster.SENDER, "--train-peers=unix:/s.sock,unix:/s.sock")
        self.assertIn("it names unix:/s.sock twice", twice)

    @needs_root
    def test_ports_opened_by_insecure_are_reported_and_take_no_orders(self) -> None:
        sender = self.cluster.start_sender(0, "--insecure", "--train-peers=127.0.0.1:1,127.0.0.1:2")
        receiver = self.cluster.start_receiver("receiver-0", "--insecure")
        self.sync()
        for daemon in self.cluster.daemons:
            self.assertEqual(len(listening_ports(daemon)), 2)
            told = stranger("call", daemon.address)
            self.assertEqual(told.pop("Status"), ["OK", "test"])
            self.assertEqual(set(told), set(ORDERS))
            for order, (code, details) in told.items():
                self.assertEqual(code, "PERMISSION_DENIED", order)
                self.assertIn("unix socket", details)
            self.assertEqual(self.status(daemon).drain, 0)
        self.assertEqual(self.status(receiver).receiver.commits, 1)
        for daemon, parts in (
            (sender, ["--train-peers 127.0.0.1:2", f"--listen {sender.address}"]),
            (receiver, [f"--sender {sender.address}", f"--listen {receiver.address}"]),
        ):
            self.assertEqual(list(self.status(daemon).insecure), parts)
            self.assertEqual(daemon.metric("dws_insecure_channels"), len(parts))
            log = daemon.log_tail(1000)
            for part in parts:
                self.assertIn(f" insecure what='{part}' reason='TCP without TLS", log)
        # The unix socket accepts the same orders.
        with ReflectionClient(f"unix:{receiver.socket}") as client:
            *_, last = client.call(ADMIN, "Drain")
            self.assertTrue(last.finished)

    @needs_root
    def test_a_stranger_at_the_senders_socket_path_is_not_trusted(self) -> None:
        folder = os.path.join(self.cluster.folder, "open")
        os.mkdir(folder)
        os.chmod(folder, 0o1777)
        path = os.path.join(folder, "sender.sock")
        impostor = subprocess.Popen(
            [*STRANGER, "serve", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(impostor.wait)
        self.addCleanup(impostor.kill)
        assert impostor.stdout is not None
        self.assertEqual(impostor.stdout.readline(), '"listening"\n')
        self.assertEqual(os.stat(path).st_uid, NOBODY)

        receiver = self.cluster.start_receiver("receiver-0", f"--sender=unix:{path}")
        refusal = f"the socket {path} is served by uid {NOBODY}, expected root, uid {os.geteuid()}"
        eventually(
            lambda: refusal in self.status(receiver).receiver.senders[0].last_error,
            lambda: str(self.status(receiver)),
        )
        status = self.status(receiver).receiver
        self.assertFalse(status.senders[0].connected)
        self.assertEqual(status.stream.incarnation, 0)
        self.assertEqual(receiver.log_tail(1000).count(" peer_refused "), 1)
        told, _ = impostor.communicate()
        self.assertEqual(json.loads(told), {"hellos": 0})

        # The receiver keeps trying: the real sender at that path is accepted.
        if os.path.exists(path):
            os.unlink(path)
        sender = self.cluster.start_sender(0)
        os.symlink(sender.socket, path)
        self.sync()


if __name__ == "__main__":
    unittest.main()
