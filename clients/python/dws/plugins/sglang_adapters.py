"""Adapters of LoRA in a scheduler of SGLang: how its own code loads one from a Shadow, in the place of the checkpoint.

SGLang keeps an adapter twice: as it has read it, on the host (LoRAManager.loras; q, k and v, and gate and up stacked), and in a slot of
LoRAMemoryPool's buffers, cast and cut by rank. Slots are given and taken between passes, as requests need them. So
    * a commit, inside its pause, puts what SGLang makes of the shadow in the place of the one on the host; if the adapter has a
      slot, SGLang loads that, and what is in the slot is compared with what was loaded. No other slot is written;
    * SGLang fills slots on the scheduler's thread, outside of the passes that the gate holds. So fetch_new_loras and
      commits take the same lock: a slot always has the version that is on the host.

An adapter is identified by its name, as in requests. It is attached when SGLang has loaded it, at the start or later, and detached when
SGLang unloads it. Before it is attached, its folder has to make, by the same way, exactly what SGLang has loaded.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import re
import threading
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional

from dws.adapters.attached import AttachedAdapter, AttachedAdapters
from dws.adapters.options import AdapterOptions
from dws.adapters.shadow import Shadow
from dws.engine import Engine
from dws.errors import InvalidArgumentError, LayoutError, StateError
from dws.plugins.attach import EngineRank, attach_together
from dws.plugins.probes import Probes
from dws.plugins.step_gate import Minimum
from dws.plugins.tensor_memory import same_bits, synchronize, working_on

VARIABLE = "DWS_ADAPTERS"
# Releases whose adapters tools/real.sh has compared with those of fresh engines.
COMPARED = ("0.5.23",)
_LOG = logging.getLogger(__name__)
_UTILS = "sglang.srt.lora.utils"
_LAYER = re.compile(r"\.layers\.\d+\.")


@dataclasses.dataclass(frozen=True)
class SglangAdapterOptions(AdapterOptions):
    """Attributes:
    socket: the --socket of the adapter's receiver on this host.
    """

    socket: str = ""


def adapters_of(text: str) -> dict[str, SglangAdapterOptions]:
    """Args:
      text: the value of DWS_ADAPTERS.

    Returns:
      by SGLang's name of the adapter.

    Raises:
      InvalidArgumentError: it is not as expected, or has an unknown option, by name.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{VARIABLE} is no JSON: {error}") from error
    if not isinstance(found, dict) or not found or not all(isinstance(one, dict) and one.get("socket") for one in found.values()):
        raise InvalidArgumentError(f'{VARIABLE} is {text}, expected {{"NAME": {{"socket": "/run/dws/receiver-NAME.sock"}}, ...}}')
    return {name: SglangAdapterOptions.of(one) for name, one in found.items()}


def probe(found: Probes, runner: Any) -> None:
    """Looks for what this relies on.

    Args:
      runner: scheduler.tp_worker.model_runner.
    """
    found.has(runner, "model_runner", "lora_manager.memory_pool")
    manager = getattr(runner, "lora_manager", None)
    calls = ("fetch_new_loras", "load_lora_adapter", "load_lora_adapter_from_tensors", "unload_lora_adapter")
    made = ("load_lora_weights_from_tensors", "create_lora_update_result", "_notify_lora_slots_updated")
    found.has(manager, "lora_manager", "device", "loras", "configs", "lora_refs", "lora_modules", *calls, *made)
    found.knows(manager, "lora_manager", "embed_tokens_module", "lm_head_module")
    found.takes(getattr(manager, made[0], None), f"lora_manager.{made[0]}", "lora_ref", "tensors")
    found.takes(getattr(manager, made[1], None), f"lora_manager.{made[1]}", success="True", error_message="")
    pool = getattr(manager, "memory_pool", None)
    load = "load_lora_weight_to_buffer"
    parts = ("A_buffer", "B_buffer", "uid_to_buffer_id", "target_modules", "base_model", "dtype", load)
    found.has(pool, "lora_manager.memory_pool", *parts)
    found.takes(getattr(pool, load, None), f"memory_pool.{load}", "uid", "0", "adapter", "modules", "embed_tokens", "lm_head")
    found.module(_UTILS, "get_target_module_name", "get_stacked_multiply")
    found.fields("sglang.srt.lora.lora_registry", "LoRARef", "lora_id", "lora_name", "lora_path")


class _Part(NamedTuple):
    """A or B of a module of SGLang.

    Attributes:
      name: for messages.
      key: SGLang's name of the weights on the host; None: the adapter has none.
      tensor: what this rank loads of them.
      view: of the slots, as far as this adapter's rank goes.
    """

    name: str
    key: Optional[str]
    tensor: Optional[Any]
    view: Any


class SglangAdapters:
    """The adapters of one scheduler. Lifecycle: as the scheduler's; `attach_loaded` once. Threads: the scheduler's, but `_commit` is
    called by those of the leases.

    Attributes:
      attached: those that SGLang has loaded.
    """

    def __init__(
        self, manager: Any, adapters: Mapping[str, SglangAdapterOptions], rank: EngineRank, minimum: Optional[Minimum]
    ) -> None:
        """Args:
        manager: model_runner.lora_manager.
        adapters: those to attach, by SGLang's name.
        minimum: None for an engine of one rank.
        """
        self._manager = manager
        self._adapters = adapters
        self._rank = rank
        self._minimum = minimum
        self.attached = AttachedAdapters(rank.number, minimum, next(iter(adapters.values())).step_timeout)
        self._lock = threading.Lock()
        self._load, self._unload = manager.load_lora_adapter, manager.unload_lora_adapter
        manager.fetch_new_loras = self._locked(manager.fetch_new_loras)
        manager.load_lora_adapter = self._loaded
        manager.load_lora_adapter_from_tensors = self._not_from_tensors(manager.load_lora_adapter_from_tensors)
        manager.unload_lora_adapter = self._unloaded

    def attach_loaded(self) -> None:
        """Attaches those that SGLang has loaded at its start.

        Raises:
          LayoutError, StateError, the errors of Engine.attach: by name.
        """
        refs = {ref.lora_name: ref for ref in self._manager.lora_refs.values()}
        for name in self._adapters:
            if name in refs:
                self._attach(refs[name])

    def _attach(self, ref: Any, failure: Optional[str] = None) -> None:
        """Args:
        failure: why SGLang has not loaded it on this rank: the other ranks wait for this one's answer.
        """
        options = self._adapters[ref.lora_name]
        on_host = options.ranks_on_host or self._rank.together

        def make() -> AttachedAdapter:
            if failure is not None:
                raise StateError(failure)
            shadow = Shadow(ref.lora_path, options.dtype)
            with self._lock, working_on(self._manager.device):
                self._require_alike(ref, shadow)
            engine = Engine(options.socket, self._rank.number % on_host, on_host)
            commit = lambda: self._commit(ref, shadow)  # noqa: E731
            return AttachedAdapter(ref.lora_name, shadow, engine, commit, options.timeout)

        self.attached.add(attach_together(make, self._minimum, _LOG))

    def _made(self, ref: Any, shadow: Shadow) -> Any:
        """What SGLang makes of the shadow; its own one stays."""
        manager, uid = self._manager, ref.lora_id
        now = manager.loras[uid]
        try:
            manager.load_lora_weights_from_tensors(ref, shadow.copies())
            return manager.loras[uid]
        finally:
            manager.loras[uid] = now

    def _require_alike(self, ref: Any, shadow: Shadow) -> None:
        """Raises:
        LayoutError: SGLang has loaded something else than the shadow, or does not compute with all of it as the trainer does.
        """
        what = f"adapter '{ref.lora_name}'"
        now, config = self._manager.loras[ref.lora_id], shadow.config
        read = self._manager.configs[ref.lora_id]
        if (read.r, read.lora_alpha) != (config.r, config.lora_alpha):
            raise LayoutError(
                f"{what}: SGLang has read r {read.r}, lora_alpha {read.lora_alpha} in '{shadow.folder}', which says {config} now: unload "
                "the adapter and load it again"
            )
        if now.scaling != config.scaling:
            raise LayoutError(
                f"{what}: SGLang multiplies by {now.scaling}, and the adapter in '{shadow.folder}' ({config}) is trained with "
                f"{config.scaling}: train it with use_rslora=False"
            )
        made = self._made(ref, shadow)
        dtype = self._manager.memory_pool.dtype
        ones, others = (
            {key: tensor.to(dtype) for layer in each.layers for key, tensor in layer.weights.items()} for each in (now, made)
        )
        if ones.keys() != others.keys() or not all(same_bits(ones[key], others[key]) for key in ones):
            raise LayoutError(
                f"{what}: expected that SGLang has loaded what is in '{shadow.folder}' now, and it has other values: unload the adapter and "
                "load it again"
            )
        parts = list(self._parts(made, ref.lora_name))
        used = [part.key for part in parts if part.key is not None]
        left = sorted((ones.keys() - set(used)) | {key for key in shadow.copies() if not _LAYER.search(key)})
        twice = len(used) - len(set(used)) + len(parts) - len({part.name for part in parts})
        if left or twice:
            raise LayoutError(
                f"{what}: SGLang does not compute with {left[:3] or 'one of two modules of the same name'}, expected A and B of layers that it "
                f"has LoRA for: {sorted(self._manager.memory_pool.target_modules)}"
            )

    def _parts(self, adapter: Any, name: str) -> Iterator[_Part]:
        """The parts of all modules for which SGLang has slots. SGLang's own code cuts the tensors of this rank.

        Raises:
          LayoutError: SGLang has LoRA for experts.
        """
        pool, utils = self._manager.memory_pool, importlib.import_module(_UTILS)
        for number, modules in enumerate(self._manager.lora_modules):
            weights = adapter.layers[number].weights
            targets = {key: _target_of(key, pool) for key in weights}
            for module_name, module in modules.items():
                if hasattr(module, "slice_moe_lora_a_weights"):
                    raise LayoutError(
                        f"adapter '{name}': SGLang has LoRA for the experts {module_name}: not supported, start it with "
                        "--lora-target-modules that have no gate_up_proj or down_proj"
                    )
                target = _target_of(module_name, pool)
                size = adapter.config.r * utils.get_stacked_multiply(target, pool.base_model)
                a, b = pool.A_buffer[target][number][:, :size], pool.B_buffer[target][number][:, :, : adapter.config.r]
                for half, view, cut in (("lora_A", a, module.slice_lora_a_weights), ("lora_B", b, module.slice_lora_b_weights)):
                    keys = [key for key, of in targets.items() if of == target and half in key] or [None]
                    for key in keys:
                        yield _Part(f"{module_name}.{half}", key, None if key is None else cut(weights[key]), view)

    def _commit(self, ref: Any, shadow: Shadow) -> None:
        """Has SGLang load a commit, in its pause. On any thread.

        Raises:
          StateError: the slot does not have what was loaded, by module.
        """
        manager, uid = self._manager, ref.lora_id
        with self._lock, working_on(manager.device):
            if uid not in manager.loras:
                return  # it is being unloaded
            synchronize(manager.device)
            manager.loras[uid] = made = self._made(ref, shadow)
            slot = manager.memory_pool.uid_to_buffer_id.get(uid)
            if slot is None:
                return  # the next request loads it
            manager.memory_pool.load_lora_weight_to_buffer(
                uid, slot, made, manager.lora_modules, manager.embed_tokens_module, manager.lm_head_module
            )
            manager._notify_lora_slots_updated({slot})
            synchronize(manager.device)
            for part in self._parts(made, ref.lora_name):
                found = part.view[slot]
                if bool(found.any()) if part.tensor is None else not same_bits(found, part.tensor.to(found.device, found.dtype)):
                    raise StateError(f"adapter '{ref.lora_name}': slot {slot} of {part.name} does not have what SGLang has loaded into it")

    def _locked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return call(*args, **kwargs)

        return locked

    def _loaded(self, lora_ref: Any) -> Any:
        """In the place of LoRAManager.load_lora_adapter. What cannot be attached is not loaded."""
        result = self._load(lora_ref)
        if lora_ref.lora_name not in self._adapters:
            return result
        try:
            self._attach(lora_ref, None if result.success else result.error_message)
        except Exception as error:  # pylint: disable=broad-except
            _LOG.error("dws: adapter '%s' is not attached: %s: %s", lora_ref.lora_name, type(error).__name__, error)
            if result.success:
                with self._lock:
                    self._unload(lora_ref)
            return self._manager.create_lora_update_result(success=False, error_message=str(error))
        return result

    def _not_from_tensors(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(lora_ref: Any, *args: Any, **kwargs: Any) -> Any:
            if lora_ref.lora_name in self._adapters:
                error = f"adapter '{lora_ref.lora_name}' of {VARIABLE} was given as tensors, expected a folder: POST /load_lora_adapter"
                return self._manager.create_lora_update_result(success=False, error_message=error)
            return call(lora_ref, *args, **kwargs)

        return loaded

    def _unloaded(self, lora_ref: Any) -> Any:
        """In the place of LoRAManager.unload_lora_adapter: no request runs with it."""
        loaded = self._manager.lora_refs.get(lora_ref.lora_id)
        if loaded is not None and loaded.lora_name in self.attached:
            self.attached.remove(loaded.lora_name)  # not inside the lock, which a commit may wait for
            _LOG.warning("dws: adapter '%s' is detached: SGLang unloads it", loaded.lora_name)
        with self._lock:
            return self._unload(lora_ref)


def _target_of(name: str, pool: Any) -> Optional[str]:
    """The name of the buffers for a module or its weights; None: there are none."""
    try:
        return str(importlib.import_module(_UTILS).get_target_module_name(name, pool.target_modules))
    except ValueError:
        return None
