"""`--version` of every program: name and version alone on the first line, the details below."""

from __future__ import annotations

import re
import subprocess
import unittest

PROGRAMS = {
    "dws-sender": "sender_daemon/dws-sender",
    "dws-receiver": "receiver_daemon/dws-receiver",
    "dwsctl": "tools/dwsctl/dwsctl",
}


class VersionTest(unittest.TestCase):
    def test_every_program_prints_its_build(self) -> None:
        details = set()
        for name, path in PROGRAMS.items():
            with self.subTest(name):
                done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                first, *rest = done.stdout.splitlines()
                self.assertRegex(first, rf"^{re.escape(name)} \d+\.\d+\.\d+$")
                self.assertEqual([line.split()[0] for line in rest],
                                 ["commit", "compiler", "configuration", "protocol"])
                details.add((first.split()[1], *rest))
        self.assertEqual(len(details), 1, "programs of one build tell different builds")


if __name__ == "__main__":
    unittest.main()
