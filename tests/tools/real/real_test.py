"""tools/real.sh without what it needs: what each check says, what it refuses, and how it reports."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tempfile
import unittest

from tools.real.main import CHECKS, NEEDS
from tools.real.report import Report, matching

# What Debian's Python says that lacks it.
CAUSES = {
    "trainers": "Traceback",
    "quickstart": "Traceback",
    "declare": "PackageNotFoundError",
    "store": "ModuleNotFoundError",
    "chains": "ModuleNotFoundError",
    "verl": "ModuleNotFoundError",
    "kubernetes": "ModuleNotFoundError",
    "ray": "ModuleNotFoundError",
    "quantise": "(AttributeError|ModuleNotFoundError)",
    "demo": "AssertionError",
}


def run_it(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k != "DWS_ENGINES"}
    return subprocess.run(["tools/real.sh", *arguments], env=environ, capture_output=True, text=True, timeout=60)


class MissingTest(unittest.TestCase):
    def test_each_check_without_an_environment_skips_and_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for check in set(CHECKS) - {"page"}:
                for options in ([], [f"--engines={folder}"]):
                    with self.subTest(check, options=options):
                        ended = run_it(check, *options)
                        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
                        what = f"no Python with {NEEDS[check].what} is named" if check in NEEDS else (
                            f"{folder} has neither vLLM nor SGLang" if options else "no folder with engines is named")
                        self.assertIn(f"skipped {check}: {what}", ended.stdout)
                        self.assertIn("tools/real.sh install makes", ended.stdout)

    def test_the_page_without_a_browser_is_skipped_and_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(str(shutil.which("dirname")), f"{folder}/dirname")
            ended = subprocess.run(["tools/real.sh", "page"], env={"PATH": folder}, capture_output=True, text=True, timeout=60)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertRegex(ended.stdout, "^skipped page: none of chromium, .* is installed; apt-get install chromium installs one$")

    def test_a_python_that_is_named_and_does_not_do_is_an_error_with_its_cause(self) -> None:
        for check, cause in CAUSES.items():
            for python, why in (
                ("no/such/python", "no/such/python .*: there is no such Python"),
                ("no-such-python", "no-such-python .*: there is no such Python"),
                ("/usr/bin/python3", f"(?s){cause}.*/usr/bin/python3 has no "),
            ):
                with self.subTest(check, python=python):
                    ended = run_it(check, f"--python={python}")
                    self.assertEqual((ended.returncode, ended.stdout), (1, ""))
                    self.assertRegex(ended.stderr, why)

    def test_unknown_commands_and_options_are_refused(self) -> None:
        for arguments, why in (
            (["engine"], "invalid choice: 'engine'"),
            (["declare", "--pyton=x"], "unrecognized arguments: --pyton=x"),
            (["quantise", "--verb"], "unrecognized arguments: --verb"),
            (["engines", "--python=x"], "unrecognized arguments: --python=x"),
            (["demo", "--steps=3"], "--steps: 3: expected at least 4"),
        ):
            with self.subTest(arguments):
                ended = run_it(*arguments)
                self.assertEqual((ended.returncode, ended.stdout), (2, ""))
                self.assertIn(why, ended.stderr)


class ReportTest(unittest.TestCase):
    def test_a_line_for_each_case_and_a_status_by_failures(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            report = Report("these")
            report.ok("a", "2 versions", 3.4)
            report.skipped("b", "torch missing")
            self.assertEqual(report.end(), 0)
            report.failed("c")
            self.assertEqual(report.end(), 1)
        self.assertEqual(
            said.getvalue().splitlines(),
            [
                "ok      a: 2 versions (3 s)",
                "skipped b: torch missing",
                "these: 1 ok, 0 FAILED, 1 skipped",
                "FAILED  c",
                "these: 1 ok, 1 FAILED, 1 skipped",
            ],
        )

    def test_patterns_choose_and_one_that_matches_nothing_is_refused(self) -> None:
        names = ["vllm/llama/tp1", "vllm/llama/tp2", "sglang/llama/tp1"]
        self.assertEqual(matching(names, ["vllm/*", "*/tp1"]), names)
        self.assertEqual(matching(names, ["*/tp2"]), names[1:2])
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
            matching(names, ["*/tp1", "nothing"])
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("'nothing' matches nothing, expected for example vllm/llama/tp1", said.getvalue())


if __name__ == "__main__":
    unittest.main()
