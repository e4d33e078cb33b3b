"""python3 -m dws.demo with real daemons."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = ("sender_daemon", "receiver_daemon", "tools/dwsctl")


class ToyLoopTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.top = folder.name

    def demo(self, *arguments: str, programs: bool = True) -> "subprocess.CompletedProcess[str]":
        path = [*map(os.path.abspath, PROGRAMS)] if programs else []
        environment = {**os.environ, "PATH": ":".join([*path, "/usr/bin", "/bin"]), "TMPDIR": self.top}
        return subprocess.run([sys.executable, "-m", "dws.demo", *arguments], env=environment,
                              capture_output=True, text=True, timeout=100)  # fmt: skip

    def test_every_claim_holds_and_nothing_is_left(self) -> None:
        done = self.demo("--versions=12", "--seed=3")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        rows = re.findall(r"^ +(\d+) +(full|[\d.]+%) +(\d+) ", done.stdout, re.M)
        self.assertEqual([int(version) for version, *_ in rows], list(range(1, 13)))
        self.assertEqual(rows[0][1], "full")
        self.assertLess(max(int(size) for _, _, size in rows[1:]), int(rows[0][2]) / 4)
        self.assertEqual(len(re.findall("^ok .* up to 12; expected up to 12$", done.stdout, re.M)), 2)
        self.assertEqual(len(re.findall("^ok .*: .*all as published at version 12", done.stdout, re.M)), 2)
        self.assertRegex(done.stdout.splitlines()[-1], r"^SUCCESS: the demo took \d+ s$")
        self.assertEqual(os.listdir(os.path.join(self.top, f"dws-{os.getuid()}")), [])

    def test_without_the_programs_it_says_what_to_install(self) -> None:
        done = self.demo(programs=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, "^FAIL dws-sender: found neither in .* nor on PATH. Install the wheel")
        self.assertIn("FAILURE", done.stdout.splitlines()[-1])

    def test_help_starts_nothing(self) -> None:
        done = self.demo("--help", programs=False)
        self.assertEqual(done.returncode, 0)
        self.assertIn("--versions N", done.stdout)
        self.assertEqual(self.demo("--versions=1", programs=False).returncode, 2)


if __name__ == "__main__":
    unittest.main()
