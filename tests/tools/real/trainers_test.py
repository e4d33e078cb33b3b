"""tools/real.sh trainers without training frameworks: what counts as equal, and which cases are skipped."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import torch

from tools.real.environment import Interpreter
from tools.real.trainers import check, comparison, models
from tools.real.trainers.comparison import Comparison


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
    PYTHON = Interpreter(sys.executable)

    def test_a_python_names_the_packages_that_it_lacks(self) -> None:
        self.assertEqual(check.missing_packages(self.PYTHON, {"json", "no_such_package"}), {"no_such_package"})

    def test_processes_of_other_sessions_end_with_the_one_that_started_them(self) -> None:
        child = [sys.executable, "-c", "import time; time.sleep(600)"]
        program = f"import subprocess, time; subprocess.Popen({child}, start_new_session=True); time.sleep(600)"
        mark = f"test-{os.getpid()}"
        process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "DWS_REAL_CASE": mark})
        deadline = time.monotonic() + 30
        while len(check.marked(mark)) < 2:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        self.assertIn(process.pid, check.marked(mark))
        check._end(process, mark)
        self.assertEqual(check.marked(mark), [])
        self.assertEqual(check.marked(f"{mark}0"), [])

    def test_a_case_that_is_named_fails_without_its_packages(self) -> None:
        lacking = {"a": check.Case("hf_run.py", needs=("json", "no_such_package"))}
        for only, status, line in (
            (None, 0, "skipped a: no_such_package missing"),
            (["a"], 1, "FAILED  a: no_such_package missing"),
        ):
            options = argparse.Namespace(only=only, logs=None, modules=[])
            with (
                mock.patch.object(check, "CASES", lacking),
                contextlib.redirect_stdout(io.StringIO()) as said,
            ):
                self.assertEqual(check.run(options, self.PYTHON), status)
                self.assertEqual(said.getvalue().splitlines()[0], line)

    def test_a_model_names_what_it_needs_beside_its_trainer(self) -> None:
        self.assertIn("torchvision", check.CASES["names-gemma3-vl"].needs)
        self.assertNotIn("torchvision", check.CASES["names-olmoe"].needs)

    def test_every_case_has_its_program(self) -> None:
        for name, case in check.CASES.items():
            self.assertTrue(os.path.exists(case.command("python")[-1]), name)


if __name__ == "__main__":
    unittest.main()
