"""tools/real.sh demo without vLLM: each claim of the verdict fails when it is not met."""

from __future__ import annotations

import dataclasses
import types
import unittest
from typing import Any

from tools.real.demo.answers import Answers, answers_of
from tools.real.demo.verdict import Findings, judge

FIRST = Answers(1, [[3, 4], [5, 6]], [-1.0, -2.0, -3.0, -4.0])
LAST = Answers(40, [[3, 7], [5, 6]], [-1.5, -2.5, -3.5, -4.5])


def findings(**changes: Any) -> Findings:
    """The findings of a good run with the test's changes."""
    good = Findings(
        last_version=40,
        rewards=[0.4] * 20 + [0.7] * 20,
        first=FIRST,
        last=LAST,
        fresh=dataclasses.replace(LAST),
        receiver_versions={"vllm": 40},
        accepted=100,
        rejected=0,
    )
    return dataclasses.replace(good, **changes)


class VerdictTest(unittest.TestCase):
    def assert_fails(self, words: str, **changes: Any) -> None:
        failed = [outcome.text for outcome in judge(findings(**changes)) if not outcome.holds]
        self.assertEqual(len(failed), 1, failed)
        self.assertIn(words, failed[0])

    def test_a_good_run_passes(self) -> None:
        outcomes = judge(findings())
        self.assertTrue(all(outcome.holds for outcome in outcomes))
        self.assertIn("4 of 4 greedy tokens and 4 of 4 log probabilities", outcomes[0].text)

    def test_one_answer_that_differs_from_the_checkpoints_fails(self) -> None:
        tokens = dataclasses.replace(LAST, tokens=[[3, 7], [5, 9]])
        self.assert_fails("3 of 4 greedy tokens and 4 of 4 log", fresh=tokens)
        logprobs = dataclasses.replace(LAST, logprobs=[-1.5, -2.5, -3.5, -4.500001])
        self.assert_fails("4 of 4 greedy tokens and 3 of 4 log", fresh=logprobs)
        more = dataclasses.replace(LAST, logprobs=[*LAST.logprobs, -9.0])
        self.assert_fails("4 of 5 log probabilities", fresh=more)

    def test_answers_of_another_version_fail(self) -> None:
        old = dataclasses.replace(LAST, version=39)
        self.assert_fails("with version 39 by DWS", last=old, fresh=old)

    def test_answers_that_training_did_not_change_prove_nothing(self) -> None:
        self.assert_fails("4 of 4 log probabilities were equal", first=dataclasses.replace(LAST, version=1))

    def test_a_reward_that_does_not_rise_enough_fails(self) -> None:
        self.assert_fails("mean reward", rewards=[0.4] * 20 + [0.5] * 20)
        self.assert_fails("mean reward", rewards=[float("nan")] * 40)

    def test_a_receiver_on_another_version_fails(self) -> None:
        self.assert_fails("vllm 39", receiver_versions={"vllm": 39})
        self.assert_fails("none", receiver_versions={})

    def test_a_rollout_that_names_no_published_version_fails(self) -> None:
        self.assert_fails("1 did not", rejected=1)
        self.assert_fails("0 rollouts", accepted=0)


class AnswersTest(unittest.TestCase):
    def test_log_probabilities_are_in_the_order_of_tokens(self) -> None:
        place = {7: types.SimpleNamespace(logprob=-0.5), 2: types.SimpleNamespace(logprob=-1.5)}
        completion = types.SimpleNamespace(token_ids=(7,), logprobs=[place])
        outputs = [types.SimpleNamespace(outputs=[completion])] * 2
        self.assertEqual(answers_of(3, outputs), Answers(3, [[7], [7]], [-1.5, -0.5] * 2))


if __name__ == "__main__":
    unittest.main()
