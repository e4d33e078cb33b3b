"""The benchmark of a store behind a long link, with little of everything: its figures are printed (what they are is no test),
and its receivers get the version (the program fails otherwise)."""

from __future__ import annotations

import csv
import subprocess
import unittest


class Ranges(unittest.TestCase):
    def test_the_figures_are_printed(self) -> None:
        command = ["bash", "tools/bench/run_wide.sh", "--only=ranges", "--size-mib=24", "--rounds=1", "--rtt-ms=20"]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        if "# ranges: skipped" in ran.stderr:
            self.skipTest(ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual([row["id"] for row in rows], ["W7", "W8", "W9"])
        for row in rows:
            self.assertGreater(float(row["ours"]), 0)
            self.assertIn(row["case"], ran.stderr)


if __name__ == "__main__":
    unittest.main()
