"""tools/trainers_check.sh without training frameworks: what counts as equal, which cases are skipped, and the skip
message."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch

from tools.trainers_check import check, comparison, models
from tools.trainers_check.comparison import Comparison


class ComparisonTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.seen = os.path.join(folder.name, "seen")
        self.weights = {"w": torch.tensor([1.0, -0.0]), "n": torch.tensor([3])}

    def engine_says(self, version: int, weights: dict[str, torch.Tensor]) -> None:
        with open(self.seen, "a") as file:
            file.write(f"{version} {models.digest(weights)}\n")

    def test_equal_bits_pass_and_are_counted(self) -> None:
        compared = Comparison(self.seen, "bfloat16")
        for version in (1, 2):
            self.weights["w"] += 1
            cast = {**self.weights, "w": self.weights["w"].to(torch.bfloat16)}
            self.engine_says(version, cast)
            compared.check(version, self.weights)
        self.assertEqual(compared.report(), "2 versions compared")

    def test_any_other_bit_name_type_or_shape_fails(self) -> None:
        for other in (
            {**self.weights, "w": torch.tensor([1.0, 0.0])},
            {"v": self.weights["w"], "n": self.weights["n"]},
            {**self.weights, "n": torch.tensor([3], dtype=torch.int32)},
            {**self.weights, "n": torch.tensor(3)},
            {"w": self.weights["w"]},
        ):
            self.engine_says(1, other)
            with self.assertRaisesRegex(AssertionError, "version 1: engine"):
                Comparison(self.seen, "float32").check(1, self.weights)

    def test_a_version_that_the_engine_never_had_fails(self) -> None:
        with mock.patch.object(comparison, "SECONDS_MAX", 0.01):
            with self.assertRaisesRegex(AssertionError, "did not report version 7"):
                Comparison(self.seen, "float32").check(7, self.weights)

    def test_a_training_that_changed_nothing_fails(self) -> None:
        compared = Comparison(self.seen, "float32")
        for version in (1, 2):
            self.engine_says(version, self.weights)
            compared.check(version, self.weights)
        with self.assertRaisesRegex(AssertionError, "nothing was trained"):
            compared.report()


class CasesTest(unittest.TestCase):
    def test_a_case_names_the_packages_that_it_lacks(self) -> None:
        case = check.Case("hf_run.py", needs=("torch", "no_such_package"))
        self.assertEqual(check.missing(case), ["no_such_package"])

    def test_a_case_that_is_named_fails_without_its_packages(self) -> None:
        lacking = {"a": check.Case("hf_run.py", needs=("no_such_package",))}
        for arguments, status, line in (
            ([], 0, "a: skipped: no_such_package missing"),
            (["--cases=a"], 1, "a: FAILED: no_such_package missing"),
        ):
            with (
                mock.patch.object(check, "CASES", lacking),
                mock.patch.object(sys, "argv", ["check", *arguments]),
                contextlib.redirect_stdout(io.StringIO()) as said,
            ):
                self.assertEqual((check.main(), said.getvalue()), (status, line + "\n"))

    def test_every_case_has_its_program(self) -> None:
        for name, case in check.CASES.items():
            self.assertTrue(os.path.exists(case.command()[-1]), name)

    def run_it(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {k: v for k, v in os.environ.items() if k != "DWS_TRAINERS_PYTHON"}
        command = ["tools/trainers_check.sh", *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    def test_without_a_python_it_skips_and_says_so(self) -> None:
        ended = self.run_it()
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, "^skipped: no Python with torch with fully_shard .* is named")

    def test_a_python_that_is_named_and_does_not_do_is_an_error_with_its_cause(self) -> None:
        for arguments, why in (
            (["--python", "no/such/python"], "no/such/python .*: there is no such Python"),
            (
                ["--python=/usr/bin/python3", "--cases=hf"],
                "(?s)Traceback.*/usr/bin/python3 .* has no torch with",
            ),
        ):
            ended = self.run_it(*arguments)
            self.assertEqual((ended.returncode, ended.stdout), (1, ""))
            self.assertRegex(ended.stderr, why)


if __name__ == "__main__":
    unittest.main()
