"""The benchmarks of training on demand at a small size: every figure is printed, with its bar."""

from __future__ import annotations

import csv
import os
import subprocess
import unittest

from tools.bench.training.cells import Cell

RUN = "tools/bench/run_on_demand.sh"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DWS_ENGINES"}
    return subprocess.run(
        ["/bin/bash", RUN, *arguments], env=environment, check=False, capture_output=True, text=True
    )


class OnDemandBench(unittest.TestCase):
    def test_every_figure_is_there_for_every_number_of_threads(self) -> None:
        ran = run("accumulate", "--size=2MiB", "--rounds=1", "--threads", "1", "3")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        for threads in ("1 thread", "3 threads"):
            found = [row["id"] for row in rows if row["case"].endswith(f"; {threads}")]
            self.assertEqual(found, ["P23c", "large", "exact", "first", "seal", "seal"])
        for row in rows:
            self.assertGreater(float(row["ours"]), 0, row)
            self.assertAlmostEqual(float(row["ratio"]), float(row["ours"]) / float(row["reference"]), delta=1e-2)
        self.assertIn(">= 0.8", ran.stderr)

    def test_without_torch_training_is_skipped_and_says_what_it_needs(self) -> None:
        ran = run("training")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(ran.stdout, "id,case,ours,reference,ratio,unit\n")
        self.assertIn("P24: skipped: needs a Python with torch 2.9", ran.stderr)

    def test_a_python_that_is_named_has_to_do(self) -> None:
        ran = run("training", "--python=/bin/false")
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("/bin/false: expected a Python with torch 2.9", ran.stderr)

    def test_arguments_out_of_range_and_other_parts_are_refused(self) -> None:
        for arguments in (("training", "--ranks=1"), ("training", "--samples=4,none"), ("training", "--seconds=0"), ("other",)):
            ran = run(*arguments)
            self.assertEqual(ran.returncode, 2, arguments)
            self.assertIn("expected" if arguments[-1] != "--ranks=1" else "2 to 256", ran.stderr)


class CellTest(unittest.TestCase):
    def test_minibatches_take_the_seconds_that_are_wanted_and_plans_cover_them(self) -> None:
        for balanced in (False, True):
            cell = Cell(ranks=4, samples=4, balanced=balanced, count=5, span=0.5)
            micro, mini = cell.outcomes()
            self.assertAlmostEqual(mini.span, 2.5, places=9)
            self.assertGreaterEqual(micro.span, mini.span - 1e-9)
            spans = 0.0
            for minibatch in cell.minibatches():
                of_ranks = [sum(minibatch.seconds[i] for micro in rank for i in micro) for rank in minibatch.mini.ranks]
                spans += max(of_ranks)
                for plan in (minibatch.micro, minibatch.mini):
                    self.assertEqual(sorted(plan.samples()), list(range(16)))
                self.assertTrue(minibatch.micro.in_step)
            self.assertAlmostEqual(spans, 2.5, places=6)


if __name__ == "__main__":
    unittest.main()
