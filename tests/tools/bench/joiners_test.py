"""The benchmark of engines that join at once, at a small size: every figure is printed, with its bar."""

from __future__ import annotations

import csv
import subprocess
import unittest

RUN = "tools/bench/run_wide.sh"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/bash", RUN, *arguments], check=False, capture_output=True, text=True)


class JoinersBench(unittest.TestCase):
    def test_every_figure_is_there(self) -> None:
        ran = run("--only=joiners", "--joiners=3", "--mib=4", "--link=100")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        if "W10 skipped" in ran.stderr:
            self.skipTest(ran.stderr.strip())
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual([row["unit"] for row in rows], ["s", "MB", "s", "MB"])
        # The weights cross the link three times, or once.
        self.assertGreater(float(rows[1]["ratio"]), 2.9)
        self.assertLess(float(rows[3]["ratio"]), 1.5)
        self.assertIn("<= 2.5", ran.stderr)

    def test_other_cases_and_sizes_are_refused(self) -> None:
        for arguments in (("other",), ("--only=joiners", "--joiners=0")):
            self.assertEqual(run(*arguments).returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
