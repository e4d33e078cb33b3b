"""vLLM's own way to new weights: the weight transfer backend "dws", driven by vLLM's API.

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

It relies on the interface that vLLM 0.32 gives such backends: the module's
`vllm.distributed.weight_transfer`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import logging
import multiprocessing
import os
import signal
import threading
import weakref
from typing import Any, Callable, NoReturn, Optional

# The classes below are made by vLLM, which has loaded these already.
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from dws.deadline import Deadline
from dws.errors import DeadlineError, EnginePaused, InvalidArgumentError, LayoutError, StateError
from dws.lease import Grant
from dws.plugins.agreement import minimum_over
from dws.plugins.attach import AttachedRank, AttachOptions, attach_together, missing, reply_together
from dws.plugins.fingerprint import fingerprint, fingerprint_of
from dws.plugins.step_gate import Minimum
from dws.plugins.vllm_config import (
    LOG,
    rank_of,
    refuse_unsupported,
    replies_last,
    require_parts,
    text_config,
    weights_of,
)
from dws.plugins.vllm_processing import VllmProcessing
from dws.stream import Stream

_LOG = logging.getLogger(__name__)
# Less than vLLM's HTTP client waits (300 s).
_UPDATE_SECONDS = 240.0
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
    timeout: float = _UPDATE_SECONDS
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
        options = AttachOptions.of(info.options)
        groups = require_parts(
            self.vllm_config, "vllm_config", ("model_config", "parallel_config"), options
        )
        refuse_unsupported(self.vllm_config)
        if getattr(self.vllm_config.model_config, "enable_sleep_mode", False):
            raise LayoutError(
                "this engine runs with sleep mode (enable_sleep_mode), which takes weights away that "
                "this backend has attached: turn it off, or use dws.vllm.WorkerExtension"
            )
        self._worker()
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
        groups = require_parts(config, "vllm_config", ("model_config", "parallel_config"), options)
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
                if not missing(worker, "worker", ("model_runner", "_weight_update_active")) and hasattr(
                    worker.model_runner, "execute_model_state"
                ):
                    return worker
        raise StateError(
            "this vLLM's worker has no model_runner.execute_model_state or no _weight_update_active: "
            "whether a step is under way cannot be told"
        )


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


class _Shared:
    """The common state of all engines of one dws.Trainer: several servers get the same versions.

    Attributes:
      engines: the engines of the trainer.
      version, content: the version that one of them published last, and the fingerprint of the
        weights then; None: not taken, because the number was given.
    """

    def __init__(self) -> None:
        self.engines: weakref.WeakSet[Any] = weakref.WeakSet()
        self.version = 0
        self.content: Optional[int] = None


_SHARED: weakref.WeakKeyDictionary[Any, _Shared] = weakref.WeakKeyDictionary()


class DwsTrainerWeightTransferEngine(
    TrainerWeightTransferEngine[DwsTrainerInit]  # type: ignore[misc]
):
    """Publishes this rank's weights, and has vLLM take them. The weights are those that the
    dws.Trainer was registered with: no WeightSource."""

    init_info_cls = DwsTrainerInit

    def __init__(self, info: DwsTrainerInit, client: Any) -> None:
        super().__init__(client=client, source=None, is_sender=info.is_sender)
        self._info = info
        self._shared = _SHARED.setdefault(info.trainer, _Shared())
        self._shared.engines.add(self)

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

    def send_weights(self, version: Optional[int] = None) -> None:
        """Publishes the weights unless they are published; on rank 0 returns when vLLM generates with
        them.

        Args:
          version: their number, such as the trainer's step: the same for each server that gets
            them, and on each rank. It is published if it is above the trainer's last version; the
            last version is sent as it was published. By default it is the next number; if several
            engines share the trainer and no weight has changed since the last call, it is the
            number of that call. All weights are read to find that out.

        Raises:
          VersionError: an older version.
          StateError: no version was given although several engines share a trainer of several
            ranks: a rank cannot tell whether the weights of the others have changed.
          The errors of dws.Trainer.publish and of `client`.
        """
        trainer, shared = self._info.trainer, self._shared
        compares = version is None and len(shared.engines) > 1
        if version is None:
            known = compares and self._is_published()
            version = shared.version if known else trainer.last_version + 1
        if version != trainer.last_version:
            trainer.publish(version, self._info.timeout)
            shared.version, shared.content = version, self._content() if compares else None
        if not self.is_sender:
            return
        self.client.start_weight_update()
        self.client.update_weights(
            {"version": version, "stream": str(trainer.stream), "timeout": self._info.timeout}
        )
        self.client.finish_weight_update(weight_version=str(version))

    def _is_published(self) -> bool:
        """Returns whether the weights are known to be those of the trainer's last version."""
        trainer, shared = self._info.trainer, self._shared
        if trainer.world_size > 1:
            raise StateError(
                f"{len(shared.engines)} weight transfer engines share this trainer of "
                f"{trainer.world_size} ranks: give the step's number to each, send_weights(version=...)"
            )
        known = shared.content is not None and shared.version == trainer.last_version
        return known and self._content() == shared.content

    def _content(self) -> int:
        return fingerprint_of(map(_bits, self._info.trainer.resident_weights()))


def _bits(memory: Any) -> Any:
    """A torch tensor, or a region's numpy bytes as one of 64-bit numbers."""
    torch: Any = importlib.import_module("torch")
    if torch.is_tensor(memory):
        return memory
    return torch.from_numpy(memory[: memory.size // 8 * 8]).view(torch.int64)
