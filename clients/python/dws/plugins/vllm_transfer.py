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

import contextlib
import dataclasses
import inspect
import logging
import multiprocessing
import os
import signal
import threading
from typing import Any, Callable, NoReturn, Optional

# The classes below are made by vLLM, which has loaded these already.
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from dws.deadline import Deadline
from dws.errors import DeadlineError, EnginePaused, InvalidArgumentError, LayoutError, StateError
from dws.lease import Grant
from dws.plugins.agreement import minimum_over
from dws.plugins.attach import AttachedRank, AttachOptions, attach_together, reply_together
from dws.plugins.fingerprint import fingerprint
from dws.plugins.step_gate import Minimum
from dws.plugins.vllm_config import (
    LOG,
    Groups,
    probe_config,
    probes,
    rank_of,
    refuse_unsupported,
    replies_last,
    text_config,
    weights_of,
)
from dws.plugins.vllm_processing import VllmProcessing
from dws.stream import Stream

_LOG = logging.getLogger(__name__)
# Less than vLLM's HTTP client waits (300 s).
UPDATE_SECONDS = 240.0
_DETACHED = (
    "nothing was written: this engine is detached and goes on with the weights it had, and the next "
    "update_weights attaches it again"
)
_NO_VERSION = "memory has no whole version: no step runs until an update_weights succeeds"
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
class Update(WeightTransferUpdateInfo):  # type: ignore[misc]
    """update_info of update_weights.

    Attributes:
      version: to be committed.
      stream: str(Stream) of the trainer that published the version. By default a version of any
        stream is accepted, also of the trainer before a restart, whose numbers may be the same: so
        name it.
      timeout: seconds until the version is in memory.
      newer: true if a newer version that the trainer has published meanwhile is also accepted.

    Raises:
      InvalidArgumentError: on construction, a field of the wrong type, by name.
    """

    version: int
    stream: Optional[str] = None
    timeout: float = UPDATE_SECONDS
    newer: bool = False

    def __post_init__(self) -> None:
        def is_number(value: Any, kinds: Any) -> bool:
            return isinstance(value, kinds) and not isinstance(value, bool)

        for name, fine, expected in (
            (
                "version",
                is_number(self.version, int) and 0 < self.version < 1 << 64,
                "a number from 1 to 2**64 - 1",
            ),
            ("stream", isinstance(self.stream, (str, type(None))), "str(trainer.stream), or none"),
            (
                "timeout",
                is_number(self.timeout, (int, float)) and 0 <= self.timeout <= threading.TIMEOUT_MAX,
                "seconds",
            ),
            ("newer", isinstance(self.newer, bool), "true or false"),
        ):
            if not fine:
                raise InvalidArgumentError(
                    f"update_info has {name}={getattr(self, name)!r}, expected {expected}"
                )


class DwsWeightTransferEngine(WeightTransferEngine[Init, Update]):  # type: ignore[misc]
    """One rank. Lifecycle: as the worker's; threads: the worker's. What a rank finds out alone must not
    keep it from the calls of `_minimum` that the others make."""

    init_info_cls = Init
    update_info_cls = Update
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._info: Optional[Init] = None
        self._minimum: Optional[Minimum] = None  # of several ranks; made once and kept
        self._attached: Optional[AttachedRank] = None
        self._inside = contextlib.ExitStack()  # the lease

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
        if self._attached is not None:
            raise StateError("initialised already: call shutdown_weight_transfer_engine first")
        info: Init = super().parse_init_info(init_info)
        AttachOptions.of(info.options)
        groups, _ = self._probe()
        refuse_unsupported(self.vllm_config)
        if self.vllm_config.model_config.enable_sleep_mode:
            raise LayoutError(
                "this engine runs with sleep mode (enable_sleep_mode), which takes weights away that "
                "this backend has attached: turn it off, or use dws.vllm.WorkerExtension"
            )
        # Refusals up to here are the same on all ranks.
        if self._minimum is None and int(groups.world.world_size) > 1:
            self._minimum = minimum_over(groups.world.cpu_group)
        self._info = info

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
        if self._info is None:
            raise StateError("call init_weight_transfer_engine first, with the receiver's socket")
        if self._worker().model_runner.execute_model_state is not None:
            raise StateError(
                "a step has computed its hidden states and not sampled yet: pause generation "
                "(POST /pause) before update_weights"
            )
        stream = Stream.parse(update.stream) if update.stream is not None else None
        deadline = Deadline(update.timeout)
        known = self._attached is not None and self._attached.engine.stats().connected
        before = None if known else _fingerprint(self.model)
        attached = self._attached or self._attach(self._info)
        held = attached.engine.grant
        if stream is None and held is not None and held.reaches(update.version, None):
            _LOG.warning(
                "dws: nothing is committed for version %d: memory has %d of stream %s, and update_info "
                "names no stream. Name str(trainer.stream): a trainer that restarted counts from 1 again",
                update.version,
                held.version,
                held.stream,
            )
        self._inside.close()
        failed: Optional[BaseException] = None
        try:
            attached.engine.let_commit(update.version, deadline.left, stream)
        except BaseException as error:
            failed = error
        if self._all(_untouched(attached, self.model, before)):
            self._leave_untouched(attached, before)
            raise DeadlineError(f"{failed or 'the receiver is gone'}; {_DETACHED}") from failed
        grant = self._go_on(attached)
        # A commit that had begun at the deadline may have ended since.
        late = isinstance(failed, DeadlineError) and grant.reaches(update.version, stream)
        if failed is not None and not late:
            raise failed
        if grant.version != update.version and not update.newer:
            raise StateError(
                f"version {update.version} was asked for, and {grant.version} of stream "
                f"{grant.stream} is in memory: ask for {grant.version}, or set newer; name the stream of "
                "a trainer that restarted"
            )
        return grant

    def _replied(self, call: Callable[[], Any]) -> Any:
        return reply_together(call, replies_last(self.vllm_config), lambda: self._minimum)

    def shutdown(self) -> None:
        """Detaches: the engine goes on with its present version, and nobody updates it. Threads:
        any."""
        if self._attached is not None:
            self._attached.close()
            self._inside.close()
        self._attached = self._info = None

    def _attach(self, info: Init) -> AttachedRank:
        config, minimum, options = self.vllm_config, self._minimum, AttachOptions.of(info.options)
        groups, ran = self._probe()
        rank = rank_of(config, groups)
        self._attached = attach_together(
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
                ran=ran,
            ),
            minimum,
            LOG,
        )
        return self._attached

    def _all(self, here: bool) -> bool:
        """Returns whether `here` is true on all ranks."""
        return here if self._minimum is None else bool(self._minimum([int(here)])[0])

    def _leave_untouched(self, attached: AttachedRank, before: Optional[int]) -> None:
        """Detaches weights that no commit has written: no version was granted, and the weights are
        unchanged. After it returns, none can be written; a commit that has just begun ends the
        worker."""
        try:
            attached.engine.suspend()
            released = True
        except DeadlineError:
            released = False
        attached.close()
        self._attached = None
        if not self._all(released and _untouched(attached, self.model, before)):
            self._end("a commit had begun when the update ended")

    def _go_on(self, attached: AttachedRank) -> Grant:
        """Goes inside the lease: with the version that is in memory then. Memory of no whole version
        must not be computed with."""
        timeout = AttachOptions.of(self._info.options).step_timeout if self._info else 0.0
        try:
            grant = self._inside.enter_context(attached.engine.running(timeout))
        except EnginePaused as paused:
            self._end(str(paused))
        runner = self._worker().model_runner
        if vars(runner).get("execute_model") is _refuse:
            del runner.execute_model
        return grant

    def _end(self, why: str) -> NoReturn:
        """Ends a worker whose memory has no whole version.

        Raises:
          StateError: the process is the user's own, not one of vLLM's: steps fail from now on.
        """
        if multiprocessing.parent_process() is not None:
            _LOG.critical("dws: memory has no whole version, this worker ends: %s", why)
            os.kill(os.getpid(), signal.SIGKILL)
        self._worker().model_runner.execute_model = _refuse
        raise StateError(f"{_NO_VERSION}: {why}")

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

    def _probe(self) -> tuple[Groups, bool]:
        """The groups of ranks, and whether this release was run with the plugin.

        Raises:
          StateError: this vLLM lacks something, by name.
        """
        found, worker = probes(), self._worker()
        # They tell of a step that is under way, and vLLM of an update that has failed.
        found.knows(worker, "worker", "model_runner.execute_model_state", "_weight_update_active")
        groups = probe_config(found, self.vllm_config)
        found.require()
        return groups, found.ran


def _untouched(attached: AttachedRank, model: Any, before: Optional[int]) -> bool:
    """Returns whether the weights, for which no version is granted, are known to be unchanged.

    Args:
      before: the fingerprint of the old weights; None: not taken.
    """
    return (
        before is not None and attached.engine.grant is None and _fingerprint(model) == before
    )


def _fingerprint(model: Any) -> Optional[int]:
    """Returns None if it cannot be taken. Does not raise, because ranks take it separately."""
    try:
        return fingerprint(model)
    except Exception as error:
        _LOG.warning("dws: whether weights are written cannot be told: %r", error)
        return None


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """In place of execute_model."""
    raise StateError(_NO_VERSION)
