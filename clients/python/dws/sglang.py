"""SGLang schedulers whose weights a dws-receiver updates in place.

    pip install dws-VERSION.whl          # in SGLang's environment
    DWS_RECEIVER_SOCKET=/run/dws/receiver-rollout-0.sock python -m sglang.launch_server ...

SGLang calls `register` in each of its processes (entry point in the group sglang.srt.plugins). If
DWS_RECEIVER_SOCKET is set, every rank attaches the live parameters of its model when its scheduler
is complete: weights loaded, memory pools allocated, CUDA graphs captured. DWS_ATTACH_OPTIONS is a
JSON object of dws.plugins.attach.AttachOptions. A rank that cannot attach ends the server; its log
has the reason. With DWS_ADAPTERS in its place, adapters of LoRA are attached (dws.plugins.sglang_adapters).

It relies on the following parts of SGLang. `register` and the attach look for them, and refuse by name
what is missing (dws.plugins.probes); a release that was never run gives a warning:
  * sglang.srt.plugins.hook_registry: HookRegistry, HookType;
  * sglang.srt.managers.scheduler.Scheduler: tp_worker.model_runner.model after __init__,
    record_weight_version_change;
  * sglang.srt.model_executor.model_runner.ModelRunner.forward: each pass that reads weights;
  * sglang.srt.runtime_context: get_context().config_leaf for settings, get_parallel() with tp_rank,
    tp_size, tp_group.cpu_group (gloo), and dp_rank of several replicas;
  * model.config, a Hugging Face config.

Commits happen at any time, or with the receiver's --commit-policy only at boundaries. What drives the
server names them, in a process of the same host with DWS_RECEIVER_SOCKET:
    dws.sglang.boundary()                # between two batches
    with dws.sglang.at_boundary(): ...   # while no batch runs

How execution is held: a hook around ModelRunner.forward enters the lease when all ranks are inside
it with the same weights (dws.plugins.step_gate), and blocks until then. CUDA graphs are replayed
inside. With the overlap schedule, the receiver writes only after work that is in progress on the
device is done. A pass that is not let in within step_timeout fails, and with it the server. The
first pass with other weights tells SGLang the version (dws.plugins.sglang_version). The radix cache is not
changed, and the second version gives a warning: give requests the version as cache_salt, flush the
cache (POST /flush_cache) or turn it off. Do not call /release_memory_occupation while
attached; a server that could give memory back (enable_memory_saver) is refused.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from typing import Any, Callable, Iterator, Mapping, Optional, Union

from dws.adapters.attached import AttachedAdapters
from dws.boundaries import BOUNDARY_TIMEOUT_SECONDS, Boundaries
from dws.errors import InvalidArgumentError, LayoutError, StateError
from dws.plugins import sglang_adapters
from dws.plugins.agreement import minimum_over
from dws.plugins.agreed_mapping import Weights
from dws.plugins.attach import AttachedRank, AttachOptions, EngineRank, attach_together
from dws.plugins.canonical import Parallel, experts_of
from dws.plugins.probes import Probes, call_with
from dws.plugins.sglang_processing import BUILT, SglangProcessing, record
from dws.plugins.sglang_receiver import ExternalReceiver, socket_of
from dws.plugins.sglang_version import VersionTeller
from dws.plugins.step_gate import Minimum

SOCKET_VARIABLE = "DWS_RECEIVER_SOCKET"
OPTIONS_VARIABLE = "DWS_ATTACH_OPTIONS"
# Releases that tools/real.sh has run.
COMPARED = ("0.5.23",)
RAN = ("0.5.23", "0.5.22", "0.5.21", "0.5.20")
# Releases that must not be attached, with what is wrong.
BAD: dict[str, str] = {}
_FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler.__init__"
_UNSUPPORTED = "weight_update_unsupported_reason"  # of a model or layer: words, or a method that returns them
_LOG = logging.getLogger(__name__)
_ATTACHED = "_dws_attached"  # attribute of a model: its _AttachedModel


class _AttachedModel:
    """The DWS state of an attached model, or of one with adapters to attach. Threads: the scheduler's."""

    def __init__(self, rank: Union[AttachedRank, AttachedAdapters], teller: Optional[VersionTeller]) -> None:
        """Args:
        teller: None: of several adapters SGLang is told no version.
        """
        self.rank = rank
        self.teller = teller

    @property
    def is_held(self) -> bool:
        """False: none of its adapters is attached at present."""
        return not isinstance(self.rank, AttachedAdapters) or len(self.rank) > 0


def register() -> None:
    """For the entry point in the group sglang.srt.plugins. Does nothing without DWS_RECEIVER_SOCKET, for a model, or
    DWS_ADAPTERS, for adapters of LoRA (docs/lora.md).

    Raises:
      SystemExit: this SGLang lacks something that the message names. SGLang goes on after other
        exceptions of a plugin, and would serve weights that nobody updates.
    """
    adapters = os.environ.get(sglang_adapters.VARIABLE)
    if not os.environ.get(SOCKET_VARIABLE) and not adapters:
        return
    try:
        if adapters:
            _require_no_model()
            sglang_adapters.adapters_of(adapters)
        _options()
        _probe().require()
    except Exception as error:
        raise SystemExit(f"dws.sglang: {error}") from error
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_FORWARD, _held, HookType.AROUND)
    HookRegistry.register(_SCHEDULER, _complete, HookType.AFTER)
    HookRegistry.register(BUILT, record, HookType.AFTER)


def boundary(timeout: float = BOUNDARY_TIMEOUT_SECONDS) -> int:
    """As Boundaries.passed, at the receiver of DWS_RECEIVER_SOCKET.

    Raises:
      StateError: it is not set.
    """
    with contextlib.closing(_boundaries()) as boundaries:
        return boundaries.passed(timeout)


@contextlib.contextmanager
def at_boundary(timeout: float = BOUNDARY_TIMEOUT_SECONDS) -> Iterator[None]:
    """As Boundaries.stay, at the receiver of DWS_RECEIVER_SOCKET.

    Raises:
      StateError: it is not set.
    """
    with contextlib.closing(_boundaries()) as boundaries, boundaries.stay(timeout):
        yield


def _boundaries() -> Boundaries:
    socket = os.environ.get(SOCKET_VARIABLE)
    if not socket:
        raise StateError(f"{SOCKET_VARIABLE} is not set: expected the --socket of this server's receiver")
    return Boundaries(socket)


def _options() -> AttachOptions:
    return AttachOptions.of(json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}"))


def _version() -> str:
    import sglang

    return str(getattr(sglang, "__version__", "of unknown version"))


def _probe() -> Probes:
    """Has looked for the parts that need no scheduler. Models are not imported: SGLang does that after its plugins."""
    found = Probes("SGLang", _version(), RAN, COMPARED, BAD, _LOG)
    hooks = "sglang.srt.plugins.hook_registry"
    found.module(
        hooks, "HookRegistry.register", "HookRegistry._patched", "HookType.AROUND", "HookType.AFTER"
    )
    register_hook = getattr(getattr(sys.modules.get(hooks), "HookRegistry", None), "register", None)
    found.takes(register_hook, "HookRegistry.register", "target", "hook", "hook_type")
    found.module("sglang.srt.runtime_context", "get_context", "get_parallel")
    return found


def _complete(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """The scheduler of this rank is complete: attaches its model.

    Raises:
      StateError: this SGLang lacks something, by name.
      LayoutError: the server runs in an unsupported way, or a parameter or layer cannot be
        written in place, by name.
      The errors of Engine.attach.
    """
    adapters = os.environ.get(sglang_adapters.VARIABLE)
    options, found = _options(), _probe()
    record_change = "record_weight_version_change"
    found.has(scheduler, "Scheduler", "tp_worker.model_runner.model.config", record_change)
    found.takes(getattr(scheduler, record_change, None), f"Scheduler.{record_change}", new_version="7")
    # Without abort_all_requests, each version would abort the requests that run (VersionTeller).
    requests = "sglang.srt.managers.io_struct"
    found.fields(requests, "UpdateWeightVersionReqInput", "new_version", "abort_all_requests")
    parallel, setting = _probe_model_parts(found)
    found.require()
    runner = scheduler.tp_worker.model_runner
    _require_held(runner)
    _refuse(setting, runner.model, adapters=bool(adapters))
    rank = rank_of(setting, _text_config(runner.model))
    minimum = minimum_over(parallel.tp_group.cpu_group) if rank.together > 1 else None
    attached: Union[AttachedRank, AttachedAdapters]
    several = False
    if adapters:
        several = len(sglang_adapters.adapters_of(adapters)) > 1
        attached = _attach_adapters(runner, sglang_adapters.adapters_of(adapters), rank, minimum)
    else:
        attached = _attach(os.environ[SOCKET_VARIABLE], runner.model, rank, minimum, options, found.compared)
    grant = None if rank.number else lambda: attached.engine.grant
    caches = not setting("disable_radix_cache")
    teller = None if several else VersionTeller(scheduler, setting, grant, caches)
    # Not a submodule and not in the module's own tables, so that no code of the model sees it.
    object.__setattr__(runner.model, _ATTACHED, _AttachedModel(attached, teller))


def _attach_adapters(
    runner: Any, adapters: Mapping[str, sglang_adapters.SglangAdapterOptions], rank: EngineRank, minimum: Optional[Minimum]
) -> AttachedAdapters:
    if runner.lora_manager is None:
        raise LayoutError(f"this server runs without LoRA, and {sglang_adapters.VARIABLE} names adapters: start it with --enable-lora")
    found = Probes("SGLang", _version(), sglang_adapters.COMPARED, sglang_adapters.COMPARED, BAD, _LOG)
    sglang_adapters.probe(found, runner)
    found.require()
    made = sglang_adapters.SglangAdapters(runner.lora_manager, adapters, rank, minimum)
    made.attach_loaded()
    return made.attached


def _require_no_model() -> None:
    if os.environ.get(SOCKET_VARIABLE):
        raise StateError(f"both {SOCKET_VARIABLE} and {sglang_adapters.VARIABLE} are set, expected one: a model is attached, or its adapters")


def create_receiver(context: Any) -> ExternalReceiver:
    """For SGLang's --weight-update-receivers, in releases that have them (after 0.5.23): commits fall into requests
    alone. Leave DWS_RECEIVER_SOCKET unset then.

        POST /init_weights_update_group: "receiver": "dws.sglang.create_receiver",
            "receiver_init_payload": {"socket": "/run/dws/receiver-rollout-0.sock", "options": {...}}
        POST /update_weights_from_distributed: "receiver_payload": {"version": 7, "stream": str(trainer.stream)}

    Args:
      context: a WeightUpdateReceiverContext of SGLang.

    Raises:
      StateError: DWS_RECEIVER_SOCKET has attached the model, or this SGLang lacks something, by name.
      InvalidArgumentError: the payload or an option.
      LayoutError: the server runs in an unsupported way.
    """
    found = _probe()
    found.has(context, "context", "model.config", "tp_rank", "tp_size")
    found.knows(context, "context", "init_payload")
    parallel, setting = _probe_model_parts(found)
    found.require()
    if getattr(context.model, _ATTACHED, None) is not None:
        raise StateError(f"{SOCKET_VARIABLE} has attached this model: unset it, or name no receiver in requests")
    socket, given = socket_of(context.init_payload)
    options = AttachOptions.of(given)
    _refuse(setting, context.model)
    rank = rank_of(setting, _text_config(context.model))
    minimum = minimum_over(parallel.tp_group.cpu_group) if rank.together > 1 else None

    def attach() -> AttachedRank:
        return _attach(socket, context.model, rank, minimum, options, found.compared, commits_on_request=True)

    return ExternalReceiver(context.model, minimum, attach, options.step_timeout)


def _probe_model_parts(found: Probes) -> tuple[Any, Callable[[str], Any]]:
    """Looks for what a model that has loaded is attached by. Returns the ranks, and the values in force of settings."""
    from sglang.srt.runtime_context import get_context, get_parallel

    parallel = get_parallel()
    found.has(parallel, "get_parallel()", "tp_rank", "tp_size", "tp_group.cpu_group")
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater"
    found.module(updater, "_unsupported_derived_weight_cache_error")
    return parallel, get_context().config_leaf


def _text_config(model: Any) -> Any:
    return getattr(model.config, "text_config", None) or model.config


def _attach(
    socket: str,
    model: Any,
    rank: EngineRank,
    minimum: Optional[Minimum],
    options: AttachOptions,
    compared: bool,
    commits_on_request: bool = False,
) -> AttachedRank:
    if options.draft is not None:
        raise InvalidArgumentError(f"the option draft is '{options.draft}', which is for vLLM: leave it out")
    from sglang.srt.runtime_context import get_context

    setting = get_context().config_leaf
    weights = Weights(setting("model_path"), setting("revision"), setting("load_format") != "dummy")
    return attach_together(
        lambda: AttachedRank(
            socket,
            model,
            _text_config(model),
            rank,
            minimum,
            options,
            weights,
            commits_on_request=commits_on_request,
            processing=SglangProcessing(model),
            compared=compared,
        ),
        minimum,
    )


def rank_of(setting: Callable[[str], Any], config: Any) -> EngineRank:
    """This process's rank.

    Args:
      setting: the value in force of a setting, by name.
      config: the model's Hugging Face text config.
    """
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    number, size = int(parallel.tp_rank), int(parallel.tp_size)
    experts_in = int(setting("ep_size") or 1) if experts_of(config) else 1
    in_row = setting("init_expert_location") == "trivial" and not setting("ep_num_redundant_experts")
    replica = int(parallel.dp_rank or 0) if int(setting("dp_size") or 1) > 1 else 0
    part = Parallel(number, size, experts_in, experts_in_row=in_row)
    return EngineRank(replica * size + number, size, part)


def _require_held(runner: Any) -> None:
    """SGLang goes on after a hook that it could not apply: passes would run during a commit."""
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.plugins.hook_registry import HookRegistry

    for target in (_FORWARD, BUILT):
        if target not in HookRegistry._patched:
            raise StateError(f"SGLang {_version()} did not apply the hook around {target}: see its log")
    if type(runner).forward is not ModelRunner.forward:
        raise StateError(
            f"{type(runner).__name__} has a forward of its own, expected {_FORWARD}: passes of this "
            "kind of runner cannot be held"
        )


def _held(forward: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ModelRunner.forward: runs a pass of an attached model inside the gate."""
    attached: Optional[_AttachedModel] = getattr(runner.model, _ATTACHED, None)
    if attached is None or not attached.is_held:
        return forward(runner, *args, **kwargs)
    with attached.rank.gate.step() as grant:
        if attached.teller is not None:
            attached.teller.weights_are(grant.version)
        return forward(runner, *args, **kwargs)


def _refuse(setting: Callable[[str], Any], model: Any, adapters: bool = False) -> None:
    """Args:
    setting: the value in force of a setting, by name; raises ValueError for an unknown name.
    adapters: these alone are attached.
    """
    unsupported: dict[str, tuple[str, Callable[[Any], object]]] = {
        # A stage waits for the stage before it, outside of the held passes, and could not agree
        # with it.
        "pp_size": ("pipeline parallelism", lambda value: value > 1),
        "attn_cp_size": ("context parallelism (attn_cp_size)", lambda value: value > 1),
        "moe_dp_size": ("data-parallel experts (moe_dp_size)", lambda value: value > 1),
        "enable_dp_attention": ("data-parallel attention (enable_dp_attention)", bool),
        "enable_eplb": ("expert load balancing (enable_eplb)", bool),
        "enable_lora": (
            "LoRA (DWS_ADAPTERS attaches adapters by themselves)",
            lambda value: value and not adapters,
        ),
        "speculative_algorithm": (
            "speculation (speculative_algorithm), whose draft model would keep its old weights",
            lambda value: value is not None,
        ),
        "cpu_offload_gb": ("weights offloaded to the host (cpu_offload_gb)", bool),
        "offload_group_size": (
            "weights offloaded to the host (offload_group_size)",
            lambda value: value > 0,
        ),
        "enable_pdmux": ("two streams of passes at a time (enable_pdmux)", bool),
        "weight_cache_mode": (
            "weights that another process owns (weight_cache_mode)",
            lambda value: value != "off",
        ),
        "startup_weight_load_mode": (
            "weights that load after the start (startup_weight_load_mode)",
            lambda value: value != "serial",
        ),
        "enable_memory_saver": (
            "memory that it may give back while attached (enable_memory_saver)",
            bool,
        ),
        # For the CPU SGLang compiles with inductor's freezing: weights become constants.
        "enable_torch_compile": (
            "weights compiled into its code on the CPU (enable_torch_compile)",
            lambda value: value and setting("device") == "cpu",
        ),
    }
    if adapters:
        beside = "adapters that load beside passes (enable_lora_overlap_loading)"
        unsupported["enable_lora_overlap_loading"] = (beside, bool)
    names = []
    for name, (text, is_unsupported) in unsupported.items():
        try:
            value = setting(name)
        except ValueError as error:
            raise StateError(
                f"SGLang {_version()} does not have the setting {name}, which dws.sglang looks at: "
                f"{error}"
            ) from error
        if value is not None and is_unsupported(value):
            names.append(text)
    if names:
        raise LayoutError(f"this server runs with {'; '.join(names)}: not supported, turn it off")
    reason = _derived_weights(model)
    if reason is not None:
        raise LayoutError(f"this model keeps tensors that SGLang derives from weights: {reason}")


def _derived_weights(model: Any) -> Optional[str]:
    """What SGLang itself says against updates of a model's weights."""
    from sglang.srt.model_executor.model_runner_components import weight_updater

    # Which looks at _UNSUPPORTED itself in releases after 0.5.23, and takes no model in 0.5.20.
    found: Optional[str] = call_with(weight_updater._unsupported_derived_weight_cache_error, model)
    for module in model.modules():
        if found is not None:
            break
        said = getattr(module, _UNSUPPORTED, None)
        try:
            found = said() if callable(said) else said
        except Exception as error:  # pylint: disable=broad-except
            found = f"{type(module).__name__}.{_UNSUPPORTED} fails: {type(error).__name__}: {error}"
    return found
