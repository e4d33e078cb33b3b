"""The part of the codec benchmark that starts daemons, at a small size: every figure is printed, and the
engine ends with the trainer's weights (the program fails otherwise)."""

from __future__ import annotations

import csv
import subprocess
import unittest

HEAD = ["id", "case", "ours", "reference", "ratio", "unit"]


class CodecDaemons(unittest.TestCase):
    def test_every_figure_is_printed(self) -> None:
        command = ["bash", "tools/bench/run_codec.sh"]
        options = ["--size=16MiB", "--rounds=1", "--only=daemons"]
        ran = subprocess.run(command + options, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual(list(rows[0]), HEAD)
        self.assertEqual([row["id"] for row in rows], ["P6", "P7", "P13", "P13", "P13", "P13", "P13"])
        for row in rows:
            self.assertGreater(float(row["ours"]), 0, row)
            self.assertGreater(float(row["reference"]), 0, row)
            self.assertIn(row["case"], ran.stderr)


if __name__ == "__main__":
    unittest.main()
