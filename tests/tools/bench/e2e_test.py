"""The end-to-end benchmark with one small round: the figures are printed, and on every path the engine ends with
the trainer's weights (the program fails otherwise).
"""

from __future__ import annotations

import csv
import subprocess
import tempfile
import unittest

SLIME = ["slime xor", "slime overwrite"]
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
    def rows_of(self, *options: str) -> tuple[list[dict[str, str]], str]:
        """The figures, all of them positive and in the table, and stderr."""
        ran = run_e2e("--gib=0.01", "--link-gib=0.01", "--rounds=1", "--threads=2", *options)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = list(csv.DictReader(ran.stdout.splitlines()))
        for row in rows:
            self.assertEqual(list(row), ["id", "case", "ours", "reference", "ratio", "unit"])
            self.assertGreater(float(row["ours"]), 0)
            self.assertGreater(float(row["reference"]), 0)
            self.assertIn(row["case"], ran.stderr)
        return rows, ran.stderr

    def check_way(self, rows: list[dict[str, str]], way: str, peers: list[str]) -> None:
        """Each peer once, and the best of them in the end."""
        self.assertEqual({row["id"] for row in rows}, {"P5"})
        self.assertTrue(all(row["case"].startswith(way + "; ") for row in rows), rows)
        shown = [row["case"].split("; ")[1] for row in rows]
        self.assertEqual(shown[: len(peers)], peers)
        by_ratio = dict(zip(peers, (float(row["ratio"]) for row in rows)))
        best = min(peers, key=lambda peer: by_ratio[peer])
        self.assertEqual(shown[len(peers) :], [best, best, f"the best of them ({best})"])
        self.assertEqual(float(rows[-1]["ratio"]), by_ratio[best])

    def test_loopback_is_compared_with_each_encoding_and_a_full_copy(self) -> None:
        rows, _ = self.rows_of("--only=loopback")
        self.check_way(rows, "loopback", [*SLIME, "full copy"])

    def test_files_of_limited_throughput_are_compared_with_each_encoding(self) -> None:
        rows, _ = self.rows_of("--only=shared")
        self.check_way(rows, "files at 300 MB/s", SLIME)

    def test_links_are_compared_at_each_speed_and_removed(self) -> None:
        rows, errors = self.rows_of("--only=link", "--link-mb-s=1,50")
        if "P5 over links skipped: no network namespaces here" in errors:
            self.assertEqual(rows, [])
            self.skipTest(errors.strip())
        half = len(rows) // 2
        self.check_way(rows[:half], "link of 1 MB/s", [*SLIME, "full copy (once)"])
        self.check_way(rows[half:], "link of 50 MB/s", [*SLIME, "full copy"])
        # The bytes take their time: 10.7 MB at 1 MB/s, each other encoding less.
        seconds = {row["case"].split("; ")[1]: float(row["reference"]) for row in rows[:3]}
        self.assertGreater(seconds["full copy (once)"], 10)
        self.assertLess(seconds["slime xor"], 5)

    def test_a_link_without_a_speed_is_refused(self) -> None:
        for rates in ("0", "10,x", "", ",".join(["10"] * 17)):
            ran = run_e2e("--only=link", f"--link-mb-s={rates}")
            self.assertEqual(ran.returncode, 2, rates)
            self.assertIn("--link-mb-s", ran.stderr)

    def test_a_link_that_a_full_copy_does_not_cross_in_time_is_refused(self) -> None:
        ran = run_e2e("--only=link", "--link-gib=1", "--link-mb-s=100,1")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("takes 1074 s at the slowest of --link-mb-s", ran.stderr)

    def test_full_versions_are_compared_with_first_contact(self) -> None:
        rows, _ = self.rows_of("--only=full")
        self.assertEqual({row["id"] for row in rows}, {"P27"})
        self.assertEqual([row["case"].split(";")[0] for row in rows], FULL_FIGURES)

    def test_each_density_is_compared_with_a_delta_and_a_full_version(self) -> None:
        # The least that a sender publishes in full by itself is 16 MiB.
        rows, _ = self.rows_of("--only=density", "--dense-gib=0.017")
        cases = [row["case"].split("; ") for row in rows]
        kinds = [f"{percent} % one step" for percent in ("0.01", "0.1", "1", "3", "10", "30", "50", "100")]
        kinds += [f"{percent} % random bits" for percent in ("10", "50", "100")]
        figures = [
            f"{what} against {other}"
            for what in ("publish", "publish to COMMITTED")
            for other in ("delta", "full")
        ]
        self.assertEqual(
            [(case[0], case[-1]) for case in cases],
            [(kind, figure) for kind in kinds for figure in figures],
        )
        chosen = {case[0]: case[-2] for case in cases}
        self.assertEqual(chosen["1 % one step"], "chose delta")
        self.assertEqual(chosen["100 % random bits"], "chose full")

    def test_a_folder_that_is_too_small_is_refused(self) -> None:
        ran = run_e2e("--gib=1024")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("name another with --dir", ran.stderr)


if __name__ == "__main__":
    unittest.main()
