"""The trainer of the check, in a process of its own: two versions of the weights, in turns."""

from __future__ import annotations

import multiprocessing
from typing import Any, Callable

import dws
from tools.real.engines.model import version_weights

WAIT_SECONDS = 60.0


class Publisher:
    """Lifecycle: made registered; `publish` by hand; `alternate` until `stop`.

    Raises:
      RuntimeError: from all but `alternate`: the trainer has failed; its error is on stderr.
    """

    def __init__(
        self, socket: str, job_id: str, kind: str, weights: Callable[[str, int], Any] = version_weights
    ) -> None:
        """Args:
        kind: of CONFIGS.
        weights: returns the tensors of a version, of `kind`.
        """
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(socket, job_id, kind, weights, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._commits()
        self.version = 0

    def publish(self, which: int) -> None:
        """Publishes a version and returns when the engine has committed it."""
        self._pipe.send(which)
        self.version = self._commits()

    def alternate(self) -> None:
        self._pipe.send("alternate")

    def stop(self) -> int:
        """Returns how many versions the engine has committed since `alternate`."""
        self._pipe.send("stop")
        commits = self._commits()
        self.version += commits
        self._process.join(WAIT_SECONDS)
        return commits

    def _commits(self) -> int:
        try:
            commits: int = self._pipe.recv()
        except EOFError:
            raise RuntimeError("the trainer ended: its error is above") from None
        return commits


def _serve(socket: str, job_id: str, kind: str, weights_of: Callable[[str, int], Any], pipe: Any) -> None:
    """The trainer's process. Sends 0 when it is registered, then the version after each order, then how many versions
    were committed since "alternate"."""
    weights = [weights_of(kind, which) for which in (0, 1)]
    with dws.Trainer(socket, job_id) as trainer:
        views = trainer.register(weights[0])
        pipe.send(0)
        version = 0

        def publish(which: int) -> None:
            nonlocal version
            version += 1
            for name, view in views.items():
                view.copy_(weights[which][name])
            trainer.publish(version)
            trainer.wait(version, "all", WAIT_SECONDS)

        while (order := pipe.recv()) != "alternate":
            publish(order)
            pipe.send(version)
        before = version
        while not pipe.poll():
            publish(version % 2)
        pipe.send(version - before)
