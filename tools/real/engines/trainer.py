"""The trainer of a comparison with fresh engines: steps of training, as versions of one stream."""

from __future__ import annotations

import contextlib
import threading
from typing import Optional

import dws
from tools.real.engines.cells import Configuration
from tools.real.engines.model import trained_weights

WAIT_SECONDS = 60.0
# The steps whose weights are compared with fresh engines'.
STEPS = (1, 2)


class StepTrainer:
    """Lifecycle: made registered; close. One thread at a time."""

    def __init__(self, socket: str, job_id: str, configuration: Configuration) -> None:
        kind = configuration.kind
        self._weights = {step: trained_weights(kind, step) for step in STEPS}
        self._trainer = dws.Trainer(socket, job_id)
        weights = trained_weights(kind, 0)
        self._views = self._trainer.register(weights)

    @property
    def stream(self) -> str:
        return str(self._trainer.stream)

    def publish(self, step: int, prefix: str = "") -> int:
        """Returns the version's number.

        Args:
          prefix: of the tensors that become those of the step; others stay as they are.

        Raises:
          As dws.Trainer.publish.
        """
        for name, view in self._views.items():
            if not name.startswith(prefix):
                continue
            view.copy_(self._weights[step][name])
        version: int = self._trainer.last_version + 1
        self._trainer.publish(version)
        return version

    def wait(self, version: int, timeout: float = WAIT_SECONDS) -> None:
        """Raises as dws.Trainer.wait."""
        self._trainer.wait(version, "all", timeout)

    def reconnect(self) -> None:
        self._trainer.reconnect(WAIT_SECONDS)

    def close(self) -> None:
        self._trainer.close()


class Publishing:
    """Publishes the steps in turns, as fast as they are committed, on a thread of its own; through restarts of the
    sender and of receivers. A context manager.

    Attributes:
      published: versions so far.
      failure: what ended it early.
    """

    def __init__(self, trainer: StepTrainer) -> None:
        self.published = 0
        self.failure: Optional[BaseException] = None
        self._trainer = trainer
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Publishing":
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stopping.set()
        self._thread.join(2 * WAIT_SECONDS)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    version = self._trainer.publish(STEPS[self.published % len(STEPS)])
                    self.published += 1
                    # Without its engine, and while a receiver is down, nothing is committed.
                    with contextlib.suppress(dws.DeadlineError):
                        self._trainer.wait(version, 2.0)
                except dws.DaemonUnavailableError:
                    self._trainer.reconnect()
                except dws.VersionLostError:
                    pass
        except BaseException as failure:
            self.failure = failure
