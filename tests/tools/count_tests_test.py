"""tools/count_tests.py on logs and event files as Bazel, Catch2 and unittest write them."""

import json
import tempfile
import unittest
from pathlib import Path

from tools.count_tests import Count, count_events, count_log, count_target


def test_result(label: str, status: str, log: Path) -> str:
    return json.dumps({
        "id": {"testResult": {"label": label, "run": 1, "shard": 1, "attempt": 1}},
        "testResult": {
            "status": status,
            "testActionOutput": [{"name": "test.log", "uri": log.as_uri()}],
        },
    })


def completed(label: str, success: bool) -> str:
    return json.dumps({
        "id": {"targetCompleted": {"label": label}},
        "completed": {"success": True} if success else {},
    })


class LogTest(unittest.TestCase):
    def test_a_catch2_log_with_all_cases_passed_is_counted(self) -> None:
        log = "====\nAll tests passed (1 assertion in 1 test case)\n\n"
        self.assertEqual(count_log(log), Count(passed=1))

    def test_a_catch2_log_with_some_cases_failed_is_counted(self) -> None:
        log = "test cases: 7 | 5 passed | 2 failed\nassertions: 61 | 58 passed | 3 failed\n"
        self.assertEqual(count_log(log), Count(passed=5, failed=2))

    def test_a_catch2_log_with_all_cases_failed_is_counted(self) -> None:
        self.assertEqual(count_log("test cases: 2 | 2 failed\n"), Count(failed=2))

    def test_a_skipped_case_of_unittest_is_counted_as_skipped(self) -> None:
        log = "..s\n-----\nRan 3 tests in 0.001s\n\nOK (skipped=1)\n"
        self.assertEqual(count_log(log), Count(passed=2, skipped=1))

    def test_failures_and_errors_of_unittest_are_counted_as_failed(self) -> None:
        log = "Ran 9 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=3)\n"
        self.assertEqual(count_log(log), Count(passed=3, failed=3, skipped=3))

    def test_a_log_without_a_summary_has_no_cases(self) -> None:
        self.assertEqual(count_log("killed\n"), Count())


class VerdictTest(unittest.TestCase):
    def test_a_target_without_a_summary_is_one_case(self) -> None:
        self.assertEqual(count_target(True, ""), Count(passed=1))
        self.assertEqual(count_target(False, ""), Count(failed=1))

    def test_a_target_that_fails_after_its_summary_has_a_failed_case(self) -> None:
        log = "All tests passed (9 assertions in 4 test cases)\nLeakSanitizer: detected\n"
        self.assertEqual(count_target(False, log), Count(passed=4, failed=1))

    def test_a_target_with_only_skipped_cases_has_none_passed(self) -> None:
        self.assertEqual(count_target(True, "Ran 1 test in 0s\n\nOK (skipped=1)\n"),
                         Count(skipped=1))


class EventsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = Path(folder.name) / "test.log"
        self.log.write_text("All tests passed (9 assertions in 4 test cases)\n")

    def test_targets_are_summed_and_failed_ones_are_named(self) -> None:
        missing = self.log.with_name("no_such.log")
        total, failed, _ = count_events([
            completed("//a:a", True), test_result("//a:a", "PASSED", self.log),
            completed("//b:b", True), test_result("//b:b", "TIMEOUT", missing),
        ])
        self.assertEqual((total, failed), (Count(passed=4, failed=1), ["//b:b"]))

    def test_a_target_that_did_not_build_is_a_failure(self) -> None:
        total, failed, _ = count_events([completed("//a:a", False)])
        self.assertEqual((total, failed), (Count(failed=1), ["//a:a"]))

    def test_a_retried_target_counts_once(self) -> None:
        total, failed, _ = count_events([
            test_result("//a:a", "FAILED", self.log), test_result("//a:a", "PASSED", self.log)])
        self.assertEqual((total, failed), (Count(passed=4), []))

    def test_skipped_cases_are_told_by_target(self) -> None:
        log = self.log.with_name("skips.log")
        log.write_text("Ran 3 tests in 0.1s\n\nOK (skipped=2)\n")
        total, _, skipped = count_events([
            test_result("//b:b", "PASSED", log), test_result("//a:a", "PASSED", self.log)])
        self.assertEqual((total, skipped), (Count(passed=5, skipped=2), {"//b:b": 2}))

    def test_a_run_without_tests_counts_nothing(self) -> None:
        self.assertEqual(count_events([]), (Count(), [], {}))


if __name__ == "__main__":
    unittest.main()
