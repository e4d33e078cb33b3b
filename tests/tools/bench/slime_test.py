"""The benchmark of slime's version folders with one small round: the figures are printed, and both local checkpoints
end with the trainer's weights (the program fails otherwise).
"""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
import unittest

VERBS = ["publish", "publish against publish and fsync", "apply", "apply against apply and fsync"]


def run_slime(*options: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "tools/bench/run_slime.sh", f"--dir={tempfile.gettempdir()}", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True)


class SlimeBench(unittest.TestCase):
    def test_the_figures_of_both_encodings_are_printed(self) -> None:
        ran = run_slime("--gib=0.01", "--rounds=2", "--threads=2")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual(list(rows[0]), ["id", "case", "ours", "reference", "ratio", "unit"])
        self.assertEqual([row["case"].split(";")[0] for row in rows], VERBS * 4)
        for number, row in enumerate(rows):
            self.assertEqual(row["id"], "P26")
            self.assertIn("xor" if number < len(rows) / 2 else "overwrite", row["case"])
            self.assertIn("P5's", row["case"])
            self.assertIn(row["case"], ran.stderr)
        elapsed = [row for row in rows if row["unit"] == "s"]
        self.assertEqual(len(elapsed), len(rows) / 2)
        for row in elapsed:
            self.assertGreater(float(row["ours"]), 0)
            self.assertGreater(float(row["reference"]), 0)

    def test_a_checkout_that_is_not_slime_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ran = run_slime("--gib=0.01", "--rounds=1", f"--slime-source={folder}")
            self.assertEqual(ran.returncode, 2)
            self.assertIn(f"--slime-source: {folder}: has no slime/utils/disk_delta.py", ran.stderr)
            helpers = os.path.join(folder, "slime/utils/disk_delta.py")
            os.makedirs(os.path.dirname(helpers))
            with open(helpers, "w", encoding="utf-8"):
                pass
            ran = run_slime("--gib=0.01", "--rounds=1", f"--slime-source={folder}")
            self.assertEqual(ran.returncode, 2)
            self.assertIn("update_weight_from_disk_delta.py", ran.stderr)

    def test_a_folder_that_is_too_small_is_refused(self) -> None:
        ran = run_slime("--gib=1024")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("name another with --dir", ran.stderr)


if __name__ == "__main__":
    unittest.main()
