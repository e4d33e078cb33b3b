"""The demo's trainer in one process, which publishes for all of its ranks."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Sequence

from tools.demo.expected import Expected
from tools.demo.learner import Learner
from tools.demo.policy import Policy, PolicyConfig
from tools.demo.publisher import Committed, Published, Publisher


@dataclasses.dataclass(frozen=True)
class TrainerOptions:
    """What every process of a trainer is told.

    Attributes:
      sockets: of the senders, one for each rank.
      engine_ranks: the tensor-parallel ranks of each engine.
      store: a file through which the processes find each other; not there yet.
    """

    sockets: Sequence[str]
    job_id: str
    config: PolicyConfig
    seed: int
    engine_ranks: int
    store: str


class Trainer:
    """Lifecycle: made registered; warm up, then publish and improve in turn; close. One thread."""

    def __init__(self, options: TrainerOptions) -> None:
        self._learner = Learner(lambda: Policy(options.config), options.seed)
        self._publisher = Publisher(
            options.sockets, options.job_id, self._learner.weights(), options.engine_ranks
        )

    @property
    def parameter_count(self) -> int:
        return self._learner.parameter_count

    @property
    def expected(self) -> Expected:
        return self._publisher.expected

    def warm_up(self, steps: int, report: Callable[[int, float], None]) -> None:
        """See Learner.warm_up."""
        self._learner.warm_up(steps, report)

    def improve(self, *batch: Any) -> None:
        """See Learner.improve."""
        self._learner.improve(*batch)

    def publish(self, version: int) -> Published:
        """Publishes the weights as they are now."""
        return self._publisher.publish(version, self._learner.weights())

    def wait(self, version: int) -> Committed:
        """See Publisher.wait."""
        return self._publisher.wait(version)

    def close(self) -> None:
        self._publisher.close()
