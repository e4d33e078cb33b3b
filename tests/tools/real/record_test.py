"""tools.real.record: what a check prints becomes what is kept of it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest

from tools.real import record
from tools.real.environment import Interpreter
from tools.real.report import Report

PYTHON = Interpreter(sys.executable)


class RecordTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "ran.json")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder.name)
        git = ["git", "-c", "user.name=a", "-c", "user.email=b"]
        for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "c"]):
            subprocess.run([*git, *arguments], check=True)

    def test_every_line_of_a_report_is_read_back(self) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            report = Report("cases")
            report.ok("a/b", "9 passes: 0 torn", 3.2)
            report.ok("plain")
            report.failed("c", "it died (again)\nTraceback", 1.0)
            report.skipped("d", "no engine")
            report.end()
        self.assertEqual(
            record.cases_in(printed.getvalue().splitlines()),
            {"a/b": (True, "9 passes: 0 torn"), "plain": (True, ""), "c": (False, "it died (again)")},
        )

    def run_check(self, text: str, status: int = 0) -> int:
        program = f"print({text!r}); raise SystemExit({status})"
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            ended = record.run(self.path, "check", [sys.executable, "-c", program], PYTHON)
        self.assertEqual(shown.getvalue(), text + "\n")
        return ended

    def test_a_run_adds_its_cases_and_keeps_those_of_others(self) -> None:
        self.assertEqual(self.run_check("ok      one: fine (1 s)\nnoise"), 0)
        self.assertEqual(self.run_check("FAILED  two: bad (1 s)\nFAILED  one: not run, the time is over\nok      three", 1), 1)
        ran = record.read(self.path)
        self.assertEqual(list(ran), ["check/one", "check/three", "check/two"])
        self.assertEqual((ran["check/two"].good, ran["check/two"].found), (False, "bad"))
        head = subprocess.run(["git", "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertTrue(head.startswith(ran["check/one"].commit))
        self.assertRegex(ran["check/one"].day, r"^\d{4}-\d\d-\d\d$")

    def test_a_file_that_is_no_record_is_refused_by_name(self) -> None:
        with open(self.path, "w", encoding="utf-8") as file:
            file.write('{"check/one": {"good": true}}')
        with self.assertRaisesRegex(ValueError, "ran.json: expected cases with good"):
            record.read(self.path)


if __name__ == "__main__":
    unittest.main()
