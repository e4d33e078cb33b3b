"""The gate of bytes and instructions: real counts are the same in two runs, and figures that differ are told as they
should be.
"""

from __future__ import annotations

import copy
import csv
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from tools.bench.instructions import gate

RUN = Path("tools/bench/run_gate.sh")
PROGRAM = Path("tools/bench/gate_stages")
PROCESSOR_HAS_AVX2 = " avx2 " in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def run_gate(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(["/bin/bash", str(RUN), *arguments], check=False, capture_output=True, text=True,
                          env=environment)


def is_sanitised() -> bool:
    return "with,build,sanitised" in subprocess.run([str(PROGRAM)], check=True, capture_output=True, text=True).stdout


def found_in(ran: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], int]:
    return {(row["kind"], row["case"]): int(row["found"]) for row in csv.DictReader(ran.stdout.splitlines())}


class Gate(unittest.TestCase):
    """The whole of it, against the committed figures."""

    def test_every_byte_is_as_committed(self) -> None:
        ran = run_gate("--bytes-only")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        found = found_in(ran)
        self.assertEqual({kind for kind, _ in found}, {"bytes"})
        for case in ("synthetic fast", "synthetic wan", "synthetic view", "dense fast", "dense direct"):
            self.assertGreater(found["bytes", case], 0)
        self.assertEqual(sum("trace" in case for _, case in found), 3 * 7)

    def test_instructions_are_as_committed_and_the_same_in_two_runs(self) -> None:
        if is_sanitised():
            self.skipTest("a sanitised program does not run under valgrind")
        first = run_gate()
        self.assertEqual(first.returncode, 0, first.stderr)
        counts = found_in(first)
        stages = {case for kind, case in counts if kind == "instructions"}
        for case in ("capture fast", "encode fast", "decode fast", "stage fast", "commit fast", "stage wan"):
            self.assertIn(case, stages)

        with tempfile.TemporaryDirectory() as folder:
            committed = gate.read_figures(gate.COUNTS.read_text(encoding="utf-8").splitlines())
            # A build whose stages cost 4 % and 2 % more than these, one that costs less, and whose object is smaller.
            for kind, case, factor in (("instructions", "stage fast", 1 / 1.04), ("instructions", "commit fast", 1 / 1.02),
                                       ("instructions", "capture wan", 1.1)):
                committed.by_kind[kind][case] = gate.Figure(int(counts[kind, case] * factor), 1, 1)
            committed.by_kind["bytes"]["synthetic wan"] = gate.Figure(counts["bytes", "synthetic wan"] + 1, 1, 1)
            path, profile = Path(folder) / "counts.csv", Path(folder) / "profile"
            gate.write_figures(path, committed)
            second = run_gate(f"--counts={path}", f"--profile={profile}", UNRELATED="x" * 5000, HOME="/", TZ="Asia/Tokyo")
            self.assertEqual(set(gate.read_counts(profile)), stages)
        self.assertEqual(found_in(second), counts)
        self.assertEqual(second.returncode, 1)
        failures = [line for line in second.stderr.splitlines() if "FAILED" in line]
        self.assertEqual(len(failures), 2, failures)
        self.assertRegex(failures[0], r"synthetic wan: [0-9,]+ bytes, committed [0-9,]+ \(-1, x [01]\.")
        self.assertRegex(failures[1], r"stage fast: [0-9,]+ instructions, committed [0-9,]+ .*x 1\.04.*allowed x 1\.03")
        self.assertIn("gate --update", failures[1])
        self.assertIn("capture wan costs x 0.9", second.stderr)

    def test_single_steps_count_stages_with_the_best_instructions(self) -> None:
        ran = run_gate("--native=128")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = {row["case"]: row for row in csv.DictReader(ran.stdout.splitlines()) if row["kind"] == "instructions"}
        committed = gate.read_figures(gate.COUNTS.read_text(encoding="utf-8").splitlines())
        stages = committed.by_kind["instructions"]
        self.assertEqual(set(rows), {case for case in stages if "dense" not in case and "direct" not in case})
        if is_sanitised() or not PROCESSOR_HAS_AVX2:
            self.skipTest("more instructions than those that are committed")
        # A newer set has as many instructions for a commit, here also what is once a commit, and fewer for the rest.
        for case, of, most in (("commit fast", "changed", 2), ("digest", "elements", 1.1)):
            each = stages[case].value / (stages[case].changed if of == "changed" else stages[case].elements)
            self.assertLess(int(rows[case]["found"]) / int(rows[case][of]), each * most, case)
            self.assertGreater(int(rows[case]["found"]) / int(rows[case][of]), each / 8, case)

    def test_a_size_that_cannot_be_stepped_is_refused(self) -> None:
        for size in ("0", "100", "8192", "-128"):
            ran = run_gate(f"--native={size}")
            self.assertEqual(ran.returncode, 1)
            self.assertIn("a multiple of 128, at most 4096", ran.stderr)


class Comparison(unittest.TestCase):
    def compared(self, kind: str, committed: int, found: int) -> list[str]:
        old, new = gate.Figures(), gate.Figures()
        old.by_kind[kind]["a"] = gate.Figure(committed, 1, 1)
        new.by_kind[kind]["a"] = gate.Figure(found, 1, 1)
        return gate.compare(old, new, ["bytes", "instructions"])

    def test_counts_of_another_compiler_are_told_and_only_bytes_fail(self) -> None:
        committed = gate.read_figures(gate.COUNTS.read_text(encoding="utf-8").splitlines())
        found = copy.deepcopy(committed)
        found.made_with["compiler"] = "99.1"
        stages = found.by_kind["instructions"]
        stages["stage fast"] = gate.Figure(stages["stage fast"].value * 2, 1, 1)
        failures, notes = gate.judge(committed, found)
        self.assertEqual(failures, [])
        self.assertIn("INSTRUCTIONS WERE NOT COMPARED", notes[0])
        self.assertIn("compiler 99.1, committed with 12.", notes[0])
        found.by_kind["bytes"]["dense fast"] = gate.Figure(1, 1, 1)
        self.assertEqual(len(gate.judge(committed, found)[0]), 1)
        # With the same compiler, the differences count.
        found.made_with = committed.made_with
        self.assertEqual(len(gate.judge(committed, found)[0]), 2)

    def test_what_is_written_is_read_back(self) -> None:
        committed = gate.read_figures(gate.COUNTS.read_text(encoding="utf-8").splitlines())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "counts.csv"
            gate.write_figures(path, committed)
            self.assertEqual(path.read_text(encoding="utf-8"), gate.COUNTS.read_text(encoding="utf-8"))

    def test_three_per_cent_is_the_limit_of_instructions_and_none_that_of_bytes(self) -> None:
        for committed, found in ((100, 103), (100, 50)):
            self.assertEqual(self.compared("instructions", committed, found), [])
        self.assertEqual(len(self.compared("instructions", 1000, 1031)), 1)
        self.assertEqual(self.compared("bytes", 1000, 1000), [])
        for found in (999, 1001):
            self.assertEqual(len(self.compared("bytes", 1000, found)), 1)

    def test_a_case_that_only_one_side_has_fails(self) -> None:
        with_case = gate.Figures()
        with_case.by_kind["instructions"]["a"] = gate.Figure(7, 1, 1)
        for old, new, word in ((with_case, gate.Figures(), "committed"), (gate.Figures(), with_case, "found")):
            (failure,) = gate.compare(old, new, ["instructions"])
            self.assertIn(f"a: 7 instructions {word} only", failure)

    def test_a_damaged_file_is_refused_with_its_line(self) -> None:
        for line, message in (("bytes,a,1,2", "4 fields"), ("seconds,a,1,1,1", "unknown kind 'seconds'"),
                              ("bytes,a,many,1,1", "'bytes,a,many,1,1'")):
            with self.assertRaisesRegex(gate.GateError, message):
                gate.read_figures([line])

    def test_without_valgrind_it_says_what_to_do(self) -> None:
        with tempfile.TemporaryDirectory() as empty:
            ran = run_gate(PATH=empty)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("tools/install.sh", ran.stderr)
        self.assertIn("--bytes-only", ran.stderr)


if __name__ == "__main__":
    unittest.main()
