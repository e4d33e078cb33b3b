"""Workers of PULSELoCo in this process, each beside a real sender, compared with the plain equations."""

from __future__ import annotations

import logging
import unittest
from concurrent import futures
from typing import Any, Callable, Optional, Sequence

from dws.dtypes import DType
from dws.on_demand.pulse_loco import LocalRounds, PulseLoCo, Round
from tests.clients.python.pulse_loco.reference import Array, Reference, same_bits
from tests.integration.cluster import Cluster
from tests.integration.trainers.local_rounds_worker import JOB, first_theta, run_rounds, steps_of

SECONDS = 60.0


class LostTimes(logging.Handler):
    """When this process has logged that a round is tried again, and why; seconds as of time.time."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "is tried again" in record.msg:
            self.found.append((record.created, record.getMessage()))


class LocalRoundsCase(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = Cluster(JOB)
        self.addCleanup(self.cluster.stop)
        self.lost = LostTimes()
        logger = logging.getLogger("dws.on_demand.pulse_loco.rounds")
        logger.addHandler(self.lost)
        self.addCleanup(logger.removeHandler, self.lost)
        self.rounds: dict[int, LocalRounds] = {}

    def start_senders(self, ranks: int, *flags: str) -> None:
        self.ranks = ranks
        sockets = [f"unix:{self.cluster.folder}/sender-{rank}/d.sock" for rank in range(ranks)]
        self.cluster.pages = False
        for rank in range(ranks):
            self.cluster.start_sender(rank, f"--train-peers={','.join(sockets)}", *flags)

    def join(self, worker: PulseLoCo, **options: Any) -> LocalRounds:
        """A worker in this process."""
        rounds = LocalRounds(
            self.cluster.senders[worker.rank].socket,
            worker,
            **{"job_id": JOB, "ranks": self.ranks, "timeout": SECONDS, **options},
        )
        self.addCleanup(rounds.close)
        self.rounds[worker.rank] = rounds
        return rounds

    def each(self, what: Callable[[LocalRounds], Any]) -> dict[int, Any]:
        """Calls what(rounds) for all workers of this process at once."""
        with futures.ThreadPoolExecutor(len(self.rounds)) as pool:
            return dict(zip(self.rounds, pool.map(what, self.rounds.values())))

    def run_until(self, until: int) -> dict[int, list[Round]]:
        results: dict[int, list[Round]] = self.each(lambda rounds: run_rounds(rounds, until))
        return results

    def reference(self, values: DType) -> Reference:
        return Reference(first_theta(), self.ranks, 0.7, 0.9, values is DType.BF16)

    def reference_rounds(self, reference: Reference, results: Sequence[Round]) -> None:
        """Rounds with the contributions that were counted."""
        for result in results:
            number = result.number - 1
            reference.round_of({rank: steps_of(rank, number, reference.theta) for rank in result.counted})

    def check(self, worker: PulseLoCo, reference: Reference, residual: Optional[Array] = None) -> None:
        self.assertTrue(same_bits(worker.theta_g, reference.theta))
        self.assertTrue(same_bits(worker.u, reference.u))
        expected = reference.residuals[worker.rank] if residual is None else residual
        self.assertTrue(same_bits(worker.residual, expected))
