"""vLLM is told the version that each step was computed with, if dws.vllm.WorkerExtension, or a class made of it, updates its
weights.

Workers and vLLM's EngineCore are processes of their own. A worker marks the output of each step with the version; in
the process of the EngineCore the mark becomes vLLM's own weight version before vLLM reads the output. So /weight_info
has it, and since vLLM 0.33 the results of requests (weight_versions). While nothing is computed, workers are asked. A class
made of WorkerExtension is known by the first mark, because importing it here could do what is meant for workers.
The first request that is served blocks of older weights by the prefix cache gives a warning.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from typing import Any, Callable, Optional

from dws.lease import Grant

_CORE = "vllm.v1.engine.core"
_MARK = "_dws_version"  # attribute of a step's output: a version, as text
_FOLLOWS = "_dws_follows"  # attribute of an EngineCore class or instance: it was changed
_EXTENSION = "dws.vllm.WorkerExtension"
# What an output raises that takes no attribute: its step goes on without a version.
_UNMARKED = (AttributeError, TypeError)
_LOG = logging.getLogger("vllm.dws")  # vLLM shows only warnings of loggers that are not its own


def marking(call: Callable[..., Any], held: Callable[[], Optional[Grant]]) -> Callable[..., Any]:
    """`call`, one of those of a step, whose output is marked.

    Args:
      held: the grant of the step, inside it.
    """

    def marked(*args: Any, **kwargs: Any) -> Any:
        output, grant = call(*args, **kwargs), held()
        if output is None or grant is None:
            return output
        if not hasattr(output, "get_output"):
            return _mark(output, grant.version)
        # Asynchronous scheduling: the output is made later, of what the step has left on the device.
        get_output = output.get_output
        with contextlib.suppress(*_UNMARKED):
            output.get_output = lambda: _mark(get_output(), grant.version)
        return output

    return marked


def _mark(output: Any, version: int) -> Any:
    if getattr(output, "req_ids", None):  # the output of an empty step is one object for all
        with contextlib.suppress(*_UNMARKED):
            setattr(output, _MARK, str(version))
    return output


def follow() -> None:
    """In the process of the EngineCore: changes its class. Does nothing elsewhere, in a vLLM that knows no weight
    versions, and the second time."""
    core = getattr(sys.modules.get(_CORE), "EngineCore", None)
    if core is None or not hasattr(core, "get_weight_version") or hasattr(core, _FOLLOWS):
        return
    setattr(core, _FOLLOWS, True)
    # vLLM takes one of them when it has loaded its plugins.
    for name in ("step", "step_with_batch_queue"):
        setattr(core, name, _following(getattr(core, name)))
    core.get_weight_version = _asking(core.get_weight_version)


def _following(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def stepped(core: Any, *args: Any, **kwargs: Any) -> Any:
        if _FOLLOWS not in vars(core):
            setattr(core, _FOLLOWS, None)
            # Every vLLM calls this, also one that uses nothing of DWS.
            if core.vllm_config.parallel_config.worker_extension_cls:
                try:
                    setattr(core, _FOLLOWS, _Follower(core))
                except Exception as error:  # pylint: disable=broad-except
                    _LOG.warning("dws: this vLLM is not told the versions of WorkerExtension: %r", error)
        return step(core, *args, **kwargs)

    return stepped


class _Follower:
    """Between the steps of one EngineCore and its scheduler. Lifecycle and threads: the EngineCore's."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._update = core.scheduler.update_from_output
        self._reset = core.scheduler.reset_prefix_cache
        self.version: Optional[str] = None  # of the last step; None: no step had a mark yet
        self._is_old = False  # blocks of an older version may be in the prefix cache
        self._has_warned = False
        core.scheduler.update_from_output = self._updated
        core.scheduler.reset_prefix_cache = self._was_reset

    def _was_reset(self, *args: Any, **kwargs: Any) -> Any:
        done = self._reset(*args, **kwargs)
        self._is_old = self._is_old and not done
        return done

    def _updated(self, scheduled: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        version = getattr(output, _MARK, None)
        if version is not None:
            self._is_old = self._is_old or self.version not in (None, version)
            self.version = self._core._weight_version = version
            if self._is_old and not self._has_warned:
                self._look(scheduled)
        return self._update(scheduled, output, *args, **kwargs)

    def _look(self, scheduled: Any) -> None:
        for new in getattr(scheduled, "scheduled_new_reqs", ()):
            request = self._core.scheduler.requests.get(new.req_id)
            if new.num_computed_tokens and not getattr(request, "cache_salt", None):
                self._has_warned = True
                _LOG.warning(
                    "dws: request %s of version %s begins with %d tokens that the prefix cache has, some maybe of older "
                    "weights. Give requests the version as cache_salt, reset the cache after a version "
                    "(reset_prefix_cache), or turn it off (--no-enable-prefix-caching); this warning comes once",
                    new.req_id,
                    self.version,
                    new.num_computed_tokens,
                )
                return


def _asking(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(get)
    def asked(core: Any) -> Any:
        marked = getattr(vars(core).get(_FOLLOWS), "version", None) is not None
        if marked or core.vllm_config.parallel_config.worker_extension_cls == _EXTENSION:
            versions = core.model_executor.collective_rpc("dws_version")
            if None not in versions:
                return str(min(versions))
        return get(core)

    return asked
