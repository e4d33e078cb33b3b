"""The benchmark of planning with one round: its figures are printed (what they are is no test)."""

from __future__ import annotations

import csv
import subprocess
import unittest


class Mesh(unittest.TestCase):
    def test_the_figures_are_printed(self) -> None:
        command = ["tools/bench/mesh", "--rounds=1"]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual([(row["id"], row["unit"]) for row in rows], [("P19", "s"), ("P19", "GiB")])
        for row in rows:
            self.assertGreater(float(row["ours"]), 0)
            self.assertIn(row["case"], ran.stderr)


if __name__ == "__main__":
    unittest.main()
