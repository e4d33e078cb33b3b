"""For Hugging Face's transformers.Trainer, and everything made from it (accelerate, TRL): a callback that
publishes the model's weights.

trainer = transformers.Trainer(..., callbacks=[PublishCallback("/run/dws/sender-{rank}.sock", "run7")])
trainer.train()

Version n + 1 has the weights after n optimizer steps: version 1 those before the first. With
load_best_model_at_end the training ends with one more, which has the weights of the best checkpoint.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping, Optional, Union

# The code that makes a callback has loaded it already.
from transformers import TrainerCallback

from dws.errors import InvalidArgumentError, StateError
from dws.results import WaitResult, require_all
from dws.trainers.published_types import Types
from dws.trainers.publisher import Publisher


class PublishCallback(TrainerCallback):  # type: ignore[misc]
    """One for each process of the training. Lifecycle: pass it to a Trainer; `close` if a training
    ends with an error and the process goes on. It may serve several trainings, one after the other;
    each is a stream of its own.

    Attributes:
      adapter: as given.
    """

    def __init__(
        self,
        socket: str,
        job_id: str,
        every_steps: int = 1,
        wait: Optional[Union[str, int]] = None,
        wait_timeout: float = 60.0,
        cuts: Optional[Mapping[str, Any]] = None,
        dtype: Any = None,
        dtypes: Optional[Types] = None,
        on_device: bool = True,
        adapter: Optional[str] = None,
    ) -> None:
        """Args:
          socket, job_id, cuts, dtype, dtypes, on_device, adapter: as for
            dws.trainers.publisher.Publisher.
          every_steps: optimizer steps from one version to the next; the first and the last state of
            the model are published in any case.
          wait: "all", "any" or a number of receivers that must have committed each version before
            the training goes on (Trainer.wait); None: it does not wait.
          wait_timeout: seconds; then the training ends with NotCommittedError. It also ends at once
            if "all" has left out a receiver that is connected (WaitResult).

        Raises:
          InvalidArgumentError: every_steps is below 1.
        """
        if every_steps < 1:
            raise InvalidArgumentError(f"every_steps {every_steps}: expected at least 1")
        self._publisher_of = functools.partial(
            Publisher,
            socket,
            job_id,
            cuts,
            dtype,
            dtypes=dtypes,
            on_device=on_device,
            adapter=adapter,
        )
        self.adapter = adapter
        self._every_steps = every_steps
        self._wait = wait
        self._wait_timeout = wait_timeout
        self._publisher: Optional[Publisher] = None
        self._now = 0  # the version of the model's present weights
        self._published = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Registers the model and publishes its present weights. At this moment it is as the
        training uses it: on its device, sharded, and known to the optimizer."""
        self.close()
        self._now, self._published = int(state.global_step) + 1, 0
        self._publisher = self._publisher_of()
        self._publisher.register(given["model"])
        self._publish()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """transformers calls it after each optimizer step: publishes in every `every_steps`th.

        Raises:
          The errors of `Trainer.publish`, and of `Trainer.wait` where the callback waits.
        """
        self._now = int(state.global_step) + 1
        if state.global_step % self._every_steps == 0:
            self._publish()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """transformers calls it after the last step: publishes the final weights and closes the connection.

        Raises:
          As on_step_end.
        """
        # By now transformers has put the best checkpoint's weights in the place of the last step's.
        if getattr(args, "load_best_model_at_end", False) and state.best_model_checkpoint:
            self._now += 1
        self._publish()
        self.close()

    def bring(self, policy: Union[str, int], timeout: float) -> Optional[WaitResult]:
        """Publishes the present weights, unless that is done already, and waits for receivers.
        Every process must call it; on processes other than 0 it returns None without waiting.

        Args:
          policy, timeout: as for Trainer.wait.

        Raises:
          StateError: no training is in progress.
          NotCommittedError: also if "all" has left out a receiver that is connected.
          The errors of Publisher.publish and Publisher.wait.
        """
        if self._publisher is None:
            raise StateError(
                "no training is under way: PublishCallback registers the weights when one begins, and "
                "has to be among the trainer's callbacks"
            )
        if self._published != self._now:
            self._publisher.publish(self._now)
            self._published = self._now
        return self._wait_for(self._publisher, policy, timeout)

    def _publish(self) -> None:
        if self._publisher is None or self._published == self._now:
            return
        self._publisher.publish(self._now)
        self._published = self._now
        if self._wait is not None:
            self._wait_for(self._publisher, self._wait, self._wait_timeout)

    def _wait_for(
        self, publisher: Publisher, policy: Union[str, int], timeout: float
    ) -> Optional[WaitResult]:
        result = publisher.wait(self._now, policy, timeout)
        if result is not None:
            require_all(self._now, policy, result)
        return result

    def close(self) -> None:
        """Ends the registration. Idempotent."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
