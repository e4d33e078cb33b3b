"""The codec benchmark at a small size, without its daemons: every figure is printed, in CSV and in the table."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

EXCERPT = Path("tests/data/rl_trace_excerpt/excerpt.py")
RUN = Path("tools/bench/run_codec.sh")
IDS = {
    "P1a", "P1b", "P2a", "P2b", "P25", "P3a", "P3b", "P4a", "P4b", "P4c", "dense",
}  # fmt: skip
# What is recorded of them for the excerpt's last step.
PEERS = {"slime format B: xor + zstd-1": 6627, "slime format A: deltas_zstd": 7045,
         "gaps + xor masks + zstd-1 in buckets": 3959}


def run_codec(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(RUN), *arguments], check=False, capture_output=True, text=True)


class Codec(unittest.TestCase):
    def test_every_figure_is_printed(self) -> None:
        with tempfile.TemporaryDirectory() as steps:
            subprocess.run([sys.executable, str(EXCERPT), "unpack", steps], check=True)
            ran = run_codec("--size=8MiB", "--rounds=1", "--no-daemons", f"--trace={steps}")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual(list(rows[0]), ["id", "case", "ours", "reference", "ratio", "unit"])
        self.assertEqual({row["id"] for row in rows}, IDS)
        for row in rows:
            for column in ("ours", "reference"):
                self.assertGreater(float(row[column]), 0, row)
            self.assertIn(row["case"], ran.stderr)
            self.assertTrue(row["unit"], row)
        peers = {row["case"].split("; ")[1]: row for row in rows if row["id"] in ("P2a", "P2b")}
        self.assertEqual({name: int(row["reference"]) for name, row in peers.items()}, PEERS)
        for row in peers.values():
            self.assertAlmostEqual(float(row["ratio"]), float(row["reference"]) / float(row["ours"]), places=3)
        self.assertIn("<=", ran.stderr)

    def test_another_trace_has_no_bytes_of_other_formats(self) -> None:
        with tempfile.TemporaryDirectory() as steps:
            subprocess.run([sys.executable, str(EXCERPT), "unpack", steps], check=True)
            sorted(Path(steps).iterdir())[-1].unlink()
            ran = run_codec("--only=P1b,P2", f"--trace={steps}")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual({row["id"] for row in csv.DictReader(ran.stdout.splitlines())}, {"P1b"})
        self.assertIn("P2 skipped: ", ran.stderr)

    def test_a_damaged_trace_is_refused_by_name(self) -> None:
        with tempfile.TemporaryDirectory() as steps:
            for step in ("a", "b"):
                (Path(steps) / f"{step}.safetensors").write_bytes(b"\xff" * 64)
            ran = run_codec("--size=1MiB", "--rounds=1", "--no-daemons", f"--trace={steps}")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("a.safetensors", ran.stderr)

    def test_one_group_of_figures_can_be_run_alone(self) -> None:
        ran = run_codec("--size=1MiB", "--rounds=1", "--only=dense")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual({row["id"] for row in rows}, {"dense"})

    def test_help_lists_the_options(self) -> None:
        ran = run_codec("--help")
        self.assertEqual(ran.returncode, 0)
        for option in ("--size", "--trace", "--rounds", "--only", "--no-daemons"):
            self.assertIn(option, ran.stdout)


if __name__ == "__main__":
    unittest.main()
