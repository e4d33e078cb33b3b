"""The properties of a worker of vLLM: its ranks, its model, and unsupported settings."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, NamedTuple, Optional

from dws.errors import LayoutError, StateError
from dws.plugins.agreed_mapping import Weights
from dws.plugins.attach import AttachOptions, EngineRank, missing
from dws.plugins.canonical import Parallel, experts_of
from dws.plugins.versions import require_tried

TRIED_VERSIONS = ("0.32.0",)
# vLLM shows only warnings of loggers that are not its own.
LOG = logging.getLogger("vllm.dws")
# Speculation without a model.
_WITHOUT_DRAFT_MODEL = ("ngram", "ngram_gpu", "suffix")


class Groups(NamedTuple):
    """The groups of this process. `world`: all ranks that vLLM's collectives connect."""

    tensor: Any
    world: Any


def require_parts(
    owner: Any, name: str, attributes: tuple[str, ...], options: AttachOptions
) -> Groups:
    """Args:
      owner: has to have `attributes` (dotted); messages call it `name`.

    Raises:
      StateError: this vLLM was never run with the plugin, or lacks something, by name.
    """
    import vllm

    version = str(getattr(vllm, "__version__", "of unknown version"))
    require_tried("vLLM", version, TRIED_VERSIONS, options.untried_version)
    lacking = missing(owner, name, attributes)
    groups = Groups(None, None)
    with contextlib.suppress(ImportError, AttributeError):
        from vllm.distributed.parallel_state import get_tp_group, get_world_group

        groups = Groups(get_tp_group(), get_world_group())
    lacking += missing(groups.tensor, "get_tp_group()", ("rank_in_group", "world_size"))
    lacking += missing(groups.world, "get_world_group()", ("rank_in_group", "world_size"))
    if int(getattr(groups.world, "world_size", 1)) > 1:
        lacking += missing(groups.world, "get_world_group()", ("cpu_group",))
    if lacking:
        raise StateError(
            f"vLLM {version} does not have {', '.join(lacking)}, which dws needs: use "
            f"{', '.join(TRIED_VERSIONS)}, or serve this engine by checkpoints on disk"
        )
    return groups


def text_config(config: Any) -> Any:
    """The Hugging Face text config of the model.

    Args:
      config: a VllmConfig.
    """
    return getattr(config.model_config, "hf_text_config", None) or config.model_config.hf_config


def weights_of(config: Any) -> Optional[Weights]:
    """What the engine has loaded."""
    path = getattr(config.model_config, "model", None)
    return Weights(path, getattr(config.model_config, "revision", None)) if path else None


def rank_of(config: Any, groups: Groups) -> EngineRank:
    """Args:
    groups: as require_parts returns them.
    """
    parallel = config.parallel_config
    in_groups = getattr(parallel, "enable_expert_parallel", False)
    size = int(groups.tensor.world_size)
    whole_experts = in_groups and experts_of(text_config(config))
    # Experts are spread over the ranks of all replicas.
    replicas = int(getattr(parallel, "data_parallel_size", 1))
    linear = getattr(parallel, "expert_placement_strategy", "linear") == "linear"
    part = Parallel(
        int(groups.tensor.rank_in_group),
        size,
        size if whole_experts else 1,
        experts_in_row=replicas == 1 and (linear or not whole_experts),
    )
    # Replicas of a model without experts have no collectives in common, and do not know their
    # number.
    replica = int(getattr(parallel, "data_parallel_index", 0)) if replicas == 1 else 0
    together = int(groups.world.world_size)
    return EngineRank(replica * together + int(groups.world.rank_in_group), together, part)


def is_pipelined(config: Any) -> bool:
    return int(getattr(config.parallel_config, "pipeline_parallel_size", 1)) > 1


def replies_last(config: Any) -> bool:
    """Returns whether the executor reads this worker's reply to an RPC after those of all
    others."""
    parallel = config.parallel_config
    return bool(getattr(parallel, "rank", 0) == getattr(parallel, "world_size", 1) - 1)


def refuse_unsupported(config: Any) -> None:
    """Raises:
    LayoutError: the engine runs in an unsupported way, by name.
    """
    parallel = config.parallel_config
    offload = getattr(config, "offload_config", None)
    uva, prefetch = getattr(offload, "uva", None), getattr(offload, "prefetch", None)
    speculation = getattr(config, "speculative_config", None)
    compilation = getattr(config, "compilation_config", None)
    inductor = getattr(compilation, "inductor_compile_config", None) or {}
    device = getattr(getattr(config, "device_config", None), "device_type", None)
    found = {
        # It calls a stage when the one before has run, and could not agree with it before.
        "pipeline parallelism by Ray": (
            is_pipelined(config) and "ray" in str(getattr(parallel, "distributed_executor_backend", ""))
        ),
        "context parallelism of prefills (prefill_context_parallel_size)": (
            getattr(parallel, "prefill_context_parallel_size", 1) > 1
        ),
        "expert load balancing (enable_eplb)": getattr(parallel, "enable_eplb", False),
        "LoRA": getattr(config, "lora_config", None) is not None,
        "speculation with a draft model, which would keep its old weights": (
            speculation is not None
            and getattr(speculation, "method", None) not in _WITHOUT_DRAFT_MODEL
        ),
        "weights offloaded to the host (cpu_offload_gb)": getattr(uva, "cpu_offload_gb", 0) > 0,
        "weights offloaded to the host (offload_group_size)": (
            getattr(prefetch, "offload_group_size", 0) > 0
        ),
        # For the CPU, vLLM freezes weights if max_autotune is set.
        "weights compiled into its code (inductor_compile_config: freezing, or max_autotune on the CPU)": (
            bool(inductor.get("freezing"))
            or (device == "cpu" and bool(inductor.get("max_autotune")))
        ),
    }
    names = [name for name, is_so in found.items() if is_so]
    if names:
        raise LayoutError(f"this engine runs with {'; '.join(names)}: not supported, turn it off")
