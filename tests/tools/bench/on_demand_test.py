"""The benchmark of training on demand at a small size: every figure is printed, with its bar."""

from __future__ import annotations

import csv
import subprocess
import unittest

BENCH = "tools/bench/on_demand"


class OnDemandBench(unittest.TestCase):
    def test_every_figure_is_there_for_every_number_of_threads(self) -> None:
        command = [BENCH, "--size=2MiB", "--rounds=1", "--threads", "1", "3"]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        for threads in ("1 thread", "3 threads"):
            found = [row["id"] for row in rows if row["case"].endswith(f"; {threads}")]
            self.assertEqual(found, ["P23c", "large", "exact", "first", "seal", "seal"])
        for row in rows:
            self.assertGreater(float(row["ours"]), 0, row)
            self.assertAlmostEqual(float(row["ratio"]), float(row["ours"]) / float(row["reference"]), delta=1e-2)
        self.assertIn(">= 0.8", ran.stderr)


if __name__ == "__main__":
    unittest.main()
