"""dwsctl in a shell: closed pipes, full disks, exit codes, completion in bash."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import unittest

from tests.tools.dwsctl.fake_admin import FakeAdmin

DWSCTL = os.path.abspath("tools/dwsctl/dwsctl")
COMMANDS = (
    "status versions receivers watch verify resync drain undrain evict forget-stream commit inspect estimate plan report pack apply"
    " squash completion"
).split()


def bash(script: str, **env: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PATH": f"{os.path.dirname(DWSCTL)}:{os.environ['PATH']}", **env}
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environment
    )


class ShellTest(unittest.TestCase):
    daemon: FakeAdmin
    script: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.daemon = FakeAdmin()
        cls.daemon.start()
        cls.addClassCleanup(cls.daemon.stop)
        cls.script = bash("dwsctl completion bash").stdout

    def test_a_reader_that_closes_the_pipe_is_not_an_error(self) -> None:
        address = f"--address {self.daemon.address}"
        for command in (
            f"status {address}",
            f"watch --interval 0.1 {address}",
            "inspect tests/golden/ledger/receiver_v1.ledger",
            "completion bash",
        ):
            with self.subTest(command):
                ran = bash(f"set -o pipefail; dwsctl {command} | head -1")
                self.assertEqual((ran.returncode, ran.stderr), (0, ""))
                self.assertEqual(ran.stdout.count("\n"), 1)

    def test_watch_ends_when_its_reader_closes_the_pipe_between_two_statuses(self) -> None:
        address = f"--address {self.daemon.address}"
        ran = bash(f"set -o pipefail; dwsctl watch --interval 3600 {address} | head -c 1")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))

    def test_watch_prints_plain_lines_without_a_terminal(self) -> None:
        ran = bash(f"dwsctl watch --count 2 --address {self.daemon.address}")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertNotIn("\x1b", ran.stdout)
        self.assertRegex(ran.stdout, r"^rollout-0: version \d+, ")

    def test_output_that_cannot_be_written_is_an_error(self) -> None:
        ran = bash(f"dwsctl status --address {self.daemon.address} > /dev/full")
        self.assertEqual(ran.returncode, 7)
        self.assertIn("No space left", ran.stderr)
        ran = bash(f"dwsctl status --address {self.daemon.address} >&-")
        self.assertEqual(ran.returncode, 7)
        self.assertIn("Bad file descriptor", ran.stderr)

    def test_a_daemon_that_is_absent_exits_with_3_and_a_wrong_line_with_2(self) -> None:
        self.assertEqual(bash("dwsctl status --socket /nonexistent.sock").returncode, 3)
        self.assertEqual(bash("dwsctl status --address nonsense").returncode, 2)
        self.assertEqual(bash("dwsctl no-such-command").returncode, 2)
        self.assertEqual(bash("dwsctl").returncode, 2)

    def test_the_environment_names_a_daemon_if_no_flag_does(self) -> None:
        ran = bash("dwsctl status", DWS_ADDRESS=self.daemon.address)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        ran = bash("dwsctl watch --once", DWS_ADDRESS=self.daemon.address)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        ran = bash("dwsctl status", DWS_SOCKET="/nonexistent.sock")
        self.assertEqual(ran.returncode, 3)
        self.assertIn("DWS_SOCKET: /nonexistent.sock: no such socket", ran.stderr)
        both = {"DWS_ADDRESS": self.daemon.address, "DWS_SOCKET": "/nonexistent.sock"}
        ran = bash("dwsctl status", **both)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("DWS_ADDRESS and DWS_SOCKET are both set", ran.stderr)
        ran = bash(f"dwsctl status --address {self.daemon.address}", **both)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        with tempfile.TemporaryDirectory() as folder:
            ran = bash(f"dwsctl status --run-dir {folder}", **both)
            self.assertEqual(ran.returncode, 3)
            self.assertIn(folder, ran.stderr)

    def test_help_lists_commands_by_what_they_are_for(self) -> None:
        help_text = bash("dwsctl --help").stdout
        headings = [
            "Commands that look at daemons:",
            "Commands that operate daemons:",
            "Commands for checkpoints, deltas and files:",
            "Commands for the shell:",
        ]
        parts = [help_text.index(heading) for heading in headings]
        self.assertEqual(parts, sorted(parts))
        self.assertLess(parts[0], help_text.index("  watch "))
        self.assertLess(parts[1], help_text.index("  undrain "))
        self.assertNotIn("boundary", help_text)

    def test_tls_files_come_from_flags_or_the_environment_and_are_checked(self) -> None:
        ran = bash(f"dwsctl status --address {self.daemon.address}", DWS_TLS_CA="/nonexistent")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("tls-", ran.stderr)

    def test_help_of_every_command_has_examples_and_exit_codes(self) -> None:
        for command in COMMANDS:
            with self.subTest(command):
                ran = bash(f"dwsctl {command} --help")
                self.assertEqual(ran.returncode, 0)
                self.assertIn("Examples:\n  ", ran.stdout)
                self.assertIn("130  ended by ^C", ran.stdout)

    def test_the_document_lists_the_same_exit_codes_as_help(self) -> None:
        with open("docs/dwsctl.md") as file:
            plain = file.read().replace("`", "")
        for line in bash("dwsctl --help").stdout.split("Exit status:\n")[1].split("\n")[:9]:
            code, meaning = line.strip().split(maxsplit=1)
            self.assertIn(f"| {code} | {meaning} |", plain)

    def test_lines_of_help_are_at_most_112_columns_wide(self) -> None:
        for command in ["", *COMMANDS]:
            for line in bash(f"dwsctl {command} --help").stdout.splitlines():
                self.assertLessEqual(len(line), 112, line)

    # Completion.

    def complete(self, line: str, folder: str = "/") -> list[str]:
        """Bash's completions of the last word of a command line, which is split as bash splits it."""
        words = line.replace("=", " = ").split(" ")
        words = [word for i, word in enumerate(words) if word or i == len(words) - 1]
        quoted = " ".join(f"'{word}'" for word in words)
        ran = bash(
            f"cd '{folder}'\n{self.script}\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words) - 1}\n"
            '_dwsctl\nprintf "%s\\n" "${COMPREPLY[@]}"'
        )
        self.assertEqual(ran.stderr, "")
        return ran.stdout.split("\n")[:-1] if ran.stdout.strip() else []

    def test_commands_and_flags_are_completed(self) -> None:
        self.assertEqual(sorted(self.complete("dwsctl ")), sorted(COMMANDS))
        self.assertEqual(self.complete("dwsctl re"), ["receivers", "resync", "report"])
        self.assertEqual(self.complete("dwsctl drain --und"), ["--undo"])
        self.assertEqual(self.complete("dwsctl und"), ["undrain"])
        self.assertEqual(self.complete("dwsctl --vers"), ["--version"])
        self.assertEqual(
            self.complete("dwsctl inspect --"),
            [
                "--help",
                "--json",
                "--layout",
                "--slices",
                "--frames",
                "--blocks",
                "--records",
                "--all",
            ],
        )
        self.assertEqual(self.complete("dwsctl completion "), ["bash"])
        self.assertEqual(self.complete("dwsctl status --timeout "), [])

    def test_sockets_files_and_folders_are_completed(self) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            sockets = []
            for name in ("receiver.sock", "sender 0.sock"):
                sockets.append(os.path.join(folder, name))
                listener = socket.socket(socket.AF_UNIX)
                self.addCleanup(listener.close)
                listener.bind(sockets[-1])
            for name in ("object one.dws", "other.sock"):
                with open(os.path.join(folder, name), "w"):
                    pass
            os.mkdir(os.path.join(folder, "state"))
            self.assertEqual(self.complete(f"dwsctl status --run-dir {folder} --socket "), sockets)
            self.assertEqual(self.complete(f"dwsctl watch --run-dir={folder} --socket="), sockets)
            self.assertEqual(
                self.complete(f"dwsctl watch --run-dir {folder} --socket {folder}/s"), sockets[1:]
            )
            self.assertEqual(self.complete("dwsctl inspect obj", folder), ["object one.dws"])
            self.assertEqual(
                self.complete("dwsctl inspect --layout obj", folder), ["object one.dws"]
            )
            self.assertEqual(self.complete("dwsctl status --run-dir st", folder), ["state"])


if __name__ == "__main__":
    unittest.main()
