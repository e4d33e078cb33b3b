"""The properties of a worker of vLLM: its ranks, its model, and unsupported settings."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, Optional

from dws.errors import InvalidArgumentError, LayoutError
from dws.plugins.agreed_mapping import Weights
from dws.plugins.attach import AttachOptions, EngineRank
from dws.plugins.canonical import Parallel, experts_of
from dws.plugins.draft import FIXED, FOLLOW, Draft
from dws.plugins.probes import Probes

# Releases that tools/real.sh has run.
COMPARED = ("0.32.0",)
RAN = ("0.32.0", "0.31.0", "0.30.0", "0.29.0")
# Releases that must not be attached, with what is wrong.
BAD: dict[str, str] = {}
# vLLM shows only warnings of loggers that are not its own.
LOG = logging.getLogger("vllm.dws")
# Speculation without a model.
_WITHOUT_DRAFT_MODEL = ("ngram", "ngram_gpu", "suffix")
# Speculation with a model that load_weights of its own loads, and of which nothing else is kept.
_WITH_DRAFT_MODEL = ("eagle", "eagle3", "mtp", "draft_model")
# What decides whether an engine can be attached: if a release names it otherwise, nothing can be told from it.
_SETTINGS = (
    "lora_config",
    "speculative_config",
    "parallel_config.data_parallel_index",
    "parallel_config.distributed_executor_backend",
)
_SETTINGS_SET = (
    "cache_config",
    "compilation_config.inductor_compile_config",
    "device_config.device_type",
    "model_config.enable_sleep_mode",
    "model_config.hf_text_config",
    "offload_config.prefetch.offload_group_size",
    "offload_config.uva.cpu_offload_gb",
    "parallel_config.data_parallel_size",
    "parallel_config.enable_eplb",
    "parallel_config.enable_expert_parallel",
    "parallel_config.expert_placement_strategy",
    "parallel_config.pipeline_parallel_size",
    "parallel_config.prefill_context_parallel_size",
    "parallel_config.tensor_parallel_size",
)


class Groups(NamedTuple):
    """The groups of this process. `world`: all ranks that vLLM's collectives connect."""

    tensor: Any
    world: Any


def probes() -> Probes:
    """For this process's vLLM."""
    import vllm

    return Probes("vLLM", str(getattr(vllm, "__version__", "of unknown version")), RAN, COMPARED, BAD, LOG)


def probe_config(found: Probes, config: Any) -> Groups:
    """Looks for the settings that rank_of and refuse_unsupported read, and the groups of ranks.

    Args:
      config: a VllmConfig.
    """
    found.has(config, "vllm_config", "model_config", "parallel_config", *_SETTINGS_SET)
    found.knows(config, "vllm_config", *_SETTINGS)
    found.module("vllm.distributed.parallel_state", "get_tp_group", "get_world_group")
    groups = Groups(None, None)
    try:
        from vllm.distributed.parallel_state import get_tp_group, get_world_group

        groups = Groups(get_tp_group(), get_world_group())
    except (ImportError, AttributeError):
        return groups  # looked for above
    found.has(groups.tensor, "get_tp_group()", "rank_in_group", "world_size")
    found.has(groups.world, "get_world_group()", "rank_in_group", "world_size")
    if int(getattr(groups.world, "world_size", 1)) > 1:
        found.has(groups.world, "get_world_group()", "cpu_group")
    return groups


def text_config(config: Any) -> Any:
    """The Hugging Face text config of the model.

    Args:
      config: a VllmConfig.
    """
    return config.model_config.hf_text_config


def weights_of(config: Any) -> Optional[Weights]:
    """What the engine has loaded."""
    path = getattr(config.model_config, "model", None)
    return None if not path else _weights(config, config.model_config)


def _weights(config: Any, model: Any) -> Weights:
    """Args:
    model: a ModelConfig.
    """
    loaded = getattr(getattr(config, "load_config", None), "load_format", None) != "dummy"
    return Weights(model.model, getattr(model, "revision", None), loaded)


def probe_draft(found: Probes, config: Any, runner: Any, options: AttachOptions) -> Optional[Draft]:
    """Looks for the draft model that is to follow its target; None: there is none, or it stays fixed.

    Args:
      config: a VllmConfig.
      runner: the model runner.

    Raises:
      LayoutError: there is one, and the options do not say what becomes of it, or it cannot follow.
      InvalidArgumentError: the options speak of one, and there is none.
    """
    speculation = getattr(config, "speculative_config", None)
    method = getattr(speculation, "method", None)
    if speculation is None or method in _WITHOUT_DRAFT_MODEL:
        if options.draft is not None:
            raise InvalidArgumentError(f"the option draft is '{options.draft}', and this engine has no draft model: leave it out")
        return None
    if options.draft is None:
        raise LayoutError(
            f"this engine speculates with a draft model (method {method}), and the attach does not say what becomes of it: "
            f"pass draft='{FOLLOW}' if the trainer publishes its weights too (draft_prefix= if they have a checkpoint of "
            f"their own), or draft='{FIXED}' if it keeps the ones that it has: outputs stay the target's, and fewer drafts "
            "are accepted as the target changes"
        )
    if options.draft == FIXED:
        return None
    cannot = {
        f"the method {method}, expected one of {', '.join(_WITH_DRAFT_MODEL)}": method not in _WITH_DRAFT_MODEL,
        # It keeps what it has computed of weights.
        "parallel_drafting": bool(getattr(speculation, "parallel_drafting", False)),
        # Ranks of other stages have no draft.
        "pipeline parallelism": is_pipelined(config),
    }
    if any(cannot.values()):
        named = "; ".join(name for name, is_so in cannot.items() if is_so)
        raise LayoutError(f"this engine's draft model cannot follow its target: {named}. Turn it off, or pass draft='{FIXED}'")
    found.has(speculation, "speculative_config", "draft_model_config.model")
    found.has(runner, "model_runner", "get_draft_model")
    model = runner.get_draft_model() if hasattr(runner, "get_draft_model") else None
    found.has(model, "model_runner.get_draft_model()", "named_parameters", "load_weights")
    found.require()
    loaded = speculation.draft_model_config
    return Draft(model, _weights(config, loaded), loaded.model != config.model_config.model, options.draft_prefix)


def rank_of(config: Any, groups: Groups) -> EngineRank:
    """Args:
    groups: as probe_config returns them.
    """
    parallel = config.parallel_config
    size = int(groups.tensor.world_size)
    whole_experts = parallel.enable_expert_parallel and experts_of(text_config(config))
    # Experts are spread over the ranks of all replicas.
    replicas = int(parallel.data_parallel_size)
    linear = parallel.expert_placement_strategy == "linear"
    part = Parallel(
        int(groups.tensor.rank_in_group),
        size,
        size if whole_experts else 1,
        experts_in_row=replicas == 1 and (linear or not whole_experts),
    )
    # Replicas of a model without experts have no collectives in common, and do not know their
    # number.
    replica = int(parallel.data_parallel_index or 0) if replicas == 1 else 0
    together = int(groups.world.world_size)
    return EngineRank(replica * together + int(groups.world.rank_in_group), together, part)


def is_pipelined(config: Any) -> bool:
    return int(config.parallel_config.pipeline_parallel_size) > 1


def replies_last(config: Any) -> bool:
    """Returns whether the executor reads this worker's reply to an RPC after those of all
    others."""
    parallel = config.parallel_config
    return bool(getattr(parallel, "rank", 0) == getattr(parallel, "world_size", 1) - 1)


def refuse_unsupported(config: Any, adapters: bool = False) -> None:
    """Args:
      adapters: for adapters of LoRA, and not for the model.

    Raises:
      LayoutError: the engine runs in an unsupported way, by name.
    """
    if adapters and config.lora_config is None:
        raise LayoutError("this engine runs without LoRA: start it with --enable-lora")
    parallel, offload, inductor = config.parallel_config, config.offload_config, config.compilation_config.inductor_compile_config
    found = {
        # It calls a stage when the one before has run, and could not agree with it before.
        "pipeline parallelism by Ray": (
            is_pipelined(config) and "ray" in str(parallel.distributed_executor_backend)
        ),
        "context parallelism of prefills (prefill_context_parallel_size)": (
            parallel.prefill_context_parallel_size > 1
        ),
        "expert load balancing (enable_eplb)": parallel.enable_eplb,
        "LoRA (dws_attach_adapter attaches adapters by themselves)": config.lora_config is not None and not adapters,
        "sleep mode (enable_sleep_mode), which adapters are not restored from": (
            adapters and config.model_config.enable_sleep_mode
        ),
        "weights offloaded to the host (cpu_offload_gb)": offload.uva.cpu_offload_gb > 0,
        "weights offloaded to the host (offload_group_size)": offload.prefetch.offload_group_size > 0,
        # For the CPU, vLLM freezes weights if max_autotune is set.
        "weights compiled into its code (inductor_compile_config: freezing, or max_autotune on the CPU)": (
            bool(inductor.get("freezing"))
            or (config.device_config.device_type == "cpu" and bool(inductor.get("max_autotune")))
        ),
    }
    names = [name for name, is_so in found.items() if is_so]
    if names:
        raise LayoutError(f"this engine runs with {'; '.join(names)}: not supported, turn it off")
