"""`dwsctl report` of real daemons: what is in it, and that no secret is."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import tarfile
import time
import unittest
from pathlib import Path
from unittest import mock

import dws
import numpy as np

from tests.integration.certificates import Authority
from tests.integration.cluster import RECEIVER, SENDER, Cluster, Daemon

DWSCTL = "tools/dwsctl/dwsctl"
SECONDS = 60.0
# Secrets of each kind of place. The report may have none of them, nor their parts.
COMMAND_SECRET = "hush-4f1c9a77"
ENVIRONMENT_SECRET = "wJalrXUtnFEMI/K7MDENG"
PROXY_SECRET = "pr0xy-pass/w0rd"
COMMENT_SECRET = "commented-out-91b2"
CONFIG_SECRET = "pass-in-a-file-77d0"
FILE_SECRET = "0f8e7d6c5b4a39281706f5e4d3c2b1a00f8e7d6c5b4a39281706f5e4d3c2b1a0"
SECRETS = (COMMAND_SECRET, ENVIRONMENT_SECRET, PROXY_SECRET, COMMENT_SECRET, CONFIG_SECRET, FILE_SECRET)


def report(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([DWSCTL, "report", *words], capture_output=True, text=True, timeout=SECONDS)


def parts_of(path: str) -> dict[str, str]:
    """The files of an archive by their names; all are in one folder."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        folders = {member.name.split("/")[0] for member in members}
        assert len(folders) == 1 and all(member.isreg() for member in members), members
        contents = {member.name.split("/")[1]: archive.extractfile(member) for member in members}
        return {name: io.TextIOWrapper(file, "utf-8", "replace").read() for name, file in contents.items() if file}


class ReportTest(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = self.enterContext(Cluster())
        self.folder = Path(self.cluster.folder)
        self.path = str(self.folder / "report.tar.gz")

    def test_a_report_has_all_parts_of_a_receiver(self) -> None:
        sender = self.cluster.start_sender()
        receiver = self.cluster.start_receiver("rollout-0")
        with dws.Trainer(sender.socket, job_id=self.cluster.job_id) as trainer, dws.Engine(receiver.socket) as engine:
            trainer.register({"w": np.ones((64, 64), np.float32)})
            engine.attach({"w": np.zeros((64, 64), np.float32)})
            trainer.publish(1)
            trainer.wait(1, policy="all", timeout=SECONDS)
            done = report("--socket", receiver.socket, "--output", self.path, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        told = json.loads(done.stdout)
        self.assertEqual(told["path"], self.path)
        parts = parts_of(self.path)
        self.assertEqual({part["name"] for part in told["parts"] if "bytes" in part} | {"summary.txt"}, set(parts))
        self.assertRegex(parts["version.txt"], r"^dwsctl \S+")
        self.assertEqual(json.loads(parts["status.json"])["receiver"]["committed_version"], "1")
        self.assertIn("rollout-0", parts["status.txt"])
        self.assertIn("slices", parts["plan.json"])
        self.assertIn("dws_build_info", parts["metrics.txt"])
        self.assertIn("--receiver-id = rollout-0\n", parts["settings.txt"])
        self.assertIn(f"--state-dir = {receiver.folder}/state\n", parts["settings.txt"])
        self.assertRegex(parts["log.txt"], r"\bcommitted\b")
        self.assertIn("Max open files", parts["process.txt"])
        self.assertRegex(parts["machine.txt"], r"^Linux .*\n")
        self.assertRegex(parts["machine.txt"], r"(?m)^flags\s*:.*\bsse2\b")
        self.assertIn("Available", parts["disk.txt"])
        self.assertIn("gpu.txt", parts["summary.txt"])

    def test_no_secret_of_a_daemon_is_in_its_report(self) -> None:
        (self.folder / "key").write_text(FILE_SECRET + "\n")
        (self.folder / "key").chmod(0o600)
        config = self.folder / "sender.toml"
        config.write_text(f"# token = {COMMENT_SECRET}\n[shared]\ndir = '{self.folder / 'shared'}'\n"
                          f"dir-key = '{self.folder / 'key'}'\nafter-write = 'curl -u me:{CONFIG_SECRET} http://a/b'\n")
        (self.folder / "shared").mkdir()
        variables = {"AWS_SECRET_ACCESS_KEY": ENVIRONMENT_SECRET, "https_proxy": f"http://me:{PROXY_SECRET}@proxy.example:3128",
                     "DWS_LAGGARD_AFTER": "77"}
        command = f"echo {COMMAND_SECRET} of $https_proxy $AWS_SECRET_ACCESS_KEY $(cat {self.folder / 'key'}); exit 1"
        sender = self.cluster.add_sender(0, f"--config={config}", f"--shared-after-write=sh -c '{command}'")
        with mock.patch.dict(os.environ, variables):
            sender.start()
        with dws.Trainer(sender.socket, job_id=self.cluster.job_id) as trainer:
            views = trainer.register({"w": np.ones((64, 64), np.float32)})
            deadline = time.monotonic() + SECONDS
            for version in range(1, 4):
                views["w"][version] += 1.0
                trainer.publish(version)
            while sender.logged("shared_after_write_failed") == 0:
                self.assertLess(time.monotonic(), deadline, sender.log_tail())
                time.sleep(0.05)
        # The command has put secrets into the log, where a report takes its last lines from.
        log = Path(sender.log_path).read_text()
        for secret in (COMMAND_SECRET, ENVIRONMENT_SECRET, PROXY_SECRET, FILE_SECRET):
            self.assertIn(secret, log)
        done = report("--socket", sender.socket, "--output", self.path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        parts = parts_of(self.path)
        for name, text in {**parts, "(output)": done.stdout}.items():
            for secret in SECRETS:
                with self.subTest(name, secret=secret):
                    self.assertNotIn(secret, text)
        settings = parts["settings.txt"]
        self.assertEqual(settings.count("shared-after-write = (left out)\n"), 2)  # of the flag, and of the file
        self.assertIn("AWS_SECRET_ACCESS_KEY = (left out)\n", settings)
        self.assertIn("DWS_LAGGARD_AFTER = 77\n", settings)
        self.assertIn(f"shared-dir = {self.folder}/shared\n", settings)
        self.assertIn(f"shared-dir-key = {self.folder}/key\n", settings)
        self.assertIn("shared_after_write_failed", parts["log.txt"])
        self.assertEqual(json.loads(parts["status.json"])["sender"]["newest_version"], "3")
        raw = Path(self.path).read_bytes()
        self.assertEqual([secret for secret in SECRETS if secret.encode() in raw], [])

    def test_a_daemon_that_does_not_answer_is_reported_in_time(self) -> None:
        sender = self.cluster.start_sender()
        assert sender.process is not None
        sender.process.send_signal(signal.SIGSTOP)
        try:
            done = report("--socket", sender.socket, "--timeout", "0.3", "--output", str(self.folder / "out"))
        finally:
            sender.process.send_signal(signal.SIGCONT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^status\.json +missing: .+")
        self.assertRegex(done.stdout, r"(?m)^metrics\.txt +missing: .+")
        self.assertRegex(done.stdout, r"(?m)^log\.txt +\d+ bytes$")
        names = set(os.listdir(self.folder / "out"))
        self.assertLessEqual({"settings.txt", "log.txt", "process.txt", "summary.txt"}, names)
        self.assertNotIn("status.json", names)

    def test_what_cannot_be_written_and_who_cannot_be_found(self) -> None:
        sender = self.cluster.start_sender()
        Path(self.path).write_text("mine")
        done = report("--socket", sender.socket, "--output", self.path)
        self.assertEqual(done.returncode, 7)
        self.assertIn(f"{self.path} exists", done.stderr)
        self.assertEqual(Path(self.path).read_text(), "mine")
        self.assertEqual(report("--socket", "/nonexistent.sock").returncode, 3)

    def test_metrics_that_need_tls_are_read_with_the_daemons_own_certificate(self) -> None:
        files = Authority(str(self.folder), "ca").issue("own", f"dws://{self.cluster.job_id}/publish/0")
        self.cluster.pages = False
        sender = self.cluster.add_sender(0, *files.flags())
        sender.reserve_ports()
        sender.command.append(f"--http=0.0.0.0:{sender.ports['http']}")
        sender.start()
        done = report("--socket", sender.socket, "--output", self.path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("dws_build_info", parts_of(self.path).get("metrics.txt", done.stdout))
        other = str(self.folder / "other.tar.gz")
        done = report("--socket", sender.socket, "--output", other, "--tls-server-name=elsewhere.example")
        self.assertRegex(done.stdout, r"(?m)^metrics\.txt +missing: .*certificate")

    def test_over_tcp_the_daemon_alone_is_asked(self) -> None:
        sender = self.cluster.start_sender(0, "--insecure")
        done = report("--address", sender.address, "--output", self.path)
        self.assertEqual(done.returncode, 0, done.stderr)
        parts = parts_of(self.path)
        self.assertIn("status.json", parts)
        self.assertFalse({"settings.txt", "log.txt", "process.txt", "machine.txt"} & set(parts))
        self.assertRegex(parts["summary.txt"], r"settings\.txt +missing: .*--socket on the daemon's own machine")


class OptionsTest(unittest.TestCase):
    def test_each_option_of_the_daemons_is_shown_or_a_command(self) -> None:
        """A new option is left out of reports until somebody has said that its value is no secret."""
        source = Path("tools/dwsctl/report/options.cc").read_text()
        shown = {name for words in re.findall(r'"([^"]*)"', source.split("kShown =")[1].split(";")[0]) for name in words.split()}
        secret_files = set(re.findall(r'"([a-z][\w-]*)"', source.split("kSecretFiles =")[1].split("});")[0]))
        options = set()
        for program in (SENDER, RECEIVER):
            done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=SECONDS, check=True)
            options |= set(re.findall(r"(?m)^  --([a-z][\w-]*)(?: COMMAND\b)?", done.stdout))
            commands = set(re.findall(r"(?m)^  --([a-z][\w-]*) COMMAND\b", done.stdout))
            self.assertTrue(commands)
            self.assertEqual(commands & shown, set())
            options -= commands
        self.assertEqual(options - {"version"}, shown)
        self.assertLessEqual(secret_files, shown)


if __name__ == "__main__":
    unittest.main()
