"""Counts what a `bazel test` run passed and failed, in test cases: `N passed, M failed`.

Reads the file of --build_event_json_file: one result a test target, with the place of its log. The
number of cases comes from the log, where Catch2 and unittest both end with a summary; a target whose
log has none counts as one case, and so does one that did not build or run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable

# "All tests passed (61 assertions in 7 test cases)", "test cases: 7 | 5 passed | 2 failed"
_CATCH_PASSED = re.compile(r"^All tests passed \(.* in (\d+) test cases?\)", re.M)
_CATCH_FAILED = re.compile(r"^test cases: +(\d+) \|(?: +(\d+) passed \|)? +(\d+) failed", re.M)
# "Ran 12 tests in 0.3s", then "OK (skipped=1)" or "FAILED (failures=1, errors=2)"
_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ", re.M)
_UNITTEST_END = re.compile(r"^(?:OK|FAILED)(?: \((.*)\))?$", re.M)

# Bazel's exit statuses about tests: all passed, some failed, there are none.
_TEST_STATUSES = (0, 3, 4)


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Count) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def count_log(log: str) -> Count:
    """The cases of one target, by its log; all zero when the log has no summary."""
    if match := _CATCH_PASSED.search(log):
        return Count(passed=int(match[1]))
    if match := _CATCH_FAILED.search(log):
        return Count(passed=int(match[2] or 0), failed=int(match[3]))
    ran = _UNITTEST_RAN.findall(log)
    ends = _UNITTEST_END.findall(log)
    if not ran or not ends:
        return Count()
    marks = {key: int(value) for key, value in re.findall(r"([a-z ]+)=(\d+)", ends[-1])}
    marks = {key.strip(): value for key, value in marks.items()}
    failed = sum(marks.get(key, 0) for key in ("failures", "errors", "unexpected successes"))
    skipped = marks.get("skipped", 0)
    return Count(max(0, int(ran[-1]) - failed - skipped), failed, skipped)


def count_target(passed: bool, log: str) -> Count:
    """The cases of one target. Bazel's verdict is the one that counts, the log only says how many."""
    count = count_log(log)
    if not passed:
        # It crashed or timed out before its summary, or a sanitizer failed it afterwards.
        count.failed = max(count.failed, 1)
    elif count.failed or not (count.passed or count.skipped):
        count = Count(passed=1)
    return count


def read_log(result: dict[str, Any]) -> str:
    for output in result.get("testActionOutput", []):
        if output.get("name") == "test.log":
            path = Path(urllib.parse.unquote(urllib.parse.urlparse(output.get("uri", "")).path))
            if path.is_file():
                return path.read_text(errors="replace")
    return ""


def count_events(lines: Iterable[str]) -> tuple[Count, list[str], dict[str, int]]:
    """The total, the labels of the targets that failed, and how many cases targets have skipped, from the lines of the
    event file."""
    results: dict[tuple[str, int, int], dict[str, Any]] = {}  # the last attempt of each
    broken: set[str] = set()
    for line in lines:
        event = json.loads(line)
        if key := event["id"].get("testResult"):
            place = (key["label"], key.get("shard", 1), key.get("run", 1))
            results[place] = event.get("testResult", {})
        elif key := event["id"].get("targetCompleted"):
            if not event.get("completed", {}).get("success", False):
                broken.add(key["label"])
    total = Count()
    failed: set[str] = set()
    skipped: dict[str, int] = {}
    for (label, _, _), result in results.items():
        passed = result.get("status") in ("PASSED", "FLAKY")
        count = count_target(passed, read_log(result))
        total.add(count)
        if count.skipped:
            skipped[label] = skipped.get(label, 0) + count.skipped
        if not passed:
            failed.add(label)
    unbuilt = broken - {label for label, _, _ in results}
    total.failed += len(unbuilt)
    return total, sorted(failed | unbuilt), dict(sorted(skipped.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bazel-status", type=int, default=0, help="exit status of bazel test")
    parser.add_argument("events", type=Path)
    options = parser.parse_args()

    total, failed, skipped = count_events(options.events.read_text().splitlines())
    if options.bazel_status not in _TEST_STATUSES or (options.bazel_status == 3 and not total.failed):
        print(f"bazel test ended with status {options.bazel_status}")
        total.failed = max(total.failed, 1)
    for label in failed:
        print(f"failed: {label}")
    for label, cases in skipped.items():
        print(f"skipped: {cases} of {label}")
    if total.skipped:
        print(f"{total.skipped} skipped: what they want is in CONTRIBUTING.md, \"Tests that are skipped\"")
    if not total.passed and not total.failed:
        print("no test ran")
    print(f"{total.passed} passed, {total.failed} failed")
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
