"""One minibatch of a rank: attempts at it, and the decision. Needs no torch."""

from __future__ import annotations

import dataclasses
import math
from types import TracebackType
from typing import Any, Callable, Iterator, Optional, Sequence, Union

from dws.balance.plans import Microbatch, Plan
from dws.errors import InvalidArgumentError, MinibatchAbandonedError, StateError
from dws.on_demand.member import AttemptId

AVERAGES = ("ranks", "weight", "none")


@dataclasses.dataclass(frozen=True)
class Step:
    """The decision about a minibatch, the same on all ranks.

    Attributes:
      norm: the 2-norm of the whole gradient, as it is in `.grad`; NaN or infinite if the gradient is.
      weight: the sum of what the ranks passed to `finish`.
      finite: whether no element of the gradient, and no weight, is a NaN or infinite. If not, no rank steps: call `skip`.
      exact: of this rank's part: no addition was rounded. Always False without exact=True.
      minibatch: its number, from 1.
    """

    norm: float
    weight: float
    finite: bool
    exact: bool
    minibatch: int


def own_microbatches(
    plan: Union[Plan, Sequence[Sequence[Microbatch]]], rank: int, ranks: int, in_step: bool
) -> tuple[Microbatch, ...]:
    """A rank's microbatches of a plan.

    Args:
      in_step: whether all ranks need equally many.

    Raises:
      InvalidArgumentError: the plan is not for so many ranks, or ranks have unequal numbers of them.
    """
    of_ranks: Sequence[Sequence[Microbatch]] = plan.ranks if isinstance(plan, Plan) else plan
    if len(of_ranks) != ranks:
        raise InvalidArgumentError(f"the plan is for {len(of_ranks)} ranks: expected one for {ranks}")
    counts = [len(microbatches) for microbatches in of_ranks]
    if in_step and min(counts) != max(counts):
        raise InvalidArgumentError(
            f"lockstep=True, and ranks have {min(counts)} to {max(counts)} microbatches: they would wait for ever; take "
            "a plan such as lb_micro's"
        )
    return tuple(tuple(each) for each in of_ranks[rank])


def scale_of(average: str, ranks: int, weight: float) -> float:
    """By what sums of gradients are multiplied.

    Raises:
      StateError: they are to be divided by a weight that is not above 0.
    """
    if average == "none":
        return 1.0
    if average == "ranks":
        return 1.0 / ranks
    if not weight > 0 or math.isinf(weight):
        raise StateError(f"average='weight': the weights of all ranks add up to {weight}, expected more than 0")
    return 1.0 / weight


class Attempt:
    """This rank's part of one attempt at a minibatch: a context manager, in which the passes run.

    If the attempt is abandoned, whatever the block is at raises MinibatchAbandonedError, which the end of the block takes:
    `od.minibatch` then gives the next attempt, with the same samples. Any other error leaves the block, after the other ranks
    were told that this attempt is over.

    Lifecycle: made by `od.minibatch`; entered once.

    Attributes:
      id: its numbers.
      step: the decision, after `finish`.
      abandoned: why it is over without one.
    """

    def __init__(
        self,
        id: AttemptId,
        microbatches: Sequence[Microbatch],
        begin_microbatch: Callable[[], None],
        finish: Callable[[float], Step],
        leave: Callable[[BaseException], Optional[MinibatchAbandonedError]],
    ) -> None:
        """Args:
        begin_microbatch, finish: what they do for the Training.
        leave: ends the attempt without a decision. Returns why it was abandoned; None: because of the error itself.
        """
        self.id = id
        self.step: Optional[Step] = None
        self.abandoned: Optional[MinibatchAbandonedError] = None
        self._microbatches = tuple(microbatches)
        self._begin_microbatch = begin_microbatch
        self._finish = finish
        self._leave = leave
        self._entered = False

    @property
    def microbatches(self) -> Iterator[Microbatch]:
        """This rank's microbatches, each the indexes of its samples; there may be none.

        Raises:
          StateError: not inside of `with attempt:`.
          MinibatchAbandonedError: the attempt is over.
        """
        self._require_entered()
        for microbatch in self._microbatches:
            self._begin_microbatch()
            yield microbatch

    def finish(self, weight: Optional[float] = None) -> Step:
        """Says that this rank has run all its microbatches, and waits for the decision. Then `.grad` of all parameters that
        train has the gradient, until `publish` or `skip`; if it is not finite, `.grad` is None.

        Args:
          weight: what this rank's microbatches count: samples, or tokens; at least 0. None: the number of samples.

        Raises:
          MinibatchAbandonedError: the attempt is over.
          InvalidArgumentError: the weight is no such number.
          DeadlineError: ranks have not finished in time; the message names what is waited for.
        """
        self._require_entered()
        if self.step is not None:
            raise StateError("attempt.finish() was called before")
        if weight is None:
            weight = sum(map(len, self._microbatches))
        if not (math.isfinite(weight) and weight >= 0):
            raise InvalidArgumentError(f"finish(weight={weight}): expected a number of at least 0")
        self.step = self._finish(float(weight))
        return self.step

    def _require_entered(self) -> None:
        if not self._entered:
            raise StateError("the passes of an attempt are run in a block `with attempt:`, which ends when it is abandoned")

    def __enter__(self) -> Attempt:
        if self._entered:
            raise StateError("an attempt is entered once")
        self._entered = True
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> bool:
        if self.step is not None:
            return False
        if error is None:
            error = StateError("the block `with attempt:` ended without attempt.finish()")
            self._leave(error)
            raise error
        self.abandoned = self._leave(error)
        return self.abandoned is not None
