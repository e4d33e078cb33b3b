"""tools/trainers_check.sh without training frameworks: what counts as equal, which cases are skipped, and the skip
message."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

import torch

from tests.tools import optional_python_case
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


class SkipTest(optional_python_case.OptionalPythonCase):
    SCRIPT = "tools/trainers_check.sh"
    VARIABLE = "DWS_TRAINERS_PYTHON"
    WHAT = r"torch with fully_shard \(2\.6 or newer\)"
    CAUSE = "Traceback"
    OPTIONS = ("--cases=hf",)


if __name__ == "__main__":
    unittest.main()
