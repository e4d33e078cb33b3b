"""The sections of gpu_check that are Python: what they make of their measurements, and when they fail."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Iterator

from tools.gpu_check.job.job_figures import (
    Histogram,
    Pass,
    Span,
    histograms,
    lost_seconds,
    since,
    usual_seconds,
    wait_for,
)
from tools.gpu_check.result_lines import Limit, Lines, why_failed

PAGE = """# HELP dws_sender_capture_seconds Of a capture.
dws_sender_capture_seconds_count{dws_job="j",trainer_rank="0"} 4
dws_sender_capture_seconds_sum{dws_job="j",trainer_rank="0"} 0.5
dws_sender_capture_seconds_bucket{dws_job="j",trainer_rank="0",le="+Inf"} 4
dws_sender_stage_seconds_count{dws_job="j",trainer_rank="0",stage="compare"} 4
dws_sender_stage_seconds_sum{dws_job="j",trainer_rank="0",stage="compare"} 0.25
dws_sender_stage_seconds_count{dws_job="j",trainer_rank="0",stage="seal"} 4
dws_sender_stage_seconds_sum{dws_job="j",trainer_rank="0",stage="seal"} 0.125
dws_receiver_seconds_since_version{dws_job="j",receiver_id="r"} 7
"""
# What it finds is in the environment; what it runs prints results.
SANITIZER = """#!/bin/bash
"$2"
if [[ "$1" == --tool=memcheck ]]; then echo "========= ERROR SUMMARY: $FOUND errors"; fi
if [[ "$1" == --tool=racecheck ]]; then
  echo "========= RACECHECK SUMMARY: $FOUND hazards displayed ($FOUND errors, 0 warnings)"
fi
[[ "$FOUND" == 0 ]]
"""


@contextlib.contextmanager
def printed() -> Iterator[list[dict[str, Any]]]:
    """The lines that are printed in the block, once it has ended."""
    results: list[dict[str, Any]] = []
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        yield results
    results.extend(map(json.loads, text.getvalue().splitlines()))


class FiguresTest(unittest.TestCase):
    def test_the_first_pass_with_a_version_has_waited_for_it(self) -> None:
        passes = [Pass(0, 0, 1, 1), Pass(1, 1.25, 2, 2), Pass(2, 2, 3, 2)]
        self.assertEqual([wait_for(passes, v) for v in (1, 2, 3)], [0, 0.25, None])

    def test_time_lost_is_what_passes_take_longer_than_idle_ones_with_their_waits(self) -> None:
        passes = [Pass(0, 0, 1, 1), Pass(1, 1, 2, 1), Pass(2, 2, 4, 1), Pass(4, 5, 6, 2), Pass(6, 6, 7, 2)]
        usual = usual_seconds(passes, [Span(0, 2), Span(6, 7)])
        self.assertEqual(usual, 1)
        self.assertEqual(lost_seconds(passes, Span(2.5, 5.5), 1), 2)
        self.assertEqual(lost_seconds(passes, Span(6.5, 6.75), 1), 0)
        self.assertIsNone(usual_seconds(passes, [Span(2.5, 3)]))

    def test_histograms_are_told_apart_by_their_own_labels(self) -> None:
        self.assertEqual(
            histograms(PAGE),
            {
                "dws_sender_capture_seconds": Histogram(0.5, 4),
                "dws_sender_stage_seconds{stage=compare}": Histogram(0.25, 4),
                "dws_sender_stage_seconds{stage=seal}": Histogram(0.125, 4),
            },
        )

    def test_only_what_grew_between_two_readings_is_shown(self) -> None:
        before = {"a": Histogram(1, 2), "b": Histogram(1, 2)}
        after = {"a": Histogram(1.5, 4), "b": Histogram(1, 2), "c": Histogram(2, 1)}
        self.assertEqual(since(before, after), {"a": Histogram(0.5, 2), "c": Histogram(2, 1)})


class LinesTest(unittest.TestCase):
    def test_a_figure_above_its_limit_fails(self) -> None:
        lines = Lines("job", "cuda")
        with printed() as results:
            lines.measured("a", 20, "ms", Limit(20, "of what"), [10, 20, 30])
            lines.measured("b", 21, "ms", Limit(20, "of what"))
        self.assertEqual([result["status"] for result in results], ["passed", "failed"])
        self.assertEqual(lines.failed, 1)
        self.assertEqual(results[0]["figure"]["values"], [10, 20, 30])
        self.assertEqual((results[1]["figure"]["ratio"], results[1]["figure"]["bar"]), (1.05, "<= 1"))

    def test_a_limit_for_another_machine_and_one_over_a_fake_driver_decide_nothing(self) -> None:
        with printed() as results:
            Lines("job", "cuda").measured("a", 21, "ms", Limit(20, "of what", "for another one"))
            Lines("job", "cpu").measured("a", 21, "ms", Limit(20, "of what"))
        here, fake = results
        self.assertEqual((here["status"], here["note"]), ("passed", "for another one"))
        self.assertNotIn("bar", here["figure"])
        self.assertEqual((fake["status"], fake["fake_driver"]), ("skipped", True))

    def test_a_check_that_ends_with_an_error_or_not_at_all_has_failed(self) -> None:
        self.assertEqual(why_failed(["-c", "pass"], 30, {}), "")
        self.assertIn("status 3", why_failed(["-c", "import os; os._exit(int(os.environ['A']))"], 30, {"A": "3"}))
        self.assertIn("within 1 s", why_failed(["-c", "import time; time.sleep(60)"], 1, {}))


class SanitizeTest(unittest.TestCase):
    def run_over(self, program: str, *options: str, found: int = 0, sanitizer: str = SANITIZER) -> list[Any]:
        """Runs the section over a program of that text. Returns names, outcomes and notes."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("compute-sanitizer", sanitizer), ("gpu_tests", program)):
                path = Path(folder, name)
                path.write_text(text)
                path.chmod(0o755)
            done = subprocess.run(
                [sys.executable, "tools/gpu_check/sanitize_check.py", f"--bin={folder}", *options],
                env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "FOUND": str(found)},
                stdout=subprocess.PIPE,
                text=True,
            )
        results = [json.loads(line) for line in done.stdout.splitlines()]
        failed = [result for result in results if result["status"] == "failed"]
        self.assertEqual(done.returncode, 1 if failed else 0)
        return [(result["name"], result["status"], result.get("note", "")) for result in results]

    @staticmethod
    def program(status: str) -> str:
        line = json.dumps({"section": "tests", "name": "one", "status": status})
        return f"#!/bin/bash\necho '{line}'\n"

    def test_no_findings_and_tests_that_pass(self) -> None:
        outcomes = self.run_over(self.program("passed"))
        self.assertEqual([status for _, status, _ in outcomes], ["passed"] * 4)
        self.assertEqual({name.split()[0] for name, _, _ in outcomes}, {"memcheck", "racecheck", "gpu_tests"})

    def test_findings_fail_and_so_do_tests_under_the_tool(self) -> None:
        outcomes = self.run_over(self.program("failed"), found=2)
        self.assertEqual([status for _, status, _ in outcomes], ["failed"] * 4)
        self.assertIn("it found 2", outcomes[0][2])
        self.assertIn("failed: one", outcomes[1][2])

    def test_no_summary_no_test_and_no_end_fail(self) -> None:
        silent = self.run_over("#!/bin/bash\n", sanitizer="#!/bin/bash\n")
        self.assertIn("no summary", silent[0][2])
        self.assertIn("no test has passed", silent[1][2])
        endless = self.run_over(self.program("passed") + "exec sleep 60\n", "--seconds=1")
        self.assertEqual(endless[0][1], "failed")
        self.assertIn("within 1 s, in which 1 tests passed", endless[0][2])

    def test_a_line_that_the_tool_has_cut_is_left_out(self) -> None:
        cut = "echo '{\"section\": \"te========= Warning'\n"
        outcomes = self.run_over(self.program("passed") + cut)
        self.assertEqual([status for _, status, _ in outcomes], ["passed"] * 4)

    def test_it_is_skipped_without_the_tool_and_without_a_gpu(self) -> None:
        done = subprocess.run(
            [sys.executable, "tools/gpu_check/sanitize_check.py", "--bin=nowhere"],
            env={**os.environ, "PATH": "/nowhere"},
            stdout=subprocess.PIPE,
            text=True,
        )
        notes = [json.loads(line)["note"] for line in done.stdout.splitlines()]
        self.assertEqual((done.returncode, notes), (0, ["compute-sanitizer is not on PATH"] * 2))
        skipped = self.run_over(self.program("passed"), "--device=cpu")
        self.assertEqual([status for _, status, _ in skipped], ["skipped"] * 2)


if __name__ == "__main__":
    unittest.main()
