"""Runs gpu_tests under compute-sanitizer: memcheck, which finds accesses outside of memory, then racecheck, which finds
races in shared memory. Prints JSON lines as gpu_check does. Without compute-sanitizer on PATH both are skipped.

    python3 sanitize_check.py --bin=bin            # gpu_tests
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple, Optional

from tools.gpu_check.result_lines import Lines

TOOL_SECONDS = 240
PROGRAM = "compute-sanitizer"
SUMMARIES = {
    "memcheck": r"ERROR SUMMARY: (\d+) error",
    "racecheck": r"RACECHECK SUMMARY: (\d+) hazard",
}


class Outcome(NamedTuple):
    """`found`: errors or hazards, None: the tool has printed no summary. `too_late`: it did not finish."""

    found: Optional[int]
    passed: int
    failed: list[str]
    too_late: bool


def read(output: str, tool: str, too_late: bool) -> Outcome:
    """What the tool and the tests under it have printed."""
    summaries = re.findall(SUMMARIES[tool], output)
    tests = []
    for line in output.splitlines():
        try:
            result = json.loads(line) if line.startswith("{") else None
        except ValueError:
            continue  # the tool has written into the program's output
        if result is not None:
            tests.append(result)
    failed = [test["name"] for test in tests if test["status"] == "failed"]
    passed = sum(test["status"] == "passed" for test in tests)
    return Outcome(sum(map(int, summaries)) if summaries else None, passed, failed, too_late)


def run(tool: str, programs: str, seconds: float) -> Outcome:
    command = [PROGRAM, f"--tool={tool}", os.path.join(programs, "gpu_tests")]
    # The program gets its own session, so that its children end with it.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    too_late = False
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        too_late = True
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    text = output.decode(errors="replace")
    # Findings are long; their summary and what tests say of themselves is at the end.
    print("\n".join(text.splitlines()[-60:]), file=sys.stderr)
    return read(text, tool, too_late)


def report(lines: Lines, tool: str, outcome: Outcome, seconds: float) -> None:
    if outcome.too_late:
        why = f"it did not finish within {seconds:.0f} s, in which {outcome.passed} tests passed"
    elif outcome.found is None:
        why = "it printed no summary, see above"
    else:
        why = f"it found {outcome.found}, see above" if outcome.found else ""
    lines.checked(f"{tool} finds nothing in gpu_tests", why)
    if outcome.failed:
        why = f"failed: {', '.join(outcome.failed)}"
    else:
        why = "" if outcome.passed else "no test has passed"
    lines.checked(f"gpu_tests pass under {tool}", why)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--bin", required=True, help="folder of gpu_tests")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=TOOL_SECONDS, help="for each tool")
    options = parser.parse_args()
    lines = Lines("sanitize", options.device)
    reason = "" if shutil.which(PROGRAM) else f"{PROGRAM} is not on PATH"
    if options.device == "cpu":
        reason = "this is a run without a GPU"
    for tool in SUMMARIES:
        if reason:
            lines.skipped(f"{tool} finds nothing in gpu_tests", reason)
            continue
        print(f"sanitize: {tool} ...", file=sys.stderr)
        begin = time.monotonic()
        report(lines, tool, run(tool, options.bin, options.seconds), options.seconds)
        print(f"sanitize: {tool} took {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 1 if lines.failed else 0


if __name__ == "__main__":
    sys.exit(main())
