"""tools/real_engines.sh without an engine: which steps count as torn, when a mode passes, and the skip message."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import types
import unittest
from typing import Any, Optional

from tools.real_engines.check import VLLM_MODES, verdict
from tools.real_engines.steps import Tally, steps_of

# Two versions, a request of two steps.
OLD = [(-1.0, -2.0, -3.0), (-4.0,)]
NEW = [(-1.5, -2.5, -3.5), (-4.5,)]


def logprobs(*values: float) -> list[dict[int, Any]]:
    """Logprobs in the form of vLLM, with the requested token first."""
    return [{7: types.SimpleNamespace(logprob=value), 9: None} for value in values]


class TallyTest(unittest.TestCase):
    def test_a_step_of_one_version_is_whole_after_a_step_of_another(self) -> None:
        tally = Tally([OLD, NEW])
        tally.add([OLD[0], NEW[1]])
        tally.add(NEW)
        self.assertEqual((tally.steps, tally.torn, tally.versions), (4, 0, {0, 1}))

    def test_a_step_of_both_versions_or_of_neither_is_torn(self) -> None:
        tally = Tally([OLD, NEW])
        tally.add([(-1.0, -2.0, -3.5), (-4.0,)])  # the prompt's tokens old, the sampled one new
        tally.add([OLD[0], (-4.25,)])
        self.assertEqual((tally.steps, tally.torn, tally.versions), (4, 2, {0}))

    def test_references_that_do_not_tell_versions_apart_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "step 0 does not tell the versions apart"):
            Tally([OLD, [(-1.5, -2.0, -3.5), (-4.5,)]])

    def test_the_step_of_the_prompt_includes_the_first_sampled_token(self) -> None:
        completion = types.SimpleNamespace(logprobs=logprobs(-3.0, -4.0))
        output = types.SimpleNamespace(
            prompt_logprobs=[None, *logprobs(-1.0, -2.0)], outputs=[completion]
        )
        self.assertEqual(steps_of(output), OLD)


class CheckTest(unittest.TestCase):
    def line(self, found: Optional[dict[str, int]]) -> tuple[bool, str]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            good = verdict("v1", found)
        return good, printed.getvalue().strip()

    def test_a_mode_passes_with_commits_and_without_torn_passes(self) -> None:
        found = {"steps": 90, "commits": 12, "torn": 0, "versions": 2}
        line = "v1: 90 passes checked, 12 commits, 0 torn: ok"
        self.assertEqual(self.line(found), (True, line))
        self.assertFalse(self.line({**found, "torn": 1})[0])
        self.assertFalse(self.line({**found, "commits": 0})[0])
        self.assertFalse(self.line({**found, "versions": 1})[0])
        self.assertEqual(self.line(None), (False, "v1: FAILED"))

    def test_each_mode_selects_its_model_runner(self) -> None:
        for name, mode in VLLM_MODES.items():
            found = mode.environment("/nowhere", {"PYTHONPATH": "/here"})
            self.assertEqual(found["VLLM_USE_V2_MODEL_RUNNER"], "1" if name[:2] == "v2" else "0")
            self.assertTrue(found["PYTHONPATH"].endswith("/here"))

    def test_without_an_engine_it_skips_and_says_so(self) -> None:
        environ = {k: v for k, v in os.environ.items() if k != "DWS_ENGINE_PYTHON"}
        for arguments, why in (
            ([], "no Python with vLLM or SGLang is named"),
            (["--python", "no/such/python"], "does not exist"),
            (["--python=/usr/bin/python3", "--modes=v1"], "/usr/bin/python3 has neither vLLM nor SGLang"),
        ):
            command = ["tools/real_engines.sh", *arguments]
            ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertRegex(ended.stdout, f"^skipped: .*{why}")


if __name__ == "__main__":
    unittest.main()
