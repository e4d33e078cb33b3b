"""Adapters of LoRA in a worker of vLLM: how its own code loads one from a Shadow, in the place of the checkpoint.

vLLM keeps an adapter twice: as it loads it, on the host (the registered one), and in a slot of each layer's buffers
(an active one). Both are forms of its own: B is multiplied by the scaling, packed, cut by rank and padded. Slots
are given and taken as requests need them, and an adapter that is not registered is loaded from its folder again. So
    * whatever loads an attached adapter reads its shadow: WorkerLoRAManager._load_adapter is wrapped, and gives vLLM's own code the
      shadow's tensors where it would read the file. No slot is written but by vLLM, and never one of another adapter;
    * after each commit, inside its pause, vLLM loads the adapter in place, if it has it registered, and what is in the
      slot is compared with what was loaded;
    * all calls that change the adapters are steps of the gate, so that none falls into a commit.

An adapter is identified by lora_int_id, as in vLLM. Before it is attached, its folder has to make, by the same
way, exactly what vLLM has registered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import os
import threading
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional

from dws.adapters.attached import AttachedAdapters
from dws.adapters.config import AdapterConfig
from dws.adapters.shadow import Shadow
from dws.errors import LayoutError, StateError
from dws.plugins.attach import STEP_TIMEOUT_SECONDS, known_options
from dws.plugins.probes import Probes
from dws.plugins.tensor_memory import bytes_of, working_on
from dws.receiver_link import ATTACH_TIMEOUT_SECONDS

# Calls that change the adapters, beside add_adapter.
_CHANGING = ("remove_adapter", "remove_all_adapters", "pin_adapter")


@dataclasses.dataclass(frozen=True)
class AdapterOptions:
    """What a user can set; all of it fits into JSON.

    Attributes:
      lora_int_id: vLLM's number of the adapter, in the order of loading from 1; needed if vLLM has loaded equal
        ones.
      dtype: in which the trainer publishes A and B, such as "bfloat16"; None: as they are in the folder.
      ranks_on_host, step_timeout, timeout: as AttachOptions. The first adapter's step_timeout counts.
    """

    lora_int_id: Optional[int] = None
    dtype: Optional[str] = None
    ranks_on_host: Optional[int] = None
    step_timeout: float = STEP_TIMEOUT_SECONDS
    timeout: float = ATTACH_TIMEOUT_SECONDS

    @classmethod
    def of(cls, options: dict[str, Any]) -> "AdapterOptions":
        """Raises:
        InvalidArgumentError: an unknown option, by name.
        """
        return known_options(cls, options)


def probe(found: Probes, runner: Any) -> None:
    """Looks for what this relies on.

    Args:
      runner: worker.model_runner.
    """
    found.has(runner, "model_runner", "lora_manager")
    manager = getattr(runner, "lora_manager", None)
    calls = ("_load_adapter", "_lora_model_cls", "add_adapter", "list_adapters", *_CHANGING)
    found.has(manager, "lora_manager", "device", *calls)
    inner = getattr(manager, "_adapter_manager", None)
    parts = ("_create_merged_loras_inplace", "_get_lora_layer_weights", "lora_index_to_id", "modules", "get_adapter")
    found.has(inner, "lora_manager._adapter_manager", *parts)
    model = getattr(manager, "_lora_model_cls", None)
    found.takes(getattr(manager, "_load_adapter", None), "lora_manager._load_adapter", "lora_request")
    found.takes(getattr(model, "from_lora_tensors", None), "LoRAModel.from_lora_tensors", "1", "tensors", "peft_helper")
    found.module("vllm.lora.request", "LoRARequest")


class _Known(NamedTuple):
    name: str
    shadow: Shadow


class VllmAdapters:
    """The adapters of one worker. Lifecycle: made once for a worker; it stays in place after adapters were detached, whose
    present version vLLM then goes on with. Threads: the worker's, but `load` is called by those of the leases."""

    def __init__(
        self, manager: Any, attached: Callable[[], Optional[AttachedAdapters]], replies_last: bool = True
    ) -> None:
        """Args:
        manager: model_runner.lora_manager.
        attached: those of the worker now.
        replies_last: true on the rank that raises what all ranks refuse alike (dws.plugins.attach.reply_together).
        """
        self._replies_last = replies_last
        self._manager = manager
        self._attached = attached
        self._loading = threading.Lock()  # the pauses of two adapters may overlap
        self._known: dict[int, _Known] = {}  # by lora_int_id, detached ones too
        self._read = manager._load_adapter
        self._add = manager.add_adapter
        self._remove = manager.remove_adapter
        manager._load_adapter = self._loaded
        manager.add_adapter = self._added
        for name in _CHANGING:
            setattr(manager, name, self._in_step(getattr(manager, name)))

    def find(self, name: str, shadow: Shadow, lora_int_id: Optional[int]) -> int:
        """The lora_int_id of the adapter that vLLM has loaded from the shadow's folder.

        Args:
          lora_int_id: None: the only one that is equal.

        Raises:
          LayoutError: none is, or several are, by their ids; or vLLM's own code refuses the folder.
          StateError: it is attached.
        """
        registered = self._manager.list_adapters()
        if lora_int_id is not None and lora_int_id not in registered:
            raise LayoutError(f"adapter '{name}': vLLM has no adapter of lora_int_id {lora_int_id} loaded, found {sorted(registered)}")
        taken = {one: known.name for one, known in self._known.items() if self._is_attached(one)}
        if lora_int_id in taken:
            raise StateError(f"adapter '{name}': lora_int_id {lora_int_id} is attached as '{taken[lora_int_id]}': detach that first")
        wanted = sorted(set(registered) - set(taken)) if lora_int_id is None else [lora_int_id]
        made = self._made(name, shadow)
        inner = self._manager._adapter_manager
        # What was attached with this folder has a later version than the folder.
        later = {one for one, known in self._known.items() if known.shadow.folder == shadow.folder}
        same = [one for one in wanted if _alike(inner.get_adapter(one), made, values=one not in later)]
        if len(same) != 1:
            found = f"several are, {same}: pass lora_int_id" if same else (
                f"of {wanted} none is. Load the folder first (add_lora, or POST /v1/load_lora_adapter), and again if it was "
                "written since"
            )
            raise LayoutError(
                f"adapter '{name}': expected that vLLM has loaded exactly one adapter with the values in '{shadow.folder}' ({shadow.config}); {found}"
            )
        return int(same[0])

    def _made(self, name: str, shadow: Shadow) -> Any:
        """What vLLM would register of the shadow."""
        try:
            with working_on(self._manager.device):
                model = self._load(_request(name, 1, shadow.folder), shadow)
                self._manager._adapter_manager._create_merged_loras_inplace(model)
        except (ValueError, RuntimeError) as error:
            raise LayoutError(f"adapter '{name}': vLLM does not load '{shadow.folder}': {error}") from error
        return model

    @contextlib.contextmanager
    def following(self, name: str, lora_int_id: int, shadow: Shadow) -> Iterator[None]:
        """A block that attaches the adapter. From its begin on vLLM loads it from the shadow; if it fails, as before."""
        before = self._known.get(lora_int_id)
        self._known[lora_int_id] = _Known(name, shadow)
        try:
            yield
        except BaseException:
            del self._known[lora_int_id]
            if before is not None:
                self._known[lora_int_id] = before
            raise

    def state(self) -> dict[str, dict[str, Any]]:
        """By name: the adapter's id, whether vLLM has it registered, and its slot."""
        registered = self._manager.list_adapters()
        slots = list(self._manager._adapter_manager.lora_index_to_id)
        return {
            known.name: {
                "lora_int_id": one,
                "loaded": one in registered,
                "slot": slots.index(one) if one in slots else None,
            }
            for one, known in self._known.items()
            if self._is_attached(one)
        }

    def load(self, lora_int_id: int) -> None:
        """Has vLLM load a commit, in its pause. On any thread.

        Raises:
          StateError: the slot does not have what was loaded, by module.
        """
        with self._loading, working_on(self._manager.device):
            _synchronize(self._manager.device)
            if lora_int_id in self._manager._adapter_manager.lora_index_to_id:
                known = self._known[lora_int_id]
                request = _request(known.name, lora_int_id, known.shadow.folder)
                self._remove(lora_int_id)
                self._add(request)
                _synchronize(self._manager.device)
                self._require_written(lora_int_id)
            elif lora_int_id in self._manager.list_adapters():
                self._remove(lora_int_id)  # the next request loads it

    def _load(self, request: Any, shadow: Shadow) -> Any:
        manager = self._manager
        reads = manager._lora_model_cls
        manager._lora_model_cls = _OfShadow(reads, shadow)
        try:
            return self._read(request)
        finally:
            manager._lora_model_cls = reads

    def _loaded(self, request: Any) -> Any:
        """In the place of WorkerLoRAManager._load_adapter."""
        one = request.lora_int_id
        known = self._known.get(one)
        if known is not None and not self._is_attached(one):
            if getattr(request, "load_inplace", False) or _folder(request) != known.shadow.folder:
                del self._known[one]  # another one than what was attached
                known = None
        return self._read(request) if known is None else self._load(request, known.shadow)

    def _is_attached(self, lora_int_id: int) -> bool:
        """Returns whether its receiver writes its shadow. Not yet, while it is being attached."""
        attached, known = self._attached(), self._known[lora_int_id]
        return attached is not None and attached.shadow_of(known.name) is known.shadow

    def _added(self, request: Any) -> Any:
        """In the place of WorkerLoRAManager.add_adapter: in steps, and for a call of a user's.

        Raises:
          StateError: for a user: the adapter is attached, and another folder is to be loaded; or the folder, as another adapter.
        """
        attached = self._attached()
        if attached is not None and attached.gate.held is None:
            try:
                self._require_other(request)
            except StateError:
                if self._replies_last:
                    raise
                return False
        return self._in_step(self._add)(request)

    def _require_other(self, request: Any) -> None:
        one, folder = request.lora_int_id, _folder(request)
        for other, known in self._known.items():
            if self._is_attached(other) and (other == one) != (known.shadow.folder == folder):
                raise StateError(
                    f"adapter '{known.name}' is attached as lora_int_id {other} with '{known.shadow.folder}', and '{folder}' is to be "
                    f"loaded as '{request.lora_name}', lora_int_id {one}: a swap of adapters is a new registration, call "
                    "dws_detach_adapter first"
                )

    def _in_step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            attached = self._attached()
            if attached is None or attached.gate.held is not None:
                return call(*args, **kwargs)
            with attached.gate.step():
                return call(*args, **kwargs)

        return stepped

    def _require_written(self, lora_int_id: int) -> None:
        inner = self._manager._adapter_manager
        model, slot = inner.get_adapter(lora_int_id), inner.lora_index_to_id.index(lora_int_id)
        for name, module in inner.modules.items():
            weights = inner._get_lora_layer_weights(model, name)
            for part, (stacked, loaded) in _halves(module, weights).items():
                for buffer, tensor in zip(stacked, loaded):
                    if not _has(buffer[slot], tensor):
                        raise StateError(
                            f"adapter '{self._known[lora_int_id].name}': slot {slot} of {name}.{part} does not have what vLLM has "
                            "loaded into it"
                        )


class _OfShadow:
    """In the place of vLLM's LoRAModel, where it would read a checkpoint."""

    def __init__(self, model: Any, shadow: Shadow) -> None:
        self._model = model
        self._shadow = shadow

    def from_local_checkpoint(self, folder: str, expected: Any, *, peft_helper: Any, **given: Any) -> Any:
        alpha, rslora = peft_helper.lora_alpha, peft_helper.use_rslora
        self._shadow.require_config(AdapterConfig(peft_helper.r, alpha, rslora))
        takes = inspect.signature(self._model.from_lora_tensors).parameters
        taken = {name: value for name, value in given.items() if name in takes}
        return self._model.from_lora_tensors(tensors=self._shadow.copies(), peft_helper=peft_helper, **taken)


def _request(name: str, lora_int_id: int, folder: str) -> Any:
    return importlib.import_module("vllm.lora.request").LoRARequest(name, lora_int_id, folder)


def _folder(request: Any) -> str:
    return os.path.realpath(str(request.lora_path))


def _synchronize(device: Any) -> None:
    """Returns when the device has done all that this process has asked of it, on any stream."""
    if device.type != "cpu":
        importlib.import_module("torch").get_device_module(device).synchronize(device)


def _alike(registered: Any, made: Any, values: bool) -> bool:
    """Returns whether two of vLLM's LoRAModels have the same modules, ranks and shapes, and the same values too."""
    if set(registered.loras) != set(made.loras):
        return False
    for name, one in registered.loras.items():
        other = made.loras[name]
        if one.rank != other.rank or one.scaling != other.scaling:
            return False
        for a, b in ((one.lora_a, other.lora_a), (one.lora_b, other.lora_b)):
            if not _equal(_listed(a), _listed(b), values):
                return False
    return True


def _equal(ones: list[Any], others: list[Any], values: bool) -> bool:
    if [each is None for each in ones] != [each is None for each in others]:
        return False
    pairs = [(a, b) for a, b in zip(ones, others) if a is not None]
    return all(
        a.shape == b.shape and a.dtype == b.dtype and (not values or bytes_of(a).equal(bytes_of(b))) for a, b in pairs
    )


def _listed(tensors: Any) -> list[Any]:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def _halves(module: Any, weights: Any) -> Mapping[str, tuple[list[Any], list[Any]]]:
    """For A and B of a module: its buffers, and what this rank has loaded into each; None: nothing."""
    a_stacked, b_stacked = _listed(module.lora_a_stacked), _listed(module.lora_b_stacked)
    if weights is None:
        return {"lora_a": (a_stacked, [None] * len(a_stacked)), "lora_b": (b_stacked, [None] * len(b_stacked))}
    a, b = weights.lora_a, weights.lora_b
    if isinstance(b, list) and len(b) != len(b_stacked):
        a, b = module.expand_packed_lora(a, b)
    if isinstance(module.lora_a_stacked, tuple) and module.tp_size > 1:
        a, b = module.slice_lora_a(a), module.slice_lora_b(b)
    return {"lora_a": (a_stacked, _listed(a)), "lora_b": (b_stacked, _listed(b))}


def _has(slot: Any, tensor: Any) -> bool:
    """Returns whether a slot has the tensor's elements, and zeros around them."""
    if tensor is None:
        return not bool(slot.any())
    slot = slot[0]
    rows, columns = tensor.shape
    inside = slot[:rows, :columns]
    same = bytes_of(inside).equal(bytes_of(tensor.to(slot.device)))
    return bool(same and not slot[rows:].any() and not slot[:, columns:].any())
