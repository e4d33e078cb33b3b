"""The benchmark of many receivers with a few: the figures are printed, and every receiver has every version
(the program fails otherwise)."""

from __future__ import annotations

import csv
import subprocess
import unittest


class Wide(unittest.TestCase):
    def run_wide(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = ["bash", "tools/bench/run_wide.sh", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    def test_the_figures_are_printed(self) -> None:
        ran = self.run_wide("--only=receivers", "--counts=3,12", "--rounds=3")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual(len(rows), 12)
        for row in rows:
            self.assertEqual(row["id"], "P12")
            self.assertIn(row["case"], ran.stderr)
        for row in rows[1::6]:  # publish to COMMITTED
            self.assertGreaterEqual(float(row["ours"]), float(row["reference"]))

    def test_another_case_is_refused(self) -> None:
        ran = self.run_wide("--only=nothing")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("expected --only= with one of: receivers joiners ranges regions; found --only=nothing", ran.stderr)


if __name__ == "__main__":
    unittest.main()
