"""vLLM workers whose weights a dws-receiver updates in place.

    llm = LLM(model, tensor_parallel_size=2, worker_extension_cls="dws.vllm.WorkerExtension")
    llm.collective_rpc("dws_attach", kwargs={"socket": "/run/dws/receiver-rollout-0.sock"})
    llm.collective_rpc("dws_wait_ready", kwargs={"timeout": 600})

vllm serve takes --worker-extension-cls, and RPCs at POST /collective_rpc (VLLM_SERVER_DEV_MODE=1).
Commits happen at any time, or with the receiver's --commit-policy only at boundaries:
    llm.collective_rpc("dws_boundary")   # between two batches
dws.plugins.vllm_transfer is for commits when vLLM's API says so.

It relies on the following parts of vLLM's V1 engine, with both of its model runners. Attach looks for
them, and refuses by name what is missing (dws.plugins.probes); a release that was never run gives a warning:
  * worker.model_runner with execute_model, sample_tokens, and get_model() or model: the module that runs; with
    get_draft_model() if a draft model follows it;
  * worker.vllm_config with the settings that decide whether weights can be updated in place;
  * vllm.distributed.parallel_state.get_tp_group() and get_world_group(): rank_in_group, world_size;
    the latter's cpu_group (gloo).

How execution is held: one engine step is one step of dws.plugins.step_gate, from the start of
execute_model to the end of sample_tokens, so that no commit happens in between. Both read weights:
sample_tokens computes the logits of prompt tokens, with the V2 model runner those of sampled tokens
too, and proposes drafts. A step begins when all ranks are inside the lease with the same weights,
and blocks until then. Methods are wrapped on the instance of model_runner, below the worker's own,
because Ray's executor calls them there. Call by call:
  * execute_model returns None: the step continues. sample_tokens ends it, or pool (V2 model runner,
    pooling models);
  * execute_model returns something (no token was scheduled, or pooling models of the V1 model
    runner) or raises: the step has ended. A sample_tokens that follows nevertheless has nothing to
    sample, and is called through;
  * structured output that defers sampling: the step stays open until then. vLLM begins no other
    step before;
  * asynchronous scheduling: steps are called one after the other, the two calls of each together.
    Outputs that are copied later read no weights; the receiver writes only after work that a step
    has left on the device is done;
  * _dummy_run (execute_dummy_batch, warm-ups): its own step; the execute_model inside, which is
    never sampled, is part of it;
  * pipeline parallelism: a step is held from the worker's own execute_model on, before a stage waits
    for what the one before sends. A stage begins a step when all have ended the one before: stages
    do not overlap;
  * data parallelism of a model with experts: the ranks of all replicas agree. A replica without
    tokens runs a dummy batch, which is its step;
  * a step that is never sampled: ended by the next execute_model, by sleep or by dws_suspend,
    dws_resume, dws_wait_ready, which vLLM runs between steps. Until one of these is
    called, commits wait, and dws_status reports it (step_open). A sample_tokens after that fails:
    it never runs with the weights of another version.
A step that is not let in within step_timeout fails, on all ranks, and with it vLLM's engine. The KV
cache is not changed; blocks of an older version are reused unless requests have the version as
cache_salt, the caller resets it (LLM.reset_prefix_cache) or prefix caching is off. worker.sleep and wake_up release the weights and
attach them again; a sleep that fails also attaches them again.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, ContextManager, Optional, TypeVar, Union

from dws.adapters.attached import SEVERAL, AttachedAdapter, AttachedAdapters
from dws.adapters.shadow import Shadow
from dws.boundaries import BOUNDARY_TIMEOUT_SECONDS
from dws.engine import Engine
from dws.errors import StateError
from dws.lease import Grant
from dws.plugins import vllm_adapters, vllm_versions
from dws.plugins.agreement import minimum_over
from dws.plugins.attach import AttachedRank, AttachOptions, EngineRank, attach_together, reply_together
from dws.plugins.draft import Draft
from dws.plugins.step_gate import Minimum, StepGate
from dws.plugins.vllm_config import (
    LOG,
    Groups,
    is_pipelined,
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

DETACH_SECONDS = 10.0
_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_Attached = Union[AttachedRank, AttachedAdapters]


def register() -> None:
    """For the entry point in the group vllm.general_plugins: tells vLLM the versions of WorkerExtension
    (dws.plugins.vllm_versions), and adds the weight transfer backend "dws"
    (dws.plugins.vllm_transfer, dws.trainers.vllm), in a vLLM that has such backends. Never raises: every vLLM calls it,
    and an exception would end also one that uses nothing of DWS."""
    try:
        from vllm.distributed.weight_transfer import factory

        engine = ("dws.plugins.vllm_transfer", "DwsWeightTransferEngine")
        trainers = ("dws.trainers.vllm", "DwsTrainerWeightTransferEngine")
        for kind, found in (("WeightTransferEngineFactory", engine), ("WeightTransferTrainerFactory", trainers)):
            # It does not exist, or was registered before.
            with contextlib.suppress(AttributeError, ValueError):
                getattr(factory, kind).register_engine("dws", *found)
    except ImportError:
        pass
    except Exception as error:
        _LOG.warning("dws: this vLLM has no weight transfer backend dws: %r", error)
    try:
        vllm_versions.follow()
    except Exception as error:
        _LOG.warning("dws: this vLLM is not told the versions of WorkerExtension: %r", error)


class WorkerExtension:
    """For worker_extension_cls: vLLM makes it a base of its worker class. Its methods are called by
    collective_rpc, on every rank; results and arguments fit into JSON. Where one rank fails the last
    one raises, its own error or that another rank failed, and the others log and return None
    (dws.plugins.attach.reply_together).

    Lifecycle: as the worker's. Names begin with dws_, so that none collides with the worker's.
    """

    def dws_attach(self, socket: str, **options: Any) -> Optional[dict[str, Any]]:
        """Attaches this rank's live parameters. The worker generates only while the lease allows.

        Args:
          socket: the receiver's --socket on this host.
          options: of dws.plugins.attach.AttachOptions.

        Returns:
          as dws_status.

        Raises:
          StateError: already attached, or this vLLM lacks something that the message names.
          LayoutError: the engine runs in an unsupported way, or a parameter or layer cannot be
            written in place; the message names it.
          The errors of Engine.attach.
        """
        return _replied(self, lambda: _attach(self, socket, options))

    def dws_attach_adapter(
        self, name: str, path: str, socket: str, **options: Any
    ) -> Optional[dict[str, Any]]:
        """Attaches an adapter of LoRA that vLLM has loaded, in the place of the model; several one after the other.
        Steps wait for the first version of each. docs/lora.md.

        Args:
          name: for messages and dws_status.
          path: the folder that vLLM has loaded it from.
          socket: the --socket of the adapter's receiver on this host.
          options: of dws.plugins.vllm_adapters.VllmAdapterOptions.

        Returns:
          as dws_status.

        Raises:
          StateError: this name or adapter, or the model, is attached, or this vLLM lacks something.
          LayoutError: vLLM runs without LoRA, or has not loaded exactly this adapter; or the trainer
            has registered another one (rank, alpha, targets), or one that is not supported, by name.
          The errors of Engine.attach.
        """
        return _replied(self, lambda: _attach_adapter(self, name, path, socket, options))

    def dws_detach_adapter(self, name: str, timeout: float = DETACH_SECONDS) -> None:
        """Detaches one adapter: vLLM goes on with its present version.

        Raises:
          StateError: it is not attached.
          EnginePaused: an adapter has no whole version within `timeout` seconds, on all ranks.
        """
        _replied(self, lambda: _detach_adapter(self, name, timeout))

    def dws_wait_ready(self, timeout: float) -> Optional[dict[str, Any]]:
        """Waits until a version is in memory.

        Raises:
          EnginePaused: none in time; the message says why.
        """

        def ready() -> dict[str, Any]:
            attached = _between_steps(self)
            attached.engine.wait_ready(timeout)
            return _status(self, attached)

        return _replied(self, ready)

    def dws_boundary(self, timeout: float = BOUNDARY_TIMEOUT_SECONDS) -> Optional[dict[str, Any]]:
        """Between two batches: a version that the receiver holds back by its --commit-policy is
        committed. Returns after that, at once if none is held.

        Returns:
          as dws_status.

        Raises:
          DeadlineError, EnginePaused: not within `timeout` seconds.
        """

        def passed() -> dict[str, Any]:
            attached = _between_steps(self)
            # For all ranks, which begin no step before all have replied.
            if attached.engine.engine_rank == 0:
                attached.engine.boundary(timeout)
            return _status(self, attached)

        return _replied(self, passed)

    def dws_status(self) -> Optional[dict[str, Any]]:
        """This rank's version, stream and state token (None while paused), passes and pauses; also
        step_open: whether a step was begun that vLLM has not sampled, so that commits wait. With
        adapters `adapters` has version, stream, state token, id and slot of each."""
        return _replied(self, lambda: _status(self, _require(self)))

    def dws_version(self) -> Optional[int]:
        """The version in memory, of the last step or newer; None before the first one, and with several
        adapters. For /weight_info: never raises."""
        attached = _attached(self)
        grant = None if attached is None else _told(attached.engine.grant)
        if grant is not None:
            self._dws_last_version: Optional[int] = grant.version
        return None if attached is None else getattr(self, "_dws_last_version", None)

    def dws_suspend(self) -> None:
        """Releases the weights until dws_resume: no pass runs. `sleep` does this itself."""
        _replied(self, lambda: _between_steps(self).engine.suspend())

    def dws_resume(self) -> None:
        """After dws_suspend: attaches the weights where they are now. `wake_up` does this."""
        _replied(self, lambda: _between_steps(self).engine.refresh())

    def dws_detach(self, timeout: float = DETACH_SECONDS) -> None:
        """Detaches: the worker goes on with its present version and gets no newer ones. Does
        nothing to a worker that is not attached; dws_attach attaches it again.

        Raises:
          EnginePaused: memory had no whole version within `timeout` seconds, on all ranks. The worker
            is still attached.
        """
        _replied(self, lambda: _detach(self, timeout))


def _replied(worker: Any, call: Callable[[], _Result]) -> Optional[_Result]:
    return reply_together(
        call, replies_last(worker.vllm_config), lambda: getattr(worker, "_dws_minimum", None)
    )


def _attach(worker: Any, socket: str, options: dict[str, Any]) -> dict[str, Any]:
    if _attached(worker) is not None:
        raise StateError("this worker is attached: call dws_detach first")
    chosen = AttachOptions.of(options)
    model, draft, groups, compared = _probe(worker, chosen)
    refuse_unsupported(worker.vllm_config)
    config = text_config(worker.vllm_config)
    rank = rank_of(worker.vllm_config, groups)
    weights = weights_of(worker.vllm_config)
    minimum = _minimum(worker, rank, groups)
    worker._dws_attached = attach_together(
        lambda: AttachedRank(
            socket,
            model,
            config,
            rank,
            minimum,
            chosen,
            weights,
            processing=VllmProcessing(worker.vllm_config),
            compared=compared,
            draft=draft,
        ),
        minimum,
        LOG,
    )
    _hold(worker)
    return _status(worker, worker._dws_attached)


def _minimum(worker: Any, rank: EngineRank, groups: Groups) -> Optional[Minimum]:
    """How the ranks agree. Called when what refuses up to then refuses on all of them alike; the group that this makes is
    kept."""
    if rank.together > 1 and getattr(worker, "_dws_minimum", None) is None:
        worker._dws_minimum = minimum_over(groups.world.cpu_group)
    found: Optional[Minimum] = getattr(worker, "_dws_minimum", None)
    return found


def _attach_adapter(worker: Any, name: str, path: str, socket: str, given: dict[str, Any]) -> dict[str, Any]:
    options = vllm_adapters.VllmAdapterOptions.of(given)
    attached = _attached(worker)
    if attached is not None and (isinstance(attached, AttachedRank) or name in attached):
        what = "its model" if isinstance(attached, AttachedRank) else f"an adapter '{name}'"
        raise StateError(f"this worker has {what} attached: detach that first")
    _, _, groups, _ = _probe(worker, None)
    refuse_unsupported(worker.vllm_config, adapters=True)
    rank = rank_of(worker.vllm_config, groups)
    on_host = options.ranks_on_host or rank.together
    minimum = _minimum(worker, rank, groups)
    if getattr(worker, "_dws_adapters", None) is None:
        worker._dws_adapters = vllm_adapters.VllmAdapters(
            worker.model_runner.lora_manager, lambda: _adapters_of(worker), replies_last(worker.vllm_config), minimum
        )
    adapters: vllm_adapters.VllmAdapters = worker._dws_adapters

    with contextlib.ExitStack() as following:  # until all ranks have attached it

        def attach() -> AttachedAdapter:
            shadow = Shadow(path, options.dtype)
            number = adapters.find(name, shadow, options.lora_int_id)
            following.enter_context(adapters.following(name, number, shadow))
            engine = Engine(socket, rank.number % on_host, on_host)
            return AttachedAdapter(name, shadow, engine, lambda: adapters.load(number), options.timeout)

        adapter = attach_together(attach, minimum, LOG)
    if attached is None:
        worker._dws_attached = attached = AttachedAdapters(rank.number, minimum, options.step_timeout)
        _hold(worker)
    attached.add(adapter)
    return _status(worker, attached)


def _detach_adapter(worker: Any, name: str, timeout: float) -> None:
    attached = _adapters_of(worker)
    if attached is None or name not in attached:
        raise StateError(f"no adapter '{name}' is attached: call dws_attach_adapter first")
    with _whole(attached, timeout):
        attached.remove(name)
        if not attached:
            worker._dws_attached = None
    attached.gate.give_up()
    _LOG.warning("dws: adapter '%s' is detached, its version stays in memory", name)


def _whole(attached: _Attached, timeout: float) -> ContextManager[Any]:
    """A block in which memory has a whole version, on all ranks. An open step goes on with the weights it began with."""
    gate = attached.gate
    return gate.step(timeout) if gate.held is None else contextlib.nullcontext(gate.held)


def _detach(worker: Any, timeout: float) -> None:
    attached = _attached(worker)
    if attached is None:
        return
    with _whole(attached, timeout) as grant:
        worker._dws_attached = None
        attached.close()
    attached.gate.give_up()
    told = _told(grant)
    _LOG.warning("dws: detached, version %s stays in memory", "of each adapter" if told is None else told.version)


def _attached(worker: Any) -> Optional[_Attached]:
    found: Optional[_Attached] = getattr(worker, "_dws_attached", None)
    return found


def _adapters_of(worker: Any) -> Optional[AttachedAdapters]:
    found = _attached(worker)
    return found if isinstance(found, AttachedAdapters) else None


def _status(worker: Any, attached: _Attached) -> dict[str, Any]:
    status = attached.status()
    if isinstance(attached, AttachedAdapters):
        adapters: vllm_adapters.VllmAdapters = worker._dws_adapters
        for name, state in adapters.state().items():
            status["adapters"][name].update(state)
    return status


def _told(grant: Optional[Grant]) -> Optional[Grant]:
    """The grant whose version vLLM is told."""
    return None if grant is None or grant.version == SEVERAL else grant


def _require(worker: Any) -> _Attached:
    attached = _attached(worker)
    if attached is None:
        raise StateError("this worker is not attached: call dws_attach first")
    return attached


def _between_steps(worker: Any) -> _Attached:
    """For calls that vLLM makes between steps: an open step of this thread is never sampled."""
    attached = _require(worker)
    attached.gate.give_up()
    return attached


def _probe(worker: Any, options: Optional[AttachOptions]) -> tuple[Any, Optional[Draft], Groups, bool]:
    """The model that runs, the draft model that follows it, and whether weights in this release were compared.

    Args:
      options: of the model; None: adapters alone are attached, and what they need is looked for.

    Raises:
      StateError: this vLLM lacks something, by name.
      The errors of probe_draft.
    """
    found = probes()
    found.has(worker, "worker", "vllm_config", "model_runner.execute_model", "model_runner.sample_tokens")
    runner: Any = getattr(worker, "model_runner", None)
    found.takes(getattr(runner, "execute_model", None), "model_runner.execute_model", "scheduler_output")
    found.takes(getattr(runner, "sample_tokens", None), "model_runner.sample_tokens", "grammar_output")
    found.fields("vllm.v1.core.sched.output", "SchedulerOutput", "total_num_scheduled_tokens")
    if hasattr(worker, "execute_dummy_batch"):
        found.has(runner, "model_runner", "_dummy_run")
    # A module that runs in CUDA graphs has a wrapper, which get_model removes.
    model = runner.get_model() if hasattr(runner, "get_model") else getattr(runner, "model", None)
    found.has(model, "model_runner.get_model()", "named_parameters")
    groups = probe_config(found, getattr(worker, "vllm_config", None))
    if options is None and worker.vllm_config.lora_config is not None:
        vllm_adapters.probe(found, runner)
    found.require()
    draft = None if options is None else probe_draft(found, worker.vllm_config, runner, options)
    return model, draft, groups, found.compared


def _hold(worker: Any) -> None:
    """Wraps the steps in the gate, and suspends the engine around sleep and wake_up, while the worker
    is attached. Once for each worker."""
    if getattr(worker, "_dws_held", False):
        return
    worker._dws_held = True
    runner = worker.model_runner
    # Stages agree before one of them waits for another stage's output, which the worker's own
    # method does.
    pipelined = is_pipelined(worker.vllm_config)
    stepping = worker if pipelined else runner

    def gated(
        owner: Any, name: str, wrap: Callable[[StepGate, Callable[..., Any]], Any]
    ) -> None:
        call = getattr(owner, name)

        def through(*args: Any, **kwargs: Any) -> Any:
            attached = _attached(worker)
            return (call if attached is None else wrap(attached.gate, call))(*args, **kwargs)

        setattr(owner, name, through)

    gated(stepping, "execute_model", _opening(worker.vllm_config))
    gated(stepping, "sample_tokens", _closing)
    # Only the V2 model runner has pool, and the worker calls it. The other one pools in
    # execute_model.
    if hasattr(runner, "pool") and not pipelined:
        gated(runner, "pool", _closing)
    if hasattr(runner, "_dummy_run"):
        gated(runner, "_dummy_run", StepGate.wrap)
    if hasattr(worker, "sleep") and hasattr(worker, "wake_up"):
        _suspend_around_sleep(worker)


def _opening(config: Any) -> Callable[[StepGate, Callable[..., Any]], Any]:
    replicas = int(getattr(config.parallel_config, "data_parallel_size", 1))

    def opening(gate: StepGate, call: Callable[..., Any]) -> Callable[..., Any]:
        marked = vllm_versions.marking(call, lambda: _told(gate.held))
        opened = gate.opening(marked, lambda result: result is None)

        def stepped(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            # A replica without tokens runs a dummy batch instead, which is a step: one of each for all replicas.
            idle = replicas > 1 and not scheduler_output.total_num_scheduled_tokens
            return (call if idle else opened)(scheduler_output, *args, **kwargs)

        return stepped

    return opening


def _closing(gate: StepGate, call: Callable[..., Any]) -> Callable[..., Any]:
    return gate.closing(vllm_versions.marking(call, lambda: _told(gate.held)))


def _suspend_around_sleep(worker: Any) -> None:
    sleep, wake_up = worker.sleep, worker.wake_up

    def suspended(*args: Any, **kwargs: Any) -> Any:
        attached = _attached(worker)
        if attached is None:
            return sleep(*args, **kwargs)
        try:
            attached.gate.give_up()
            attached.engine.suspend()
            return sleep(*args, **kwargs)
        except BaseException:
            # wake_up is not called for a worker that is not asleep.
            attached.engine.refresh()
            raise

    def woken(tags: Optional[list[str]] = None) -> Any:
        done = wake_up(tags)
        attached = _attached(worker)
        if attached is not None and (tags is None or "weights" in tags):
            attached.engine.refresh()
        return done

    worker.sleep, worker.wake_up = suspended, woken
