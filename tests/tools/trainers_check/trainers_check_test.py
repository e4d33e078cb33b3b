"""tools/trainers_check.sh without training frameworks: what counts as equal, which cases are skipped, and the skip
message."""

from __future__ import annotations

import os
import subprocess
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

    def test_every_case_has_its_program(self) -> None:
        for name, case in check.CASES.items():
            self.assertTrue(os.path.exists(case.command()[-1]), name)

    def test_without_the_packages_it_skips_and_says_so(self) -> None:
        environ = {k: v for k, v in os.environ.items() if k != "DWS_TRAINERS_PYTHON"}
        for arguments, why in (
            ([], "no Python with torch with fully_shard"),
            (["--python", "no/such/python"], "does not exist"),
            (["--python=/usr/bin/python3", "--cases=hf"], "/usr/bin/python3 has no torch with"),
        ):
            command = ["tools/trainers_check.sh", *arguments]
            ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertRegex(ended.stdout, f"^skipped: .*{why}")


if __name__ == "__main__":
    unittest.main()
