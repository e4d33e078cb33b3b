"""vLLM's own way to new weights: the weight transfer backend "dws", driven by vLLM's API. Its trainer's side is
dws.trainers.vllm.

    vllm serve MODEL --weight-transfer-config '{"backend": "dws"}'

and from the trainer, in Python or by the HTTP requests of the same names:

    llm.init_weight_transfer_engine({"init_info": {"socket": "/run/dws/receiver-rollout-0.sock"}})
    trainer.publish(7)
    llm.start_weight_update()
    llm.update_weights({"update_info": {"version": 7, "stream": str(trainer.stream)}})
    llm.finish_weight_update(weight_version="7")

Nothing of vLLM is patched. The lease is held all the time except in update_weights: that lets the
receiver commit the version, which was fetched and staged before, and returns when it is in memory
on this rank. Workers run calls one after the other, so no step is in between; vLLM asks its callers
to pause generation for an update (pause_generation, POST /pause), and a step that is between its
two calls makes update_weights fail. The first update_weights attaches the weights; if it fails
before anything was written, it detaches them again.

It relies on the interface that vLLM gives such backends, in `vllm.distributed.weight_transfer`, and
looks for its parts (dws.plugins.probes).
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable, NoReturn, Optional

# The classes below are made by vLLM, which has loaded these already.
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from dws.errors import LayoutError, StateError
from dws.lease import Grant
from dws.plugins.agreement import minimum_over
from dws.plugins.attach import AttachedRank, AttachOptions, attach_together, reply_together
from dws.plugins.draft import whole_engine
from dws.plugins.probes import Probes
from dws.plugins.requested import Requested, RequestedCommits
from dws.plugins.step_gate import Minimum
from dws.plugins.vllm_config import (
    LOG,
    Groups,
    probe_config,
    probe_draft,
    probes,
    rank_of,
    refuse_unsupported,
    replies_last,
    text_config,
    weights_of,
)
from dws.plugins.vllm_processing import VllmProcessing

_CALLERS_MAX = 12  # frames between the worker's method and this one


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
class Update(Requested, WeightTransferUpdateInfo):  # type: ignore[misc]
    """update_info of update_weights."""


class DwsWeightTransferEngine(WeightTransferEngine[Init, Update]):  # type: ignore[misc]
    """One rank. Lifecycle: as the worker's; threads: the worker's. What a rank finds out alone must not
    keep it from the calls of `_minimum` that the others make."""

    init_info_cls = Init
    update_info_cls = Update
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._commits: Optional[RequestedCommits] = None
        self._minimum: Optional[Minimum] = None  # of several ranks; made once and kept

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        """Returns `init_dict` unchanged. init_transfer_engine parses it, so that an error leaves
        the replies of all ranks read."""
        return init_dict

    def init_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Raises:
        StateError: attached already, or this vLLM lacks something, by name.
        LayoutError: the engine runs in an unsupported way.
        InvalidArgumentError: an option.
        """
        self._replied(lambda: self._init(init_info))

    def _init(self, init_info: dict[str, Any]) -> None:
        if self._commits is not None and self._commits.engine is not None:
            raise StateError("initialised already: call shutdown_weight_transfer_engine first")
        info: Init = super().parse_init_info(init_info)
        options = AttachOptions.of(info.options)
        groups, found = self._probe()
        refuse_unsupported(self.vllm_config)
        if self.vllm_config.model_config.enable_sleep_mode:
            raise LayoutError(
                "this engine runs with sleep mode (enable_sleep_mode), which takes weights away that "
                "this backend has attached: turn it off, or use dws.vllm.WorkerExtension"
            )
        # Refusals up to here are the same on all ranks.
        if self._minimum is None and int(groups.world.world_size) > 1:
            self._minimum = minimum_over(groups.world.cpu_group)
        whole = whole_engine(self.model, probe_draft(found, self.vllm_config, self._worker().model_runner, options))
        self._commits = RequestedCommits(
            whole, self._minimum, lambda: self._attach(info), options.step_timeout, self._refuse_steps
        )

    def start_weight_update(self) -> None:
        """Raises nothing: vLLM would begin the update on the ranks that do not raise."""

    def finish_weight_update(self) -> None:
        pass

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Returns with the version in memory, and the lease held. If one rank fails, the last rank
        raises (its own error, or that another rank failed), and the others log.

        Raises:
          DeadlineError: it did not arrive in time; the engine goes on with its old version, or
            detached with its own weights.
          StateError: init_weight_transfer_engine was not called, a step is under way, or a newer
            version came instead.
          LayoutError, and as Engine.attach: the first time.
        """
        grant = self._replied(lambda: self._update(self.parse_update_info(update_info)))
        if grant is None:
            # vLLM does this on the rank that raises.
            self._worker()._weight_update_active = False

    def receive_weights(self, update_info: Update) -> None:
        """See update_weights."""
        self._replied(lambda: self._update(update_info))

    def _update(self, update: Update) -> Grant:
        if self._commits is None:
            raise StateError("call init_weight_transfer_engine first, with the receiver's socket")
        if self._worker().model_runner.execute_model_state is not None:
            raise StateError(
                "a step has computed its hidden states and not sampled yet: pause generation "
                "(POST /pause) before update_weights"
            )
        return self._commits.update(update)

    def _replied(self, call: Callable[[], Any]) -> Any:
        return reply_together(call, replies_last(self.vllm_config), lambda: self._minimum)

    def shutdown(self) -> None:
        """Detaches: the engine goes on with its present version, and nobody updates it. Threads:
        any."""
        if self._commits is not None:
            self._commits.close()
        self._commits = None

    def _attach(self, info: Init) -> AttachedRank:
        config, minimum, options = self.vllm_config, self._minimum, AttachOptions.of(info.options)
        groups, found = self._probe()
        draft = probe_draft(found, config, self._worker().model_runner, options)
        rank = rank_of(config, groups)
        return attach_together(
            lambda: AttachedRank(
                info.socket,
                self.model,
                text_config(config),
                rank,
                minimum,
                options,
                weights_of(config),
                commits_on_request=True,
                processing=VllmProcessing(config),
                compared=found.compared,
                draft=draft,
            ),
            minimum,
            LOG,
        )

    def _refuse_steps(self, why: Optional[str]) -> None:
        runner = self._worker().model_runner
        if why is not None:
            runner.execute_model = _Refusal(why)
        elif isinstance(vars(runner).get("execute_model"), _Refusal):
            del runner.execute_model

    def _worker(self) -> Any:
        """The worker that has called.

        Raises:
          StateError: no caller is this engine's worker.
        """
        frame = inspect.currentframe()
        for _ in range(_CALLERS_MAX):
            frame = frame.f_back if frame is not None else None
            worker: Any = frame.f_locals.get("self") if frame is not None else None
            if getattr(worker, "weight_transfer_engine", None) is self:
                return worker
        raise StateError(
            "no caller of this weight transfer backend has it as weight_transfer_engine, expected vLLM's worker: "
            "whether a step is under way cannot be told"
        )

    def _probe(self) -> tuple[Groups, Probes]:
        """The groups of ranks, and what has looked for the parts of this release.

        Raises:
          StateError: this vLLM lacks something, by name.
        """
        found, worker = probes(), self._worker()
        # They tell of a step that is under way, and vLLM of an update that has failed.
        found.knows(worker, "worker", "model_runner.execute_model_state", "_weight_update_active")
        groups = probe_config(found, self.vllm_config)
        found.require()
        return groups, found


class _Refusal:
    """In place of execute_model."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise StateError(self._why)
