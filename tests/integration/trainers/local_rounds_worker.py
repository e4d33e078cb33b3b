"""A worker of PULSELoCo whose local steps follow from its rank, the round and theta_g: in a thread of a test, or as a
process that saves its state to a file and may kill itself in the middle of a round.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any, Callable, Optional

import numpy as np

from dws.dtypes import DType
from dws.on_demand.pulse_loco import LocalRounds, PulseLoCo, Round, Settings
from tests.clients.python.pulse_loco.reference import Array, local_steps, weights

SHARDS = [1500, 0, 2501, 999]
ELEMENTS = sum(SHARDS)
JOB = "test"


def first_theta() -> Array:
    return weights(np.random.default_rng(7), ELEMENTS)


def steps_of(rank: int, number: int, theta_g: Array) -> Array:
    """The weights after the local steps of round `number`."""
    return local_steps(np.random.default_rng([rank, number]), theta_g)


def make_worker(rank: int, values: DType) -> PulseLoCo:
    return PulseLoCo(first_theta(), rank=rank, shards=SHARDS, settings=Settings(0.7, 0.9, values))


def run_rounds(rounds: LocalRounds, until: int, each: Optional[Callable[[Round], Any]] = None) -> list[Round]:
    """Runs rounds until theta_g has `until` behind it. `each` gets every result."""
    results = []
    while rounds.worker.round < until:
        results.append(rounds.run(steps_of(rounds.worker.rank, rounds.worker.round, rounds.theta_g)))
        if each is not None:
            each(results[-1])
    return results


def save(worker: PulseLoCo, path: str) -> None:
    with open(f"{path}.part", "wb") as file:
        np.savez(file, **worker.state())
    os.replace(f"{path}.part", path)


def load(path: str) -> PulseLoCo:
    with np.load(path) as arrays:
        return PulseLoCo.from_state(arrays)


def kill_when_it_puts(rounds: LocalRounds, name: str, number: int) -> None:
    """Kills this process where it would put an object of this name in round `number`."""
    put = rounds._exchange.put

    def watched(process: int, what: str, *rest: Any) -> None:
        if what == name and rounds.worker.round == number:
            os.kill(os.getpid(), signal.SIGKILL)
        put(process, what, *rest)

    rounds._exchange.put = watched  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--values", default="F32")
    parser.add_argument("--state", required=True, help="read if it is there; written before anything is sent, and after each round")
    parser.add_argument("--kill-at", default="", help="the name of an object, and the round: ready,2")
    options = parser.parse_args()
    if os.path.exists(options.state):
        worker = load(options.state)
    else:
        worker = make_worker(options.rank, DType[options.values])
    rounds = LocalRounds(
        options.socket,
        worker,
        job_id=JOB,
        ranks=options.ranks,
        timeout=60.0,
        on_contributed=lambda worker: save(worker, options.state),
    )
    if options.kill_at:
        name, number = options.kill_at.split(",")
        kill_when_it_puts(rounds, name, int(number))
    with rounds:
        for result in run_rounds(rounds, options.until, lambda result: save(rounds.worker, options.state)):
            print(result.number, result.residual.name if result.residual else "", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
