"""The benchmark of gathers at a small size: every figure is printed, and what was gathered is what its owners have."""

from __future__ import annotations

import csv
import subprocess
import unittest
from pathlib import Path

BENCH = Path("tools/bench/gather")


class GatherBench(unittest.TestCase):
    def test_every_number_of_owners_is_beside_both_copies(self) -> None:
        command = [str(BENCH), "--unit-mib=1", "--units=2", "--rounds=1"]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual({row["id"] for row in rows}, {"P23a"})
        cases = [row["case"] for row in rows]
        for owners in (1, 2, 4, 8):
            for beside in ("a streamed copy", "memcpy"):
                case = f"units of 1 MiB; {owners} owners; same-host beside {beside}; 2 threads"
                self.assertEqual(cases.count(case), 1, case)
        self.assertEqual(len([case for case in cases if "; grpc beside" in case]), 2)
        self.assertIn("P23a", ran.stderr)


if __name__ == "__main__":
    unittest.main()
