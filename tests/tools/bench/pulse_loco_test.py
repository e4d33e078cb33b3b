"""The benchmark of PULSELoCo with few rounds: every way is there, with its figures and bars, and all learn."""

from __future__ import annotations

import csv
import subprocess
import unittest

from tools.bench.local_rounds.task import ELEMENTS
from tools.bench.local_rounds.ways import NAMES

RUN = "tools/bench/run_pulse_loco.sh"


class PulseLoCoBench(unittest.TestCase):
    def test_every_way_and_every_bar(self) -> None:
        command = ["/bin/bash", RUN, "--rounds=3", "--steps=2", "--workers=3", "--rate=1e-5"]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        for name in NAMES:
            losses = [float(row["ours"]) for row in rows if row["case"].startswith(f"{name}, round ")]
            self.assertEqual(len(losses), 4, name)
            self.assertLess(losses[-1], losses[0], name)
        found = {row["case"]: row for row in rows if row["id"] == "P37"}
        self.assertEqual(len(found), 6)
        dense = found["PULSELoCo FP32, beside dense DiLoCo"]
        self.assertEqual(float(dense["reference"]), 4 * ELEMENTS * 2 // 3)
        for row in found.values():
            self.assertAlmostEqual(float(row["ratio"]), float(row["ours"]) / float(row["reference"]), delta=1e-4)
        half = found["PULSELoCo BF16, beside dense DiLoCo"]
        self.assertLess(float(half["ours"]), 0.8 * float(dense["ours"]))
        self.assertEqual(ran.stderr.count("P37: PULSELoCo "), 4)

    def test_options_that_make_no_sense(self) -> None:
        for option in ("--workers=0", "--workers=257", "--steps=0", "--rounds=0"):
            ran = subprocess.run(["/bin/bash", RUN, option], check=False, capture_output=True, text=True)
            self.assertEqual(ran.returncode, 2, option)
            self.assertIn("at least 1 step", ran.stderr)


if __name__ == "__main__":
    unittest.main()
