"""The verdict of the demo of training on demand: it holds for a good run, and names what is wrong with a bad one."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import unittest

from dws.balance import collectives, on_demand
from tools.demo.on_demand import demo
from tools.demo.on_demand.settings import (
    AGAIN,
    COST,
    FSDP2,
    LIMIT,
    LOCKSTEP,
    ON_DEMAND,
    SAMPLES,
    lengths_of,
    plan_of,
)
from tools.demo.on_demand.verdict import Findings, Lost, judge

_RANKS = 4


def losses(step: int, on_demand_loss: float = 0.0) -> dict[str, float]:
    fsdp2 = 4.0 - 0.5 * step
    return {FSDP2: fsdp2, AGAIN: fsdp2 + 1e-4, LOCKSTEP: fsdp2, ON_DEMAND: on_demand_loss or fsdp2 - 2e-4}


def good() -> Findings:
    casts = {1: "a", 2: "b", 3: "b", 4: "c", 5: "d"}  # 3 is 2, from the checkpoint
    lost = {rank: Lost(2, 0.1, "rank 2 is gone") for rank in (0, 1, 3)}
    return Findings(
        steps=3,
        losses=[losses(step) for step in range(3)],
        casts=casts,
        seen=[(1, "a"), (3, "b"), (5, "d")],
        ranks=_RANKS,
        victim=2,
        kill_step=2,
        lost=lost,
        version_before=2,
        version_after=3,
    )


class VerdictTest(unittest.TestCase):
    def _require_failure(self, findings: Findings, said: str) -> None:
        failed = [outcome.text for outcome in judge(findings) if not outcome.holds]
        self.assertEqual(len(failed), 1, failed)
        self.assertIn(said, failed[0])

    def test_a_good_run_holds(self) -> None:
        self.assertEqual([outcome.text for outcome in judge(good()) if not outcome.holds], [])

    def test_losses_that_are_farther_apart_than_runs_of_fsdp2_fail(self) -> None:
        apart = [losses(0), losses(1, on_demand_loss=3.502), losses(2)]
        self._require_failure(dataclasses.replace(good(), losses=apart), "on demand: the losses of 3 steps are within 5.7e-04")

    def test_a_model_that_learns_nothing_fails(self) -> None:
        same = [losses(0)] * 3
        self._require_failure(dataclasses.replace(good(), losses=same), "the loss went from")

    def test_other_weights_in_the_engine_fail(self) -> None:
        self._require_failure(dataclasses.replace(good(), seen=[(1, "a"), (4, "b"), (5, "d")]), "at version 4 is b")

    def test_a_version_that_nobody_published_fails(self) -> None:
        self._require_failure(dataclasses.replace(good(), seen=[(1, "a"), (5, "d"), (9, "e")]), "at version 9 is e")

    def test_an_engine_without_the_last_version_fails(self) -> None:
        self._require_failure(dataclasses.replace(good(), seen=[(1, "a"), (2, "b"), (4, "c")]), "at 3 of 5 versions")

    def test_an_engine_that_saw_too_few_fails(self) -> None:
        self._require_failure(dataclasses.replace(good(), seen=[(5, "d")]), "at 1 of 5 versions")

    def test_a_rank_that_names_another_or_nobody_fails(self) -> None:
        for wrong in (Lost(1, 0.1, "rank 1 is gone"), Lost(None, 0.1, "an error")):
            lost = {**good().lost, 3: wrong}
            self._require_failure(dataclasses.replace(good(), lost=lost), "ranks [3] did not name it")
        silent = {0: good().lost[0], 1: good().lost[1]}
        self._require_failure(dataclasses.replace(good(), lost=silent), "ranks [3] did not name it")

    def test_a_rank_that_is_named_late_fails(self) -> None:
        lost = {**good().lost, 3: Lost(2, 9.0, "rank 2 is gone")}
        self._require_failure(dataclasses.replace(good(), lost=lost), "within 9.00 s")

    def test_a_checkpoint_with_other_weights_fails(self) -> None:
        casts = {**good().casts, 3: "x"}
        findings = dataclasses.replace(good(), casts=casts, seen=[(1, "a"), (4, "c"), (5, "d")])
        self._require_failure(findings, "version 3 is not version 2")


class PlansTest(unittest.TestCase):
    def test_each_way_gets_all_samples_and_collectives_equally_many_microbatches(self) -> None:
        for step in range(20):
            lengths = lengths_of(step, _RANKS, seed=1)
            self.assertEqual(len(lengths), _RANKS * SAMPLES)
            self.assertEqual(lengths, lengths_of(step, _RANKS, seed=1))
            self.assertLessEqual(max(lengths), LIMIT)
            for way in (FSDP2, AGAIN, LOCKSTEP, ON_DEMAND):
                plan = plan_of(way, lengths, _RANKS)
                self.assertEqual(sorted(plan.samples()), list(range(len(lengths))))
                self.assertTrue(plan.in_step or way == ON_DEMAND)
            ours = on_demand(plan_of(ON_DEMAND, lengths, _RANKS), lengths, COST)
            self.assertLessEqual(ours.span, collectives(plan_of(FSDP2, lengths, _RANKS), lengths, COST).span)


class OptionsTest(unittest.TestCase):
    def test_wrong_ones_are_refused(self) -> None:
        for argument in ("--ranks=1", "--steps=3", "--kill-step=1", "--kill-step=25"):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
                demo.parse([argument])
            self.assertIn("expected" if argument[2] != "k" else "must be", said.getvalue())

    def test_without_torch_it_says_what_it_needs(self) -> None:
        with self.assertRaises(SystemExit) as ended:
            demo.main(["--python=/bin/false"])
        self.assertIn("expected a Python with torch 2.9 or newer", str(ended.exception))


if __name__ == "__main__":
    unittest.main()
