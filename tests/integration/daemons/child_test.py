"""dws.daemons with real daemons: they serve, say what is wrong, do not meet, and leave nothing behind."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import dws
from tests.integration.cluster import RECEIVER, SENDER

WAIT_SECONDS = 60.0


class ChildTest(unittest.TestCase):
    def setUp(self) -> None:
        # A short path, because it is part of the paths of sockets.
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.top = folder.name

    def sender(self, job_id: str = "job", **options: Any) -> dws.daemons.Daemon:
        options = {"program": SENDER, "run_dir": self.top, **options}
        daemon = dws.daemons.sender(job_id, **options)
        self.addCleanup(self.end, daemon)
        return daemon

    def receiver(self, *arguments: Any, **options: Any) -> dws.daemons.Daemon:
        daemon = dws.daemons.receiver(*arguments, program=RECEIVER, run_dir=self.top, **options)
        self.addCleanup(self.end, daemon)
        return daemon

    def end(self, daemon: dws.daemons.Daemon) -> None:
        if daemon.process is not None:
            daemon.kill()

    def test_a_trainer_and_an_engine_use_what_was_started_and_nothing_is_left(self) -> None:
        weights = np.arange(1000, dtype=np.float32)
        with self.sender("job/ü") as sender, self.receiver("r 0", sender, "job/ü", scrub_rate=0) as receiver:
            self.assertEqual(receiver.ports, {})  # no TCP
            with dws.Trainer(sender.socket, "job/ü") as trainer, dws.Engine(receiver.socket) as engine:
                views = trainer.register({"w": weights})
                live = engine.attach({"w": np.zeros_like(weights)})
                for version in (1, 2):
                    views["w"][version] += 1
                    trainer.publish(version)
                    trainer.wait(version, policy=1, timeout=WAIT_SECONDS)
                with engine.running(WAIT_SECONDS):
                    np.testing.assert_array_equal(live["w"], views["w"])
            for daemon in (sender, receiver):
                daemon.check()
                self.assertTrue(os.path.isdir(daemon.state_dir))
        self.assertEqual(os.listdir(self.top), [])
        self.assertIsNone(sender.pid)

    def test_it_can_be_started_again_on_the_same_socket_with_the_same_state(self) -> None:
        sender = self.sender(state_dir=f"{self.top}/elsewhere")
        before, path = sender.pid, sender.socket
        with self.assertRaisesRegex(dws.StateError, f"runs already, as process {before}"):
            sender.start()
        sender.stop()
        with self.assertRaisesRegex(dws.DaemonFailedError, "was stopped by this process"):
            sender.check()
        sender.start()
        self.assertEqual(sender.socket, path)
        self.assertNotEqual(sender.pid, before)
        sender.close()
        self.assertEqual(os.listdir(self.top), ["elsewhere"])
        self.assertNotEqual(os.listdir(f"{self.top}/elsewhere"), [])

    def test_options_become_flags_and_ports_are_told(self) -> None:
        sender = self.sender(listen="127.0.0.1:0", insecure=True, http="127.0.0.1:0", retain_versions=7,
                             slime_dir=None)  # fmt: skip
        self.assertEqual(sender.address, f"127.0.0.1:{sender.ports['sync']}")
        with urllib.request.urlopen(f"http://127.0.0.1:{sender.ports['http']}/healthz", timeout=10) as page:
            self.assertEqual(page.status, 200)
        flags = Path(f"/proc/{sender.pid}/cmdline").read_text().split("\0")
        self.assertIn("--retain-versions=7", flags)
        self.assertIn("--insecure", flags)
        self.assertFalse([flag for flag in flags if "slime" in flag])
        everywhere = self.sender("all", listen="0.0.0.0:0", insecure=True)
        self.assertEqual(everywhere.address, f"{socket.gethostname()}:{everywhere.ports['sync']}")

    def test_a_mistake_in_an_option_is_told_in_the_words_of_the_daemon(self) -> None:
        with self.assertRaisesRegex(
            dws.DaemonFailedError,
            r"(?s)sender of rank 0 of job 'job' ended before it served: exit status 2 \(its configuration has mistakes"
            r".*log:\n.*retain-bites.*retain-bytes",
        ) as caught:
            self.sender(retain_bites="1GiB")
        self.assertEqual(caught.exception.status, 2)
        with self.assertRaisesRegex(dws.DaemonFailedError, "(?s)exit status 2.*--trainer-rank"):
            self.sender(trainer_rank=-1)
        with self.assertRaisesRegex(dws.DaemonFailedError, "(?s)receiver 'r' of job 'job' ended .*--sender"):
            self.receiver("r", "nonsense", "job")

    def test_a_program_that_cannot_be_run_is_told(self) -> None:
        no_program = Path(self.top, "no-program")
        no_program.write_bytes(b"\x7fELF of another machine")
        no_program.chmod(0o755)
        with self.assertRaisesRegex(dws.DaemonFailedError, "Exec format error: expected a Linux machine of x86-64"):
            self.sender(program=no_program)
        silent = Path(self.top, "silent")
        silent.write_text("#!/bin/sh\necho 'on stderr' >&2\nexec sleep 600\n")
        silent.chmod(0o755)
        with self.assertRaisesRegex(dws.DaemonFailedError, r"(?s)did not serve within 0\.3 s and was killed.*on stderr"):
            self.sender(program=silent, start_timeout=0.3)
        with self.assertRaisesRegex(dws.DaemonUnavailableError, "/nowhere: expected dws-sender"):
            self.sender(program="/nowhere")

    def test_one_that_ends_by_itself_is_logged_at_once_and_its_folder_stays(self) -> None:
        sender = self.sender()
        with self.assertLogs("dws.daemons", logging.ERROR) as logged:
            os.kill(sender.pid or 0, signal.SIGKILL)
            deadline = time.monotonic() + WAIT_SECONDS
            while not logged.output and time.monotonic() < deadline:
                time.sleep(0.01)
        self.assertRegex(logged.output[0], "sender of rank 0 of job 'job' has ended by itself: SIGKILL .*memory ran out")
        self.assertIn("dws-sender", logged.output[0].splitlines()[-1])  # its log
        for call in (sender.check, sender.close):
            with self.assertRaisesRegex(dws.DaemonFailedError, "SIGKILL") as caught:
                call()
            self.assertEqual(caught.exception.status, -signal.SIGKILL)
        self.assertTrue(os.path.exists(sender.log_path))

    def test_the_exception_of_a_block_is_not_hidden_by_that_of_its_daemon(self) -> None:
        with self.assertLogs("dws.daemons", logging.ERROR), self.assertRaises(KeyError):
            with self.sender() as sender:
                os.kill(sender.pid or 0, signal.SIGKILL)
                raise KeyError("the first one")

    def test_one_that_does_not_stop_in_time_is_killed_and_told(self) -> None:
        sender = self.sender()
        pid = sender.pid or 0
        os.kill(pid, signal.SIGSTOP)
        with self.assertRaisesRegex(dws.DaemonFailedError, r"did not end within 0\.2 s of SIGTERM and was killed"):
            sender.stop(timeout=0.2)
        self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_jobs_do_not_meet_and_the_same_one_is_refused(self) -> None:
        first = self.sender("job")
        others = [self.sender("job", trainer_rank=1), self.sender("other"), self.sender("job", run_dir=f"{self.top}/x")]
        self.assertEqual(len({daemon.folder for daemon in (first, *others)}), 4)
        with self.assertRaisesRegex(
            dws.StateError,
            f"sender of rank 0 of job 'job' runs already on this machine: process {first.pid}, started by process "
            f"{os.getpid()}, in {first.folder}. Stop it",
        ):
            self.sender("job")
        first.check()  # the refused one has touched nothing
        first.close()
        self.assertEqual(self.sender("job").folder, first.folder)

    def test_messages_for_systemd_of_this_process_are_not_sent_by_its_daemons(self) -> None:
        with mock.patch.dict(os.environ, {"NOTIFY_SOCKET": f"{self.top}/notify", "DWS_RETAIN_VERSIONS": "9"}):
            sender = self.sender()
        variables = Path(f"/proc/{sender.pid}/environ").read_text().split("\0")
        self.assertIn("DWS_RETAIN_VERSIONS=9", variables)
        self.assertFalse([each for each in variables if each.startswith("NOTIFY_SOCKET")])

    def test_the_default_folder_is_of_this_user_alone(self) -> None:
        with mock.patch.dict(os.environ, {"TMPDIR": self.top}), mock.patch.object(tempfile, "tempdir", None):
            sender = self.sender(run_dir=None)
            private = Path(self.top, f"dws-{os.getuid()}")
            self.assertTrue(sender.socket.startswith(f"{private}/job/sender-0/"))
            self.assertEqual(stat.S_IMODE(private.stat().st_mode), 0o700)
            private.chmod(0o750)
            with self.assertRaisesRegex(dws.InvalidArgumentError, "no permission of 0077, found one of .* with mode 0750"):
                self.sender("other", run_dir=None)
            private.chmod(0o700)
        with open(os.path.join(sender.folder, "lock")) as lock:
            self.assertEqual(lock.read().split(), [str(os.getpid()), str(sender.pid)])
        self.assertEqual(json.loads(Path(sender.folder, "ports.json").read_text()), {})


if __name__ == "__main__":
    unittest.main()
