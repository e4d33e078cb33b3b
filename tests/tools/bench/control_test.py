"""The control plane's benchmark with a few rounds: the figures are printed, and the engines end with the
trainer's weights (the program fails otherwise)."""

from __future__ import annotations

import csv
import subprocess
import unittest


class Control(unittest.TestCase):
    def test_the_figures_are_printed(self) -> None:
        command = ["bash", "tools/bench/run_control.sh", "--rounds=4", "--size=32"]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual([row["id"] for row in rows], ["P11", "joiners", "slow"])
        for row in rows:
            self.assertEqual(row["unit"], "ms")
            self.assertGreater(float(row["ours"]), 0)
            self.assertGreater(float(row["reference"]), 0)
            self.assertIn(row["case"], ran.stderr)


if __name__ == "__main__":
    unittest.main()
