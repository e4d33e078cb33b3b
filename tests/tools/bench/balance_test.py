"""The benchmark of balanced minibatches with few of them: every figure is there, and a page is written between its
marks only.
"""

from __future__ import annotations

import csv
import subprocess
import tempfile
import unittest
from pathlib import Path

from tools.bench.minibatches.page import BEGIN, END

RUN = Path("tools/bench/run_balance.sh")


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/bash", str(RUN), "--minibatches=2", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True)


class BalanceBench(unittest.TestCase):
    def test_every_figure_and_every_bar(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page"
            page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
            ran = run_bench(f"--write={page}")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            written = page.read_text()
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        tables = [row for row in rows if row["id"] == "P36"]
        for table, cells in (("4", 48), ("5", 48), ("6", 160)):
            found = [row for row in tables if row["case"].startswith(f"table {table}:")]
            self.assertEqual(len(found), cells, table)
        # The paper's figures are in the tree: this one is of its table 6.
        cell = next(row for row in tables if row["case"] == "table 6: 7B LongAlign ODC LB-Mini minibatch 4")
        self.assertEqual(float(cell["reference"]), 7.19)
        self.assertEqual({row["id"] for row in rows}, {"P36", "trend", "plan"})
        self.assertIn("mean difference of the 160 cells", ran.stderr)
        self.assertEqual(ran.stderr.count("trend: "), 7)
        self.assertTrue(written.startswith(f"before\n{BEGIN}\nThese figures were made with 2 minibatches"))
        self.assertTrue(written.endswith(f"{END}\nafter\n"))
        self.assertNotIn("old", written)
        self.assertIn("; 7.19; ", written)

    def test_a_page_without_marks_is_left_alone(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page"
            page.write_text(f"{END}\n{BEGIN}\n")
            ran = run_bench(f"--write={page}")
            self.assertNotEqual(ran.returncode, 0)
            self.assertIn("each once, in this order", ran.stderr)
            self.assertEqual(page.read_text(), f"{END}\n{BEGIN}\n")


if __name__ == "__main__":
    unittest.main()
