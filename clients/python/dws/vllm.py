"""vLLM workers whose weights a dws-receiver updates in place.

    llm = LLM(model, tensor_parallel_size=2, worker_extension_cls="dws.vllm.WorkerExtension")
    llm.collective_rpc("dws_attach", kwargs={"socket": "/run/dws/receiver-rollout-0.sock"})
    llm.collective_rpc("dws_wait_ready", kwargs={"timeout": 600})

vllm serve takes --worker-extension-cls, and RPCs at POST /collective_rpc (VLLM_SERVER_DEV_MODE=1).

It relies on the following, as in vLLM's sources from 0.14 to 0.19 and 0.32 (V1 engine, both of its
model runners). Attach checks this, and refuses by name where something is missing:
  * worker.model_runner with execute_model, sample_tokens, and get_model() or model: the module that runs;
  * worker.vllm_config with model_config, parallel_config, cache_config;
  * vllm.distributed.parallel_state.get_tp_group(): rank_in_group, world_size, cpu_group (gloo).

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
  * a step that is never sampled: ended by the next execute_model, by sleep or by dws_suspend,
    dws_resume, dws_detach, dws_wait_ready, which vLLM runs between steps. Until one of these is
    called, commits wait, and dws_status reports it (step_open). A sample_tokens after that fails:
    it never runs with the weights of another version.
A step that is not let in within step_timeout fails, on all ranks, and with it vLLM's engine. The KV
cache is not changed; blocks of an older version are reused unless the caller resets it
(LLM.reset_prefix_cache) or prefix caching is off. worker.sleep and wake_up release the weights and
attach them again; a sleep that fails also attaches them again.
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
    "model_runner.sample_tokens",
    "vllm_config.model_config",
    "vllm_config.parallel_config.tensor_parallel_size",
)


class WorkerExtension:
    """For worker_extension_cls: vLLM makes it a base of its worker class. Its methods are called by
    collective_rpc, on every rank; results and arguments fit into JSON.

    Lifecycle: as the worker's. Names begin with dws_, so that none collides with the worker's.
    """

    def dws_attach(self, socket: str, **options: Any) -> dict[str, Any]:
        """Attaches this rank's live parameters. The worker generates only while the lease allows.

        Args:
          socket: the receiver's --socket on this host.
          options: of dws.plugins.attach.AttachOptions.

        Returns:
          as dws_status.

        Raises:
          StateError: already attached, or this vLLM lacks something, by name.
          LayoutError: the engine runs in an unsupported way, or a parameter or layer cannot be
            written in place, by name.
          As Engine.attach.
        """
        if _attached(self) is not None:
            raise StateError("this worker is attached: call dws_detach first")
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
        """Waits until a version is in memory.

        Raises:
          EnginePaused: none in time; the message says why.
        """
        attached = _between_steps(self)
        attached.engine.wait_ready(timeout)
        return attached.status()

    def dws_status(self) -> dict[str, Any]:
        """This rank's version, stream and state token (None while paused), passes and pauses; also
        step_open: whether a step was begun that vLLM has not sampled, so that commits wait."""
        return _require(self).status()

    def dws_suspend(self) -> None:
        """Releases the weights until dws_resume: no pass runs. `sleep` does this itself."""
        _between_steps(self).engine.suspend()

    def dws_resume(self) -> None:
        """After dws_suspend: attaches the weights where they are now. `wake_up` does this."""
        _between_steps(self).engine.refresh()

    def dws_detach(self) -> None:
        """Detaches. Passes fail from now on, because nothing keeps the weights up to date."""
        if _attached(self) is not None:
            _between_steps(self).close()


def _attached(worker: Any) -> Optional[AttachedRank]:
    found: Optional[AttachedRank] = getattr(worker, "_dws_attached", None)
    return found


def _require(worker: Any) -> AttachedRank:
    attached = _attached(worker)
    if attached is None:
        raise StateError("this worker is not attached: call dws_attach first")
    return attached


def _between_steps(worker: Any) -> AttachedRank:
    """For calls that vLLM makes between steps: an open step of this thread is never sampled."""
    attached = _require(worker)
    attached.gate.give_up()
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
        # A module that runs in CUDA graphs has a wrapper; get_model removes it.
        model = (
            runner.get_model() if hasattr(runner, "get_model") else getattr(runner, "model", None)
        )
        if not hasattr(model, "named_parameters"):
            lacking.append("worker.model_runner.get_model()")
    if lacking:
        raise StateError(
            f"vLLM {getattr(vllm, '__version__', 'of unknown version')} does not have "
            f"{', '.join(lacking)}, which dws.vllm needs (written for 0.14 to 0.19 and 0.32): "
            "use one of these, or serve this engine by checkpoints on disk"
        )
    return model, group


def _refuse(config: Any, runner: Any) -> None:
    parallel = config.parallel_config
    cache = getattr(config, "cache_config", None)
    # The V2 model runner calls it "speculator".
    drafters = [getattr(runner, name, None) for name in ("drafter", "speculator")]
    found = {
        "pipeline parallelism": getattr(parallel, "pipeline_parallel_size", 1) > 1,
        "data parallelism (start an engine for each replica)": (
            getattr(parallel, "data_parallel_size", 1) > 1
        ),
        "expert load balancing (enable_eplb)": getattr(parallel, "enable_eplb", False),
        "experts that are not placed in order (expert_placement_strategy)": (
            getattr(parallel, "expert_placement_strategy", "linear") != "linear"
        ),
        "LoRA": getattr(config, "lora_config", None) is not None,
        "speculation with a draft model, which would keep its old weights": (
            any(getattr(drafter, "model", None) is not None for drafter in drafters)
        ),
        "weights offloaded to the host (cpu_offload_gb)": (getattr(cache, "cpu_offload_gb", 0) or 0)
        > 0,
    }
    names = [name for name, is_so in found.items() if is_so]
    if names:
        raise LayoutError(f"this engine runs with {'; '.join(names)}: not supported, turn it off")


def _hold(worker: Any, attached: AttachedRank) -> None:
    """Wraps the steps in the gate, and suspends the engine around sleep and wake_up."""
    runner, gate = worker.model_runner, attached.gate
    gated_once(
        runner, "execute_model", lambda call: gate.opening(call, lambda result: result is None)
    )
    gated_once(runner, "sample_tokens", gate.closing)
    # pool: only the V2 model runner has it. The other one pools in execute_model.
    for name, as_part in (("pool", gate.closing), ("_dummy_run", gate.wrap)):
        if hasattr(runner, name):
            gated_once(runner, name, as_part)
    if not hasattr(worker, "sleep") or not hasattr(worker, "wake_up"):
        return
    sleep, wake_up = worker.sleep, worker.wake_up

    def suspended(*args: Any, **kwargs: Any) -> Any:
        try:
            gate.give_up()
            attached.engine.suspend()
            return sleep(*args, **kwargs)
        except BaseException:
            # wake_up is not called for a worker that is not asleep.
            attached.engine.refresh()
            raise

    def woken(tags: Optional[list[str]] = None) -> Any:
        done = wake_up(tags)
        if tags is None or "weights" in tags:
            attached.engine.refresh()
        return done

    worker.sleep, worker.wake_up = suspended, woken
