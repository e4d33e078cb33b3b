"""Runs the toy loop: one process tree with a trainer, a sender, two receivers and two engines.

Prints a line for each version, then a line for each claim. The exit status is 0 if all of them hold.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from typing import Iterator, Sequence

import numpy as np

import dws
from dws.demo import policy
from dws.demo.rollouts import WAIT_SECONDS, Rollouts, run_engine
from dws.digest import combine, digest_hex, rank_state_token

ENGINES = 2
_HEADER = "version  changed     bytes  reduction    stall    commit  reward"


class Loop:
    """The trainer, and what it knows of the versions that it has published."""

    def __init__(self, trainer: dws.Trainer, pipes: Sequence[Connection], seed: int) -> None:
        self.rewards: list[float] = []
        self.seen: list[set[int]] = [set() for _ in pipes]  # versions whose weights an engine had, unchanged
        self.wrong: list[str] = []
        self._trainer = trainer
        self._pipes = pipes
        self._learner = policy.Learner(seed)
        self._views = trainer.register(self._learner.bits())
        self._published: dict[int, tuple[str, str]] = {}  # state token and SHA-256

    def step(self, version: int) -> None:
        """Publishes a version, and learns from what engines sample while it travels."""
        for name, bits in self._learner.bits().items():
            self._views[name][...] = bits
        published = self._trainer.publish(version)
        token = digest_hex(combine([rank_state_token(self._trainer.layout, self._views)]))
        self._published[version] = token, policy.sha256(self._views)
        self.ask()
        result = self._trainer.wait(version, policy=len(self._pipes), timeout=WAIT_SECONDS)
        rollouts = self.take()
        prompts, answers = (np.concatenate(parts) for parts in zip(*((r.prompts, r.answers) for r in rollouts)))
        self.rewards.append(self._learner.improve(prompts, answers))
        changed = "full" if published.full else f"{100 * published.changed_elements / published.total_elements:.1f}%"
        full_bytes = sum(view.nbytes for view in self._views.values())
        print(
            f"{version:7}  {changed:>7}  {result.wire_bytes:8}  {full_bytes / result.wire_bytes:8.1f}x"
            f"  {1e3 * published.stall_seconds:4.1f} ms  {1e3 * result.publish_to_commit_seconds:5.0f} ms"
            f"  {self.rewards[-1]:6.3f}", flush=True)  # fmt: skip

    def ask(self) -> None:
        """Asks each engine to sample, with the version that it has."""
        for pipe in self._pipes:
            pipe.send("sample")

    def take(self) -> list[Rollouts]:
        """Returns what the engines have sampled, and notes whether each had a published version, unchanged."""
        return [self._checked(index, pipe) for index, pipe in enumerate(self._pipes)]

    def _checked(self, index: int, pipe: Connection) -> Rollouts:
        if not pipe.poll(WAIT_SECONDS):
            raise dws.DeadlineError(f"engine-{index} has sampled nothing for {WAIT_SECONDS:g} s")
        try:
            rollouts: Rollouts = pipe.recv()
        except EOFError as error:
            raise dws.StateError(f"the process of engine-{index} has ended: its error is above") from error
        found = rollouts.state_token, rollouts.sha256
        expected = self._published.get(rollouts.version)
        if found == expected:
            self.seen[index].add(rollouts.version)
        else:
            self.wrong.append(
                f"engine-{index} at version {rollouts.version}: expected state token and SHA-256 {expected}, found {found}"
            )
        return rollouts


@contextlib.contextmanager
def engine_processes(receivers: Sequence[dws.daemons.Daemon], seed: int) -> Iterator[list[Connection]]:
    """A process for each receiver, and the pipes to them; they end with the block."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for index, receiver in enumerate(receivers):
        ours, theirs = context.Pipe()
        process = context.Process(target=run_engine, args=(receiver.socket, seed + 1 + index, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def judge(loop: Loop, last: int, receivers: Sequence[dws.daemons.Daemon]) -> bool:
    """Prints each claim, and returns whether all of them hold."""
    results = []

    def claim(holds: bool, text: str) -> None:
        results.append(holds)
        print(f"{'ok  ' if holds else 'FAIL'} {text}")

    for wrong in loop.wrong:
        claim(False, wrong)
    for index, versions in enumerate(loop.seen):
        claim(
            last in versions,
            f"engine-{index} had the trainer's own bits, by SHA-256 and by digest, at {len(versions)} versions up to "
            f"{max(versions, default=0)}; expected up to {last}",
        )
    for receiver in receivers:
        command = [dws.daemons.find_program("dwsctl"), "verify", f"--socket={receiver.socket}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
        said = (done.stdout.strip() or done.stderr.strip()).rpartition("\n")[2]
        claim(done.returncode == 0, f"dwsctl verify, {receiver.name}: {said}")
    first, end = np.mean(loop.rewards[:3]), np.mean(loop.rewards[-3:])
    claim(bool(end > first), f"mean reward of the first 3 versions {first:.3f}, of the last 3 {end:.3f}; expected more")
    return all(results)


def run(versions: int, seed: int) -> bool:
    """Runs the loop. Returns whether every claim holds."""
    job_id = f"demo-{os.getpid()}"  # several demos may run at a time
    with contextlib.ExitStack() as stack:
        sender = stack.enter_context(dws.daemons.sender(job_id))
        receivers = [
            stack.enter_context(dws.daemons.receiver(f"engine-{index}", sender, job_id)) for index in range(ENGINES)
        ]
        trainer = stack.enter_context(dws.Trainer(sender.socket, job_id))
        pipes = stack.enter_context(engine_processes(receivers, seed))
        loop = Loop(trainer, pipes, seed)
        print(f"{len(receivers)} engines, {policy.PARAMETERS / 1e6:.2f} million parameters in BF16\n{_HEADER}")
        for version in range(1, versions + 1):
            loop.step(version)
        loop.ask()
        loop.take()
        success = judge(loop, versions, receivers)
    return success


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m dws.demo",
        description="A trainer and two engines learn together on this machine, in less than 20 seconds; their weights go "
        "through a dws-sender and two dws-receivers, which the demo starts and stops.",
        epilog="The exit status is 0 if every line at the end begins with ok.",
    )
    parser.add_argument("--versions", type=int, default=20, metavar="N", help="versions to publish, 6 to 1000 (20)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of everything random (1)")
    options = parser.parse_args(arguments)
    if not 6 <= options.versions <= 1000:
        parser.error(f"--versions {options.versions}: expected 6 to 1000")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # stops the daemons, too
    started = time.monotonic()
    try:
        success = run(options.versions, options.seed)
    except dws.DwsError as error:
        print(f"FAIL {error}")
        success = False
    print(f"{'SUCCESS' if success else 'FAILURE'}: the demo took {time.monotonic() - started:.0f} s")
    return 0 if success else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
