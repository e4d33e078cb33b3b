"""A rank's part of a plan, attempts, and what is refused without torch's FSDP2."""

from __future__ import annotations

import math
import subprocess
import sys
import unittest
from typing import Optional

import dws
from dws.errors import InvalidArgumentError, MinibatchAbandonedError, StateError
from dws.on_demand.member import AttemptId
from dws.on_demand.minibatch import Attempt, Step, own_microbatches, scale_of

STEP = Step(norm=2.0, weight=3.0, finite=True, exact=False, minibatch=1)


class AttemptCase:
    """An attempt whose Training only takes notes."""

    def __init__(self, fails_in: Optional[BaseException] = None) -> None:
        self.begun = 0
        self.weights: list[float] = []
        self.left: list[BaseException] = []
        self._fails_in = fails_in
        self.attempt = Attempt(
            AttemptId(1, 2, 3), ((0, 2), (1,)), self._begin, self._finish, self._leave
        )

    def _begin(self) -> None:
        self.begun += 1
        if self._fails_in is not None and self.begun == 2:
            raise self._fails_in

    def _finish(self, weight: float) -> Step:
        self.weights.append(weight)
        return STEP

    def _leave(self, error: BaseException) -> Optional[MinibatchAbandonedError]:
        self.left.append(error)
        return error if isinstance(error, MinibatchAbandonedError) else None


class MinibatchTest(unittest.TestCase):
    def test_a_rank_gets_its_own_microbatches_of_a_plan(self) -> None:
        plan = dws.balance.lb_mini([5, 9, 3, 40, 7], 2, limit=40)
        self.assertEqual(own_microbatches(plan, 1, 2, False), plan.ranks[1])
        self.assertEqual(own_microbatches([[(1,)], []], 1, 2, False), ())

    def test_plans_for_other_ranks_or_that_would_hang_are_refused(self) -> None:
        with self.assertRaisesRegex(InvalidArgumentError, "for 1 ranks: expected one for 2"):
            own_microbatches([[(0,)]], 0, 2, False)
        with self.assertRaisesRegex(InvalidArgumentError, "1 to 2 microbatches"):
            own_microbatches([[(0,)], [(1,), (2,)]], 0, 2, True)

    def test_an_attempt_runs_its_microbatches_and_counts_samples(self) -> None:
        case = AttemptCase()
        with case.attempt as attempt:
            self.assertEqual(list(attempt.microbatches), [(0, 2), (1,)])
            self.assertIs(attempt.finish(), STEP)
        self.assertEqual((case.begun, case.weights, case.left), (2, [3.0], []))

    def test_an_abandoned_attempt_ends_its_block_and_no_other_error_is_taken(self) -> None:
        abandoned = MinibatchAbandonedError("over", "a reason")
        case = AttemptCase(abandoned)
        with case.attempt as attempt:
            list(attempt.microbatches)
            self.fail("the second microbatch began")
        self.assertIs(case.attempt.abandoned, abandoned)
        case = AttemptCase(ZeroDivisionError())
        with self.assertRaises(ZeroDivisionError):
            with case.attempt as attempt:
                list(attempt.microbatches)
        self.assertIsNone(case.attempt.abandoned)
        self.assertIsInstance(case.left[0], ZeroDivisionError)

    def test_attempts_that_are_not_run_as_they_should_be_say_so(self) -> None:
        case = AttemptCase()
        with self.assertRaisesRegex(StateError, "with attempt:"):
            list(case.attempt.microbatches)
        with self.assertRaisesRegex(StateError, r"without attempt.finish\(\)"):
            with case.attempt:
                pass
        self.assertEqual(len(case.left), 1)
        case = AttemptCase()
        for wrong in (-1.0, math.nan, math.inf):
            with self.assertRaises(InvalidArgumentError):
                with case.attempt as attempt:
                    attempt.finish(weight=wrong)
            case = AttemptCase()

    def test_sums_are_divided_by_ranks_weights_or_nothing(self) -> None:
        self.assertEqual(scale_of("ranks", 4, 100.0), 0.25)
        self.assertEqual(scale_of("weight", 4, 100.0), 0.01)
        self.assertEqual(scale_of("none", 4, 100.0), 1.0)
        with self.assertRaisesRegex(StateError, "add up to 0.0"):
            scale_of("weight", 4, 0.0)

    def test_arguments_are_checked_by_name(self) -> None:
        with self.assertRaisesRegex(InvalidArgumentError, "average='mean'"):
            dws.on_demand.Training("s", "j", average="mean")
        with self.assertRaisesRegex(InvalidArgumentError, "outbox_buffers=0"):
            dws.on_demand.Training("s", "j", outbox_buffers=0)

    def test_training_cannot_be_used_before_a_model_is_cut(self) -> None:
        od = dws.on_demand.Training("s", "j")
        for call in (od.start, od.publish, od.skip, lambda: next(od.minibatch([])), lambda: od.clip(1.0)):
            with self.assertRaises(dws.DwsError):
                call()
        od.close()

    def test_the_package_does_not_import_torch(self) -> None:
        program = "import dws.on_demand, sys; dws.on_demand.Training; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_a_torch_without_the_setters_is_refused_by_name(self) -> None:
        import torch

        if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9):
            self.skipTest("this torch has them")
        od = dws.on_demand.Training("s", "j")
        with self.assertRaisesRegex(StateError, r"needs torch 2\.9 or later.*found " + torch.__version__[:4]):
            od.fully_shard(torch.nn.Linear(2, 2))


if __name__ == "__main__":
    unittest.main()
