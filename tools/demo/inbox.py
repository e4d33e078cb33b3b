"""What the engines send: rollouts are checked and kept for the next step, reports for the
verdict."""

from __future__ import annotations

import collections
import threading
from multiprocessing import connection
from typing import Any, Mapping, Sequence

import numpy as np
import torch

from tools.demo import task
from tools.demo.rollout_engine import Check, Finished, Rollout

# Newest rollouts that wait for a training step; older ones are dropped.
_KEPT = 4


class EngineGone(RuntimeError):
    """An engine process ended too early."""


class Inbox:
    """Reads all pipes on a thread of its own, so that no engine ever waits for the trainer.

    A rollout is accepted only if its pair of version and state token is in `tokens`.
    """

    def __init__(self, pipes: Sequence[Any], tokens: Mapping[int, str]) -> None:
        self._pipes = list(pipes)
        self._tokens = tokens
        self._changed = threading.Condition()
        self._rollouts: collections.deque[Rollout] = collections.deque(maxlen=_KEPT)
        self._rewards: dict[int, list[float]] = collections.defaultdict(list)
        self._pauses: dict[int, float] = collections.defaultdict(float)
        self._error = ""
        self.checks: list[Check] = []
        self.finished: list[Finished] = []
        self.accepted = 0
        self.rejected = 0
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def take(self, count: int, version_min: int, timeout: float) -> list[Rollout]:
        """The newest `count` rollouts at or above a version; each is taken once.

        Raises:
          TimeoutError: they did not come in time.
          EngineGone: an engine ended.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._error or len(self._fresh(version_min)) >= count, timeout
            ):
                raise TimeoutError(f"no {count} rollouts at version {version_min} in {timeout} s")
            if self._error:
                raise EngineGone(self._error)
            taken = self._fresh(version_min)[-count:]
            self._rollouts.clear()
            return taken

    def wait_finished(self, count: int, timeout: float) -> None:
        """Returns when `count` engines have sent their last word.

        Raises:
          TimeoutError, EngineGone.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._error or len(self.finished) >= count, timeout
            ):
                raise TimeoutError(
                    f"{len(self.finished)} of {count} engines finished in {timeout} s"
                )
            if self._error:
                raise EngineGone(self._error)

    def reward(self, version: int) -> float:
        """Mean reward of the accepted rollouts sampled with a version, NaN if there are none."""
        with self._changed:
            rewards = self._rewards.get(version, [])
            return float(np.mean(rewards)) if rewards else float("nan")

    def pause_seconds(self, version: int) -> float:
        """Returns the longest pause for a version among the engines that sampled with it."""
        with self._changed:
            return self._pauses[version]

    def _fresh(self, version_min: int) -> list[Rollout]:
        return [rollout for rollout in self._rollouts if rollout.version >= version_min]

    def _read(self) -> None:
        pipes = list(self._pipes)
        while pipes:
            for pipe in connection.wait(pipes):
                assert isinstance(pipe, connection.Connection)
                try:
                    message = pipe.recv()
                except (EOFError, OSError):
                    pipes.remove(pipe)
                    message = None
                with self._changed:
                    self._take_in(message)
                    self._changed.notify_all()

    def _take_in(self, message: Any) -> None:
        if isinstance(message, Check):
            self.checks.append(message)
        elif isinstance(message, Finished):
            self.finished.append(message)
        elif message is None:
            if len(self.finished) < len(self._pipes):
                self._error = "an engine process ended: see its output above"
        elif self._tokens.get(message.version) != message.state_token:
            self.rejected += 1
        else:
            self.accepted += 1
            self._rollouts.append(message)
            questions = torch.from_numpy(message.questions)
            answers = torch.from_numpy(message.answers)
            reward = task.rewards(questions, answers).mean().item()
            self._rewards[message.version].append(reward)
            longest = max(self._pauses[message.version], message.pause_seconds)
            self._pauses[message.version] = longest


def as_batch(rollouts: Sequence[Rollout]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Questions, answers and log-probabilities of several rollouts, one after the other."""
    parts = [
        torch.from_numpy(np.concatenate([getattr(rollout, field) for rollout in rollouts]))
        for field in ("questions", "answers", "logprobs")
    ]
    return parts[0], parts[1], parts[2]
