"""The model of a job on a GPU at a small size: every figure is printed and called a model, the engine gets the trainer's
bytes, and nothing is faster than the bus.
"""

from __future__ import annotations

import csv
import subprocess
import unittest
from pathlib import Path

RUN = Path("tools/bench/run_gpu.sh")
MIB = 8
BUS = 55.2e9  # bytes a second (tests/fakes/cuda/model/gpu_model.h)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/bash", str(RUN), *arguments], check=False, capture_output=True, text=True)


class GpuModel(unittest.TestCase):
    def test_every_figure_is_a_model_and_none_is_faster_than_the_bus(self) -> None:
        ran = run(f"--size={MIB}MiB", "--rounds=1")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        for column in list(rows[0])[1:]:
            self.assertTrue(column.startswith("model_"), column)
        self.assertEqual(ran.stderr.count("MODEL, not a measurement"), 2)
        for host in {row["model_host"] for row in rows}:
            figures = {row["id"]: row for row in rows if row["model_host"] == host}
            self.assertLessEqual({"P30", "P31", "P32", "P33", "P34", "P38"}, set(figures))
            for row in figures.values():
                parts = sum(float(row[f"model_{part}_ms"]) for part in ("waits", "memory", "host"))
                self.assertAlmostEqual(float(row["model_ms"]), parts, delta=0.01, msg=row)
            self.assertLess(float(figures["P30"]["model_ms"]), float(figures["P31"]["model_ms"]))
            for whole in ("P33", "P34"):  # down to the host, and up again
                self.assertGreater(float(figures[whole]["model_ms"]), 2 * MIB * 2**20 / BUS * 1e3)

    def test_without_the_fake_driver_it_says_how_to_start(self) -> None:
        ran = subprocess.run(["tools/bench/gpu_model", "--size=4MiB"], check=False, capture_output=True, text=True,
                             env={"LD_LIBRARY_PATH": ""})
        self.assertEqual(ran.returncode, 1)
        self.assertIn("tools/bench.sh gpu", ran.stderr)


if __name__ == "__main__":
    unittest.main()
