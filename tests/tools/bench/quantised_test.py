"""The benchmark of views at a small size: every figure is printed, and the deltas of views are smaller than
those of BF16, as on any machine.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BENCH = Path("tools/bench/quantised")
EXCERPT = Path("tests/data/rl_trace_excerpt/excerpt.py")
VIEWS = ["fp8-block128/deepseek", "fp8-channel/vllm", "mxfp8/floor", "int4-g32/amax7", "int4-g128/amax7", "nvfp4/modelopt"]


class QuantisedBench(unittest.TestCase):
    def test_every_view_has_its_bytes_and_its_capture(self) -> None:
        with tempfile.TemporaryDirectory() as steps:
            subprocess.run([sys.executable, str(EXCERPT), "unpack", steps], check=True)
            command = [str(BENCH), "--size=8MiB", "--rounds=1", f"--trace={steps}"]
            ran = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual({row["id"] for row in rows}, {"P21", "P22"})
        for view in VIEWS:
            sizes = [row for row in rows if row["id"] == "P22" and view in row["case"]]
            self.assertEqual(len(sizes), 3, view)
            for row in sizes:
                self.assertLess(float(row["ours"]), 0.5 * float(row["reference"]), row)
            self.assertEqual(len([row for row in rows if row["id"] == "P21" and view in row["case"]]), 1)
        self.assertIn("P21", ran.stderr)

    def test_without_a_trace_captures_alone_are_measured(self) -> None:
        command = [str(BENCH), "--size=1MiB", "--rounds=1"]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual([row["id"] for row in rows], ["P21"] * len(VIEWS))


if __name__ == "__main__":
    unittest.main()
