"""vLLM workers that a dws-receiver patches in place.

    llm = LLM(model, tensor_parallel_size=2, worker_extension_cls="dws.vllm.WorkerExtension")
    llm.collective_rpc("dws_attach", kwargs={"socket": "/run/dws/receiver-rollout-0.sock"})
    llm.collective_rpc("dws_wait_ready", kwargs={"timeout": 600})

vllm serve takes --worker-extension-cls, and RPCs at POST /collective_rpc (VLLM_SERVER_DEV_MODE=1).

What it relies on, after vLLM's sources from 0.14 to 0.19 (V1 workers); looked for on attach, and refused by
name where it is missing:
  * worker.model_runner with execute_model, and get_model() or model: the module that runs;
  * worker.vllm_config with model_config, parallel_config, cache_config;
  * vllm.distributed.parallel_state.get_tp_group(): rank_in_group, world_size, cpu_group (gloo).

How execution is held: model_runner.execute_model is wrapped, on the instance, below the worker's own: Ray's
executor calls it there. A pass begins when all ranks are inside of the lease with the same weights
(dws.plugins.step_gate) and blocks before. sample_tokens, which reads no weights of the model, is not held;
work that a pass has left on the device is waited for before the receiver writes. A pass that is not let in
for step_timeout fails, on all ranks, and with it vLLM's engine. The KV cache is not touched: blocks of an
older version are reused unless the caller resets it (LLM.reset_prefix_cache) or prefix caching is off.
worker.sleep and wake_up let go of the weights and attach them again; so does a sleep that fails.
"""

from __future__ import annotations

import contextlib
from typing import Any, Optional

from dws.errors import LayoutError, StateError
from dws.plugins.agreement import minimum_over
from dws.plugins.attach import AttachedRank, AttachOptions, attach_together, gated_once, missing
from dws.plugins.canonical import ModelShape, Parallel

_NEEDED = (
    "model_runner.execute_model",
    "vllm_config.model_config",
    "vllm_config.parallel_config.tensor_parallel_size",
)


class WorkerExtension:
    """For worker_extension_cls: vLLM makes it a base of its worker class. Methods are called by
    collective_rpc, on every rank; results and arguments fit into JSON.

    Lifecycle: of the worker. Its names begin with dws_, so that none is one of the worker's.
    """

    def dws_attach(self, socket: str, **options: Any) -> dict[str, Any]:
        """Attaches this rank's live parameters. The worker generates only as the lease lets it.

        Args:
          socket: the receiver's --socket on this host.
          options: of dws.plugins.attach.AttachOptions.

        Returns:
          as dws_status.

        Raises:
          StateError: attached before, or this vLLM lacks something, by name.
          LayoutError: a way to run that is not supported, or a parameter or layer that cannot be
            written in place, by name.
          As Engine.attach.
        """
        if _attached(self) is not None:
            raise StateError("this worker is attached: dws_detach first")
        model, group = _probe(self)
        config = self.vllm_config  # type: ignore[attr-defined]
        _refuse(config, self.model_runner)  # type: ignore[attr-defined]
        text = config.model_config
        shape = ModelShape.from_config(getattr(text, "hf_text_config", None) or text.hf_config)
        parallel = config.parallel_config
        in_groups = getattr(parallel, "enable_expert_parallel", False) and shape.experts
        size = int(group.world_size)
        rank = Parallel(int(group.rank_in_group), size, size if in_groups else 1)
        minimum = minimum_over(group.cpu_group) if size > 1 else None
        chosen = AttachOptions.of(options)
        attached = attach_together(
            lambda: AttachedRank(socket, model, shape, rank, minimum, chosen), minimum
        )
        self._dws_attached = attached
        _hold(self, attached)
        return attached.status()

    def dws_wait_ready(self, timeout: float) -> dict[str, Any]:
        """Waits for a version in memory.

        Raises:
          EnginePaused: none in time; it says why.
        """
        attached = _require(self)
        attached.engine.wait_ready(timeout)
        return attached.status()

    def dws_status(self) -> dict[str, Any]:
        """This rank's version, stream and state token (None while paused), passes and pauses."""
        return _require(self).status()

    def dws_suspend(self) -> None:
        """Lets go of the weights until dws_resume: no pass runs. `sleep` does it by itself."""
        _require(self).engine.suspend()

    def dws_resume(self) -> None:
        """After dws_suspend: attaches the weights where they lie now. `wake_up` does it by itself."""
        _require(self).engine.refresh()

    def dws_detach(self) -> None:
        """Ends it. Passes fail from now on: weights that nobody keeps are not generated with."""
        attached = _attached(self)
        if attached is not None:
            attached.close()


def _attached(worker: Any) -> Optional[AttachedRank]:
    found: Optional[AttachedRank] = getattr(worker, "_dws_attached", None)
    return found


def _require(worker: Any) -> AttachedRank:
    attached = _attached(worker)
    if attached is None:
        raise StateError("this worker is not attached: dws_attach first")
    return attached


def _probe(worker: Any) -> tuple[Any, Any]:
    """The model that runs, and the tensor-parallel group."""
    import vllm

    lacking = missing(worker, "worker", _NEEDED)
    group = None
    with contextlib.suppress(ImportError, AttributeError):
        from vllm.distributed.parallel_state import get_tp_group

        group = get_tp_group()
    lacking += missing(group, "get_tp_group()", ("rank_in_group", "world_size"))
    if group is not None and int(getattr(group, "world_size", 1)) > 1:
        lacking += missing(group, "get_tp_group()", ("cpu_group",))
    model = None
    if not lacking:
        runner = worker.model_runner
        # A module that runs in CUDA graphs is wrapped; get_model takes the wrapper off.
        model = (
            runner.get_model() if hasattr(runner, "get_model") else getattr(runner, "model", None)
        )
        if not hasattr(model, "named_parameters"):
            lacking.append("worker.model_runner.get_model()")
    if lacking:
        raise StateError(
            f"vLLM {getattr(vllm, '__version__', 'of unknown version')} does not have "
            f"{', '.join(lacking)}, which dws.vllm needs (written after 0.14 to 0.19, V1 workers): "
            "use one of these, or serve this engine by checkpoints on disk"
        )
    return model, group


def _refuse(config: Any, runner: Any) -> None:
    parallel = config.parallel_config
    cache = getattr(config, "cache_config", None)
    drafter = getattr(runner, "drafter", None)
    found = {
        "pipeline parallelism": getattr(parallel, "pipeline_parallel_size", 1) > 1,
        "data parallelism (start an engine for each replica)": (
            getattr(parallel, "data_parallel_size", 1) > 1
        ),
        "expert load balancing (enable_eplb)": getattr(parallel, "enable_eplb", False),
        "experts placed otherwise than in a row (expert_placement_strategy)": (
            getattr(parallel, "expert_placement_strategy", "linear") != "linear"
        ),
        "LoRA": getattr(config, "lora_config", None) is not None,
        "speculation with a draft model, which would keep its weights": (
            getattr(drafter, "model", None) is not None
        ),
        "weights offloaded to the host (cpu_offload_gb)": (getattr(cache, "cpu_offload_gb", 0) or 0)
        > 0,
    }
    names = [name for name, is_so in found.items() if is_so]
    if names:
        raise LayoutError(f"this engine runs with {'; '.join(names)}: not supported, turn it off")


def _hold(worker: Any, attached: AttachedRank) -> None:
    """Passes into the gate; sleep and wake_up around it."""
    gated_once(worker.model_runner, "execute_model", attached.gate.wrap)
    if not hasattr(worker, "sleep") or not hasattr(worker, "wake_up"):
        return
    sleep, wake_up = worker.sleep, worker.wake_up

    def suspended(*args: Any, **kwargs: Any) -> Any:
        try:
            attached.engine.suspend()
            return sleep(*args, **kwargs)
        except BaseException:
            # Nobody calls wake_up on a worker that does not sleep.
            attached.engine.refresh()
            raise

    def woken(tags: Optional[list[str]] = None) -> Any:
        done = wake_up(tags)
        if tags is None or "weights" in tags:
            attached.engine.refresh()
        return done

    worker.sleep, worker.wake_up = suspended, woken
