"""The demo's verdict: each claim fails when it is not met."""

import dataclasses
import unittest
from typing import Any

from tools.demo.rollout_engine import Check, Finished
from tools.demo.verdict import Findings, judge, mean_reward

HASHES = {version: (f"hash of {version}",) for version in range(1, 41)}


def findings(**changes: Any) -> Findings:
    """The findings of a good run with the test's changes."""
    good = Findings(
        engines=2,
        last_version=40,
        rewards=[0.4] * 20 + [0.6] * 20,
        hashes=HASHES,
        checks=[
            Check(name, version, HASHES[version]) for name in "ab" for version in (1, 10, 20, 40)
        ],
        finished=[Finished(name, 40, 0.97, 40, 0.01) for name in "ab"],
        receiver_versions={"a": 40, "b": 40},
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
        self.assertTrue(all(outcome.holds for outcome in judge(findings())))

    def test_one_hash_that_differs_fails_and_is_named(self) -> None:
        checks = [*findings().checks, Check("b", 30, ("another hash",))]
        self.assert_fails("b's weights at version 30", checks=checks)

    def test_one_rank_of_an_engine_that_differs_or_is_absent_fails_and_is_named(self) -> None:
        hashes = {version: ("first", "second") for version in HASHES}
        good = [dataclasses.replace(c, sha256=("first", "second")) for c in findings().checks]
        self.assertTrue(all(o.holds for o in judge(findings(hashes=hashes, checks=good))))
        for sha256, who in ((("first", "first"), "b rank 1's"), (("first",), "b's")):
            checks = [*good, Check("b", 30, sha256)]
            self.assert_fails(f"{who} weights at version 30", hashes=hashes, checks=checks)

    def test_an_engine_that_never_checked_the_last_version_fails(self) -> None:
        checks = [check for check in findings().checks if check.version != 40]
        self.assert_fails("SHA-256", checks=checks)
        one = [check for check in findings().checks if check.engine == "a"]
        self.assert_fails("SHA-256", checks=one)

    def test_a_reward_that_does_not_rise_enough_fails(self) -> None:
        self.assert_fails("mean reward", rewards=[0.4] * 20 + [0.45] * 20)
        self.assert_fails("mean reward", rewards=[float("nan")] * 40)

    def test_versions_without_rollouts_do_not_count(self) -> None:
        self.assertAlmostEqual(mean_reward([0.5, float("nan"), 0.7]), 0.6)

    def test_an_engine_that_generated_too_little_of_the_time_fails(self) -> None:
        self.assert_fails("generating", finished=[Finished("a", 40, 0.97, 40, 0.01)] * 1)
        slow = [Finished("a", 40, 0.97, 40, 0.01), Finished("b", 40, 0.94, 40, 0.01)]
        self.assert_fails("b 94.0%", finished=slow)

    def test_a_receiver_that_is_behind_or_absent_fails(self) -> None:
        self.assert_fails("every receiver", receiver_versions={"a": 40, "b": 39})
        self.assert_fails("every receiver", receiver_versions={"a": 40})

    def test_an_unknown_pair_fails(self) -> None:
        self.assert_fails("rejected", rejected=1)


if __name__ == "__main__":
    unittest.main()
