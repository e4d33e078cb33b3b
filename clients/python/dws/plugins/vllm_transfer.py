"""vLLM's own way to new weights: the weight transfer backend "dws", driven by vLLM's API.

    vllm serve MODEL --weight-transfer-config '{"backend": "dws"}'

and from the trainer, in Python or by the HTTP requests of the same names:

    llm.init_weight_transfer_engine({"init_info": {"socket": "/run/dws/receiver-rollout-0.sock"}})
    trainer.publish(7)
    llm.start_weight_update()
    llm.update_weights({"update_info": {"version": 7}})
    llm.finish_weight_update(weight_version="7")

Nothing of vLLM is patched. The lease is held all the time, but for update_weights: it lets the
receiver commit the version, which was fetched and staged before, and returns when it is in memory on
this rank. Workers run calls one after the other, so no step is in between; vLLM asks its callers to
pause generation for an update (pause_generation, POST /pause), and a step that is between its two
calls makes update_weights fail. The first update_weights attaches the weights.

It relies on what vLLM 0.32 gives such backends: the module's `vllm.distributed.weight_transfer`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
import signal
from typing import Any, Optional

# The classes below are made by vLLM, which has loaded these already.
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from dws.deadline import Deadline
from dws.errors import EnginePaused, StateError
from dws.plugins.agreement import minimum_over
from dws.plugins.attach import AttachedRank, AttachOptions, attach_together
from dws.plugins.vllm_config import rank_of, refuse_unsupported, require_parts, shape_of
from dws.stream import Stream

_LOG = logging.getLogger(__name__)
_UPDATE_SECONDS = 600.0
_CALLERS_MAX = 8  # frames between the worker's method and this one


@dataclasses.dataclass
class Init(WeightTransferInitInfo):  # type: ignore[misc]
    """init_info of init_weight_transfer_engine.

    Attributes:
      socket: the receiver's --socket on the engine's host.
      options: of dws.plugins.attach.AttachOptions.
    """

    socket: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Update(WeightTransferUpdateInfo):  # type: ignore[misc]
    """update_info of update_weights.

    Attributes:
      version: to be committed.
      stream: str(Stream) of the trainer: the version is of this one. By default of any: after a
        restart of the trainer, name it.
      timeout: seconds until the version is in memory.
      newer: whether a newer version that the trainer has published meanwhile will do.
    """

    version: int
    stream: Optional[str] = None
    timeout: float = _UPDATE_SECONDS
    newer: bool = False


class DwsWeightTransferEngine(WeightTransferEngine[Init, Update]):  # type: ignore[misc]
    """One rank. Lifecycle: as the worker's; threads: the worker's."""

    init_info_cls = Init
    update_info_cls = Update
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._info: Optional[Init] = None
        self._attached: Optional[AttachedRank] = None
        self._inside = contextlib.ExitStack()  # the lease

    def init_transfer_engine(self, init_info: Init) -> None:
        """Raises:
        StateError: attached already, or this vLLM lacks something, by name.
        LayoutError: the engine runs in an unsupported way.
        InvalidArgumentError: an option.
        """
        if self._attached is not None:
            raise StateError("initialised already: call shutdown_weight_transfer_engine first")
        options = AttachOptions.of(init_info.options)
        require_parts(self.vllm_config, "vllm_config", ("model_config", "parallel_config"), options)
        refuse_unsupported(self.vllm_config)
        self._runner()
        self._info = init_info

    def start_weight_update(self) -> None:
        """Raises:
        StateError: init_weight_transfer_engine was not called.
        """
        if self._info is None:
            raise StateError("call init_weight_transfer_engine first, with the receiver's socket")

    def finish_weight_update(self) -> None:
        pass

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Returns with the version in memory, and the lease held.

        Raises:
          DeadlineError: it did not come in time; the engine goes on with the version it had.
          StateError: a step is under way, or a newer version came instead.
          LayoutError, and as Engine.attach: the first time.
        """
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Update) -> None:
        """As update_weights."""
        if getattr(self._runner(), "execute_model_state", None) is not None:
            raise StateError(
                "a step has computed its hidden states and not sampled yet: pause generation "
                "(POST /pause) before update_weights"
            )
        stream = Stream.parse(update_info.stream) if update_info.stream is not None else None
        deadline = Deadline(update_info.timeout)
        attached = self._attached or self._attach()
        self._inside.close()
        try:
            grant = attached.engine.let_commit(update_info.version, deadline.left, stream)
        finally:
            self._go_on(attached)
        if grant.version != update_info.version and not update_info.newer:
            raise StateError(
                f"version {update_info.version} was asked for, and {grant.version} is in memory, which "
                f"was published after it: ask for {grant.version}, or set newer"
            )

    def shutdown(self) -> None:
        """Detaches: the engine goes on with the version it has, and nobody updates it."""
        if self._attached is not None:
            self._attached.close()
            self._inside.close()
        self._attached = self._info = None

    def _attach(self) -> AttachedRank:
        assert self._info is not None  # start_weight_update has checked it
        info, config = self._info, self.vllm_config
        options = AttachOptions.of(info.options)
        group = require_parts(config, "vllm_config", ("model_config", "parallel_config"), options)
        minimum = minimum_over(group.cpu_group) if int(group.world_size) > 1 else None
        shape = shape_of(config)
        rank = rank_of(config, shape, group)
        self._attached = attach_together(
            lambda: AttachedRank(
                info.socket, self.model, shape, rank, minimum, options, commits_on_request=True
            ),
            minimum,
        )
        return self._attached

    def _go_on(self, attached: AttachedRank) -> None:
        """Goes inside the lease. Memory of no whole version must not be computed with, and nothing
        here could stop vLLM's steps: without the lease the worker ends."""
        timeout = AttachOptions.of(self._info.options).step_timeout if self._info else 0.0
        try:
            self._inside.enter_context(attached.engine.running(timeout))
        except EnginePaused as paused:
            _LOG.critical("dws: memory has no whole version, this worker ends: %s", paused)
            os.kill(os.getpid(), signal.SIGKILL)
            raise

    def _runner(self) -> Any:
        """The model runner of the worker that has called.

        Raises:
          StateError: no caller is this engine's worker.
        """
        frame = inspect.currentframe()
        for _ in range(_CALLERS_MAX):
            frame = frame.f_back if frame is not None else None
            worker = frame.f_locals.get("self") if frame is not None else None
            if getattr(worker, "weight_transfer_engine", None) is self:
                runner = getattr(worker, "model_runner", None)
                if runner is not None and hasattr(runner, "execute_model_state"):
                    return runner
        raise StateError(
            "this vLLM's worker has no model_runner.execute_model_state: whether a step is under way "
            "cannot be told"
        )


@dataclasses.dataclass
class DwsTrainerInit(TrainerInitInfo):  # type: ignore[misc]
    """For WeightTransferTrainerFactory.trainer_init, on every rank of the trainer.

    Attributes:
      trainer: this rank's dws.Trainer, registered.
      socket: the receiver's --socket on the engine's host.
      options: of dws.plugins.attach.AttachOptions.
      timeout: seconds for each update.
    """

    backend = "dws"

    trainer: Any
    socket: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    timeout: float = _UPDATE_SECONDS


class DwsTrainerWeightTransferEngine(
    TrainerWeightTransferEngine[DwsTrainerInit]  # type: ignore[misc]
):
    """Publishes this rank's weights, and has vLLM take them. The weights are those that the
    dws.Trainer was registered with: no WeightSource."""

    init_info_cls = DwsTrainerInit

    def __init__(self, info: DwsTrainerInit, client: Any) -> None:
        super().__init__(client=client, source=None, is_sender=info.is_sender)
        self._info = info

    @classmethod
    def trainer_init(
        cls, init_info: DwsTrainerInit, *, client: Any, source: Any = None
    ) -> "DwsTrainerWeightTransferEngine":
        """Raises:
        StateError: a source is given.
        """
        if source is not None:
            raise StateError("backend dws takes no source: register the tensors with dws.Trainer")
        if init_info.is_sender:
            client.init_weight_transfer_engine(
                {"socket": init_info.socket, "options": init_info.options}
            )
        return cls(init_info, client)

    def send_weights(self) -> None:
        """Publishes the next version; on rank 0 returns when vLLM generates with it.

        Raises:
          As dws.Trainer.publish, and what `client` raises.
        """
        trainer = self._info.trainer
        version = trainer.last_version + 1
        trainer.publish(version, self._info.timeout)
        if not self.is_sender:
            return
        self.client.start_weight_update()
        self.client.update_weights(
            {"version": version, "stream": str(trainer.stream), "timeout": self._info.timeout}
        )
        self.client.finish_weight_update(weight_version=str(version))
