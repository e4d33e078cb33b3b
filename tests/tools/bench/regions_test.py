"""The figures of regions with caches, small: they are printed, and every engine has each version (the program fails otherwise)."""

from __future__ import annotations

import csv
import subprocess
import unittest

FIGURES = ["W1"] * 4 + ["W2", "W3", "W4", "W5", "W6"]


class Regions(unittest.TestCase):
    def test_the_figures_are_printed(self) -> None:
        command = ["bash", "tools/bench/run_wide.sh", "--only=regions"]
        command += ["--size-mib=8", "--receivers=1", "--versions=1", "--link-rate=400"]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        skipped = "regions: skipped: no network namespaces here" in ran.stderr
        self.assertEqual([row["id"] for row in rows], [] if skipped else FIGURES)
        for row in rows:
            self.assertGreater(float(row["ours"]), 0)
            self.assertIn(row["case"], ran.stderr)
            if row["id"] == "W1":
                self.assertGreaterEqual(float(row["ratio"]), 1.0)  # all of it came by that link


if __name__ == "__main__":
    unittest.main()
