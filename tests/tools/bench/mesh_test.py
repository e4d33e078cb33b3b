"""The benchmark of full weights with one small round, and of layouts: its figures are printed (what they are is
no test), and the engine ends with the trainer's weights (the program fails otherwise)."""

from __future__ import annotations

import csv
import subprocess
import unittest

FIGURES = ["P14", "P16", "P15", "P16", "P18", "P18"]
BETWEEN_HOSTS = ["P28", "P29"]  # where namespaces can be made
LAYOUTS = (["P19"] * 3 + ["P20"] * 3) * 4 + ["P19"]  # of four models; memory


class Mesh(unittest.TestCase):
    def test_the_figures_are_printed(self) -> None:
        command = ["bash", "tools/bench/run_mesh.sh", "--size-mib=16", "--rounds=1"]
        command += ["--link-size-mib=16", "--link-rate=16000000", "--peers="]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        skipped = "P28 and P29 skipped: no network namespaces here" in ran.stderr
        between = [] if skipped else BETWEEN_HOSTS
        self.assertEqual([row["id"] for row in rows], FIGURES + between + LAYOUTS)
        self.assertIn("P17 skipped: no Python with Mooncake is named (--peers)", ran.stderr)
        least = [row for row in rows if row["id"] == "P20" and "the least" in row["case"]]
        self.assertEqual(len(least), 4)
        for row in least:  # bytes are the same on every machine
            self.assertTrue(1 <= float(row["ratio"]) <= 1.02, row)
        for row in rows:
            self.assertGreater(float(row["ours"]), 0)
            self.assertIn(row["case"], ran.stderr)

    def test_a_python_without_the_peer_that_was_asked_for_is_refused(self) -> None:
        command = ["bash", "tools/bench/run_mesh.sh", "--peers=/usr/bin/false"]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 2, ran.stderr)
        self.assertIn("--peers=/usr/bin/false: that Python has no Mooncake that works", ran.stderr)


if __name__ == "__main__":
    unittest.main()
