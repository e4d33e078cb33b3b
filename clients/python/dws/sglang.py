"""SGLang schedulers whose weights a dws-receiver updates in place.

    python -m sglang.launch_server ... --custom-weight-loader dws.sglang.attach
    POST /update_weights_from_tensor, load_format "dws.sglang.attach", no tensors: once, after the start

SGLang calls a custom weight loader in the scheduler process of every rank, with the model. `attach`
uses that call to attach the model's live parameters, and ignores the tensors. The server's
environment says where to attach: DWS_RECEIVER_SOCKET, and DWS_ATTACH_OPTIONS, a JSON object of
dws.plugins.attach.AttachOptions.

Builds with plugins (sglang.srt.plugins) do not need the request: if a package has an entry point in
that group that calls dws.sglang.register, every rank is attached after its model is loaded and
warmed up.

It relies on the following, as in SGLang's sources of 0.5. Attach checks this, and refuses by name
where something is missing:
  * sglang.srt.model_executor.model_runner.ModelRunner with forward, its instances with `model`;
  * sglang.srt.distributed.get_tp_group(): rank_in_group, world_size, cpu_group (gloo);
  * sglang.srt.server_args.get_global_server_args();
  * model.config, a Hugging Face config.

How execution is held: ModelRunner.forward is wrapped, for the class. A runner whose model is
attached enters it when all ranks are inside the lease with the same weights
(dws.plugins.step_gate), and blocks until then. CUDA graphs are replayed below it. With the overlap
schedule, the receiver writes only after work that is in progress on the device is done. A pass that
is not let in within step_timeout fails. The radix cache is not changed: flush it (POST
/flush_cache) or turn it off. Do not release memory while attached (/release_memory_occupation): the
next pause would find the weights gone, and would not end.
"""

from __future__ import annotations

import json
import os
from typing import Any, Iterable, Optional

from dws.errors import LayoutError, StateError
from dws.plugins.agreement import minimum_over
from dws.plugins.attach import AttachedRank, AttachOptions, attach_together, missing
from dws.plugins.canonical import ModelShape, Parallel

SOCKET_VARIABLE = "DWS_RECEIVER_SOCKET"
OPTIONS_VARIABLE = "DWS_ATTACH_OPTIONS"
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"


def attach(model: Any, named_tensors: Iterable[Any] = ()) -> AttachedRank:
    """A custom weight loader. Attaches once; further calls change nothing.

    Args:
      model: the model that SGLang runs on this rank.
      named_tensors: ignored.

    Raises:
      StateError: no socket in the environment, or this SGLang lacks something, by name.
      LayoutError: the server runs in an unsupported way, or a parameter or layer cannot be
        written in place, by name.
      As Engine.attach.
    """
    known: Optional[AttachedRank] = getattr(model, "_dws_attached", None)
    if known is not None:
        return known
    socket = os.environ.get(SOCKET_VARIABLE, "")
    if not socket:
        raise StateError(f"{SOCKET_VARIABLE} is not set: the --socket of this host's dws-receiver")
    options = AttachOptions.of(json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}"))
    runner_class, group, arguments = _probe(model)
    _refuse(arguments)
    config = getattr(model.config, "text_config", None) or model.config
    shape = ModelShape.from_config(config)
    size = int(group.world_size)
    experts_in = int(getattr(arguments, "ep_size", 1) or 1) if shape.experts else 1
    rank = Parallel(int(group.rank_in_group), size, experts_in)
    minimum = minimum_over(group.cpu_group) if size > 1 else None
    attached = attach_together(
        lambda: AttachedRank(socket, model, shape, rank, minimum, options), minimum
    )
    # Not a submodule, and not in the module's own tables, so that no code of the model sees it.
    object.__setattr__(model, "_dws_attached", attached)
    _hold(runner_class)
    return attached


def register() -> None:
    """For an entry point in the group sglang.srt.plugins: attaches each rank after it is
    initialised, if DWS_RECEIVER_SOCKET is set.

    Raises:
      StateError: this SGLang has no plugins.
    """
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError as error:
        raise StateError(
            f"{_version()} has no plugins (sglang.srt.plugins): start it with "
            "--custom-weight-loader dws.sglang.attach"
        ) from error
    HookRegistry.register(f"{_RUNNER}.initialize", _initialised, HookType.AFTER)


def _initialised(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if os.environ.get(SOCKET_VARIABLE) and not getattr(runner, "is_draft_worker", False):
        attach(runner.model)


def _version() -> str:
    import sglang

    return f"SGLang {getattr(sglang, '__version__', 'of unknown version')}"


def _probe(model: Any) -> tuple[Any, Any, Any]:
    """ModelRunner, the tensor-parallel group, and the server's arguments."""
    lacking = missing(model, "model", ("config",))
    runner_class = group = arguments = None
    try:
        from sglang.srt.model_executor.model_runner import ModelRunner

        runner_class = ModelRunner
    except ImportError:
        lacking.append(_RUNNER)
    try:
        from sglang.srt.distributed import get_tp_group

        group = get_tp_group()
    except (ImportError, AttributeError):
        lacking.append("sglang.srt.distributed.get_tp_group")
    try:
        from sglang.srt.server_args import get_global_server_args

        arguments = get_global_server_args()
    except (ImportError, AttributeError):
        lacking.append("sglang.srt.server_args.get_global_server_args")
    if runner_class is not None:
        lacking += missing(runner_class, "ModelRunner", ("forward",))
    if group is not None:
        lacking += missing(group, "get_tp_group()", ("rank_in_group", "world_size", "cpu_group"))
    if lacking:
        raise StateError(
            f"{_version()} does not have {', '.join(lacking)}, which dws.sglang needs (written for "
            "0.5): use that version, or serve this engine by checkpoints on disk"
        )
    return runner_class, group, arguments


def _refuse(arguments: Any) -> None:
    found = {
        "pipeline parallelism": getattr(arguments, "pp_size", 1) > 1,
        "data parallelism (start a server for each replica)": getattr(arguments, "dp_size", 1) > 1,
        "data-parallel attention (enable_dp_attention)": (
            getattr(arguments, "enable_dp_attention", False)
        ),
        "expert load balancing (enable_eplb)": getattr(arguments, "enable_eplb", False),
        "redundant experts": (getattr(arguments, "ep_num_redundant_experts", 0) or 0) > 0,
        "LoRA": bool(getattr(arguments, "enable_lora", False)),
        "speculation, whose draft model would keep its old weights": (
            getattr(arguments, "speculative_algorithm", None) is not None
        ),
        "weights offloaded to the host": (getattr(arguments, "cpu_offload_gb", 0) or 0) > 0,
        "torchao": bool(getattr(arguments, "torchao_config", "")),
    }
    names = [name for name, is_so in found.items() if is_so]
    if names:
        raise LayoutError(f"this server runs with {'; '.join(names)}: not supported, turn it off")


def _hold(runner_class: Any) -> None:
    """Runs forward passes of attached models inside the gate. Once for the class."""
    forward = runner_class.forward
    if getattr(forward, "dws_gated", False):
        return

    def gated(runner: Any, *args: Any, **kwargs: Any) -> Any:
        attached: Optional[AttachedRank] = getattr(runner.model, "_dws_attached", None)
        if attached is None:
            return forward(runner, *args, **kwargs)
        with attached.gate.step():
            return forward(runner, *args, **kwargs)

    gated.dws_gated = True  # type: ignore[attr-defined]
    runner_class.forward = gated
