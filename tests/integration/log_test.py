"""The daemons' logs in real runs: their formats, their level, no secrets, and a missing reader."""

import base64
import fcntl
import json
import os
import signal
import socket
import subprocess
import unittest
from typing import Any, Sequence
from unittest import mock

import numpy as np

from dws import handed_over as handed_over_module
from dws import sender_link as sender_link_module
from dws.handles import HandleConnection
from tests.integration.certificates import Authority
from tests.integration.cluster import SENDER, Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually


def read(daemon: Daemon) -> str:
    with open(daemon.log_path) as log:
        return log.read()


class FormatTest(IntegrationCase):
    def test_json_has_an_object_a_line(self) -> None:
        sender = self.cluster.start_sender(0, "--log-format=json", "--insecure")
        sender.stop()
        lines = [json.loads(line) for line in read(sender).splitlines()]
        self.assertGreaterEqual(len(lines), 2)
        for line in lines:
            self.assertEqual(line["program"], "dws-sender")
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertIn(line["level"], ("debug", "info", "warning", "error"))
        listening = next(line for line in lines if line["event"] == "listening")
        self.assertEqual(listening["sync_port"], sender.ports["sync"])

    def test_grpcs_own_messages_are_logged_as_events(self) -> None:
        files = Authority(self.cluster.folder, "ca").issue("sender", "dws://test/publish/0")
        sender = self.cluster.start_sender(0, "--log-format=json", *files.flags())
        # All at once: only so many in ten seconds are logged.
        address = ("127.0.0.1", sender.ports["sync"])
        strangers = [socket.create_connection(address) for _ in range(40)]
        for stranger in strangers:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for stranger in strangers:
            with stranger:
                while stranger.recv(4096):
                    pass
        sender.stop()
        lines = [json.loads(line) for line in read(sender).splitlines()]
        said = [line for line in lines if line["event"] == "grpc"]
        self.assertTrue(said)
        self.assertIn("andshake", said[0]["reason"])
        self.assertLess(len(said), 40)

    def test_the_journals_format_is_used_for_the_journal(self) -> None:
        sender = self.cluster.start_sender(0)
        sender.stop()
        self.assertRegex(read(sender), r"^\d{4}-\d\d-\d\dT\S+Z I dws-sender listening ")
        os.truncate(sender.log_path, 0)
        file = os.stat(sender.log_path)
        with mock.patch.dict(os.environ, {"JOURNAL_STREAM": f"{file.st_dev}:{file.st_ino}"}):
            sender.start()
        sender.stop()
        self.assertRegex(read(sender), r"^<6>listening socket='[^']*' sync_port=\d+")
        # With another JOURNAL_STREAM: stderr is not the journal.
        os.truncate(sender.log_path, 0)
        with mock.patch.dict(os.environ, {"JOURNAL_STREAM": f"{file.st_dev}:1"}):
            sender.start()
        sender.stop()
        self.assertNotIn("<6>", read(sender))

    def test_sighup_changes_the_level_and_refuses_mistakes(self) -> None:
        config = os.path.join(self.cluster.folder, "sender.toml")
        with open(config, "w") as file:
            file.write('log-level = "info"\n')
        sender = self.cluster.start_sender(0, f"--config={config}")
        assert sender.process is not None

        def reload(text: str, event: str) -> None:
            os.truncate(sender.log_path, 0)
            with open(config, "w") as written:
                written.write(text)
            assert sender.process is not None
            sender.process.send_signal(signal.SIGHUP)
            eventually(lambda: f" {event}" in read(sender), lambda: read(sender))

        reload("log-levle = 3\n", "reload_refused mistakes=1")
        self.assertIn(f"{config}:1", read(sender))
        reload('threads = 1\nlog-level = "info"\n', "reloaded log_level='info'")
        self.assertIn("reload_needs_restart options='threads'", read(sender))
        reload('log-level = "warning"\nretain-bytes = 7\n', "reload_needs_restart")
        sender.stop()
        self.assertEqual(sender.logged("stopping"), 0)


class SecretTest(IntegrationCase):
    def test_no_log_contains_a_token(self) -> None:
        tokens: list[bytes] = []

        class Recording(HandleConnection):
            def hand_over(
                self, path: str, token: bytes, descriptors: Sequence[int], timeout: float
            ) -> None:
                tokens.append(token)
                # First a stranger with a token that is nearly right, so that a refusal is logged.
                wrong = token[:-1] + bytes([token[-1] ^ 1])
                tokens.append(wrong)
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                    stranger.connect(path)
                    socket.send_fds(stranger, [wrong + (0).to_bytes(4, "little")], [])
                    stranger.recv(4096)
                super().hand_over(path, token, descriptors, timeout)

        flags = ("--log-level=debug", "--log-format=json")
        self.cluster.start_sender(0, *flags)
        self.cluster.start_receiver("receiver-0", *flags)
        with mock.patch.object(
            sender_link_module, "HandleConnection", Recording
        ), mock.patch.object(handed_over_module, "HandleConnection", Recording):
            trainer, engine = self.trainer(), self.engine()
            source = trainer.register({"w": np.ones((64, 64), np.float32)})
            engine.attach({"w": np.zeros((64, 64), np.float32)})
        change(source["w"], np.random.default_rng(1), 0.1)
        trainer.publish(1)
        trainer.wait(1, timeout=60)
        self.assertEqual(len(tokens), 4)
        text = "".join(read(daemon) for daemon in self.cluster.daemons)
        self.assertIn("handles_refused", text)
        for token in tokens:
            for secret in (
                token.hex(),
                base64.b64encode(token).decode().rstrip("="),
                str(token)[2:-1],
            ):
                self.assertNotIn(secret.lower(), text.lower())


class ReaderTest(IntegrationCase):
    """A log that nobody reads, or that cannot be written."""

    def start_with(self, stderr: Any, shell: str = 'exec "$@"') -> Daemon:
        folder = os.path.join(self.cluster.folder, "s")
        os.makedirs(folder)
        daemon = Daemon("s", folder, [])
        open(daemon.log_path, "w").close()
        ports = os.path.join(folder, "ports")
        command = [
            SENDER,
            "--job-id=test",
            f"--socket={daemon.socket}",
            f"--state-dir={folder}/state",
            f"--ports-file={ports}",
            "--log-level=debug",
        ]
        daemon.process = subprocess.Popen(["bash", "-c", shell, "bash", *command], stderr=stderr)
        self.cluster.senders.append(daemon)
        eventually(lambda: os.path.exists(ports), lambda: "it has started")
        return daemon

    def use(self, daemon: Daemon) -> None:
        """Makes it log, and checks that it works."""
        for _ in range(20):
            trainer = self.trainer()
            trainer.register({"w": np.ones((64, 64), np.float32)})
            trainer.publish(1)
            trainer.close()

    def test_a_pipe_that_nobody_reads_does_not_block_a_daemon(self) -> None:
        ours, theirs = os.pipe()
        self.addCleanup(os.close, ours)
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
        daemon = self.start_with(theirs)
        os.close(theirs)
        self.use(daemon)
        daemon.stop()
        self.assertGreater(len(os.read(ours, 65536)), 100)

    def test_a_daemon_survives_the_end_of_its_logs_reader(self) -> None:
        ours, theirs = os.pipe()
        daemon = self.start_with(theirs)
        os.close(theirs)
        os.close(ours)
        self.use(daemon)
        daemon.stop()

    def test_a_daemon_runs_without_stderr(self) -> None:
        daemon = self.start_with(None, 'exec "$@" 0<&- 1>&- 2>&-')
        assert daemon.process is not None
        self.use(daemon)
        # No file or socket of the daemon has become its stderr.
        for fd in (0, 1, 2):
            self.assertEqual(os.readlink(f"/proc/{daemon.process.pid}/fd/{fd}"), "/dev/null")
        daemon.stop()


if __name__ == "__main__":
    unittest.main()
