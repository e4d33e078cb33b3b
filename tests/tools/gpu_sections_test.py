"""The sections of gpu_check that are Python: what they make of their measurements, and when they fail."""

import contextlib
import io
import json
import unittest
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


if __name__ == "__main__":
    unittest.main()
