"""SGLang's external receiver "dws.sglang.create_receiver": commits when its request says so.

SGLang makes it on every rank's scheduler for a group whose init_weights_update_group names it, and calls it between
two batches, on the thread that runs them.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Optional

from dws.errors import InvalidArgumentError, StateError
from dws.plugins.attach import AttachedRank
from dws.plugins.requested import Requested, RequestedCommits
from dws.plugins.step_gate import Minimum


class ExternalReceiver:
    """One rank. Lifecycle: SGLang's: made, `receive` for each version, destroy. Threads: the scheduler's."""

    def __init__(
        self, model: Any, minimum: Optional[Minimum], attach: Callable[[], AttachedRank], step_timeout: float
    ) -> None:
        """Args: of RequestedCommits."""
        self._minimum = minimum
        self._commits = RequestedCommits(model, minimum, attach, step_timeout, _refuse_steps)

    def receive(self, payload: Optional[Mapping[str, Any]]) -> None:
        """Returns with the version in memory, on all ranks; raises on all ranks.

        Args:
          payload: of the request: {"version": 7, "stream": ..., "timeout": ..., "newer": ...}, as of Requested.

        Raises:
          InvalidArgumentError: it is not.
          StateError: another rank failed.
          The errors of RequestedCommits.update.
        """
        error: Optional[Exception] = None
        try:
            self._commits.update(_parsed(payload))
        except Exception as raised:  # pylint: disable=broad-except
            error = raised
        if self._minimum is not None and not self._minimum([int(error is None)])[0] and error is None:
            raise StateError("another rank of the engine failed: its log has the error")
        if error is not None:
            raise error

    def destroy(self) -> None:
        """Detaches: SGLang goes on with the version that it has."""
        self._commits.close()


def _parsed(payload: Optional[Mapping[str, Any]]) -> Requested:
    try:
        return Requested(**(payload or {}))
    except TypeError as error:
        raise InvalidArgumentError(
            f'receiver_payload is {payload!r}, expected {{"version": 7, "stream": str(trainer.stream)}}: {error}'
        ) from error


def socket_of(payload: Optional[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The receiver's socket and the options of the attach, of receiver_init_payload.

    Raises:
      InvalidArgumentError: it is not {"socket": ..., "options": {...}}.
    """
    given = dict(payload or {})
    socket, options = given.pop("socket", None), given.pop("options", {})
    if not isinstance(socket, str) or not isinstance(options, dict) or given:
        raise InvalidArgumentError(
            f'receiver_init_payload is {payload!r}, expected {{"socket": "/run/dws/receiver-rollout-0.sock"}} with the '
            "--socket of the receiver on this host, and options if any"
        )
    return socket, options


def _refuse_steps(why: Optional[str]) -> None:
    if why is not None:
        # A scheduler is a process of its own, which RequestedCommits has ended. No other process may go on either.
        os.abort()
