"""The end-to-end benchmark with one small round: the figures are printed, the engine ends with the trainer's
weights, and slime's reader finds every digest right (the program fails otherwise).
"""

from __future__ import annotations

import csv
import subprocess
import tempfile
import unittest

FIGURES = ["round 1", "bytes of a version", "until the weights may change", "publish to last ACK"]
FULL_FIGURES = [
    f"{kind}: {what}"
    for kind in ("delta", "full")
    for what in (
        "publish against that of first contact",
        "publish to COMMITTED against first contact",
        "publish to COMMITTED against its transfer",
    )
]


def run_e2e(*options: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "tools/bench/run_e2e.sh", f"--dir={tempfile.gettempdir()}", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True)


class EndToEnd(unittest.TestCase):
    def test_the_figures_of_loopback_and_of_files_are_printed(self) -> None:
        ran = run_e2e("--gib=0.01", "--rounds=1", "--threads=2")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        self.assertEqual(list(rows[0]), ["id", "case", "ours", "reference", "ratio", "unit"])
        shown = [row["case"].split(";")[0] for row in rows]
        self.assertEqual(shown, FIGURES * 2 + FULL_FIGURES)
        for row in rows[len(FIGURES) * 2 :]:
            self.assertEqual(row["id"], "P27")
            self.assertGreater(float(row["ratio"]), 0)
        for number, row in enumerate(rows[: len(FIGURES) * 2]):
            self.assertEqual(row["id"], "P5")
            self.assertIn("loopback" if number < len(FIGURES) else "files at 300 MB/s", row["case"])
            self.assertGreater(float(row["ours"]), 0)
            self.assertGreater(float(row["reference"]), 0)
            self.assertIn(row["case"], ran.stderr)

    def test_slimes_path_with_whole_tensors_writes_the_same_amount(self) -> None:
        size = {}
        for piece in ("0", "0.125"):
            ran = run_e2e("--gib=0.01", "--rounds=1", "--only=loopback", f"--piece={piece}")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            rows = csv.DictReader(ran.stdout.splitlines())
            size[piece] = next(float(row["reference"]) for row in rows if row["unit"] == "MB")
        self.assertAlmostEqual(size["0"] / size["0.125"], 1, delta=0.02)

    def test_a_folder_that_is_too_small_is_refused(self) -> None:
        ran = run_e2e("--gib=1024")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("name another with --dir", ran.stderr)


if __name__ == "__main__":
    unittest.main()
