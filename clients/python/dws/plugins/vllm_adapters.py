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
from dws.adapters.options import AdapterOptions
from dws.adapters.shadow import Shadow
from dws.errors import LayoutError, StateError
from dws.plugins.attach import reply_together
from dws.plugins.probes import Probes
from dws.plugins.step_gate import Minimum
from dws.plugins.tensor_memory import alike_for_copy, bytes_of, same_bits, synchronize, working_on


@dataclasses.dataclass(frozen=True)
class VllmAdapterOptions(AdapterOptions):
    """Attributes:
    lora_int_id: vLLM's number of the adapter, in the order of loading from 1; needed if vLLM has loaded equal
      ones.
    """

    lora_int_id: Optional[int] = None


def probe(found: Probes, runner: Any) -> None:
    """Looks for what this relies on.

    Args:
      runner: worker.model_runner.
    """
    found.has(runner, "model_runner", "lora_manager")
    manager = getattr(runner, "lora_manager", None)
    changing = ("add_adapter", "remove_adapter", "remove_all_adapters", "pin_adapter")
    calls = ("_load_adapter", "_lora_model_cls", "list_adapters", *changing)
    found.has(manager, "lora_manager", "device", *calls)
    inner = getattr(manager, "_adapter_manager", None)
    parts = ("_create_merged_loras_inplace", "_get_lora_layer_weights", "lora_index_to_id", "modules", "get_adapter", "_registered_adapters")
    found.has(inner, "lora_manager._adapter_manager", *parts)
    # A commit may move an adapter to another slot: without this a batch that runs would go on with the slot before.
    found.knows(inner, "lora_manager._adapter_manager", "_last_slot_layout")
    model = getattr(manager, "_lora_model_cls", None)
    found.takes(getattr(manager, "_load_adapter", None), "lora_manager._load_adapter", "lora_request")
    found.takes(getattr(model, "from_lora_tensors", None), "LoRAModel.from_lora_tensors", "1", "tensors", "peft_helper")
    found.fields("vllm.lora.request", "LoRARequest", "lora_int_id", "lora_path", "load_inplace")


class _Known(NamedTuple):
    name: str
    shadow: Shadow


class VllmAdapters:
    """The adapters of one worker. Lifecycle: made once for a worker; it stays in place after adapters were detached, whose
    present version vLLM then goes on with. Threads: the worker's, but `load` is called by those of the leases."""

    def __init__(
        self,
        manager: Any,
        attached: Callable[[], Optional[AttachedAdapters]],
        replies_last: bool = True,
        minimum: Optional[Minimum] = None,
    ) -> None:
        """Args:
        manager: model_runner.lora_manager.
        attached: those of the worker now.
        replies_last, minimum: how the ranks reply to a call of a user's (dws.plugins.attach.reply_together).
        """
        self._replies_last = replies_last
        self._minimum = minimum
        self._manager = manager
        self._attached = attached
        # The pauses of two adapters may overlap, and one is committed while another one is attached.
        self._loading = threading.RLock()
        self._known: dict[int, _Known] = {}  # by lora_int_id, detached ones too
        self._unfinished: set[int] = set()  # those that were in a slot, and whose last load failed
        self._committed: Optional[int] = None  # inside the lock: the adapter that `load` loads
        self._read = manager._load_adapter
        self._add, self._remove, self._pin = manager.add_adapter, manager.remove_adapter, manager.pin_adapter
        manager._load_adapter = self._loaded
        manager.add_adapter = self._in_step(self._add, self._require_other)
        manager.pin_adapter = self._in_step(self._pin)
        manager.remove_adapter = self._in_step(self._forgetting(self._remove))
        manager.remove_all_adapters = self._in_step(self._forgetting(manager.remove_all_adapters))

    def find(self, name: str, shadow: Shadow, lora_int_id: Optional[int]) -> int:
        """The lora_int_id of the adapter that vLLM has loaded from the shadow's folder.

        Args:
          lora_int_id: None: the only one that is equal.

        Raises:
          LayoutError: none is, or several are, by their ids; or vLLM's own code refuses the folder.
          StateError: it is attached.
        """
        with self._loading:
            return self._found(name, shadow, lora_int_id)

    def _found(self, name: str, shadow: Shadow, lora_int_id: Optional[int]) -> int:
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
        except Exception as error:  # pylint: disable=broad-except
            text = f"{type(error).__name__}: {error}"
            raise LayoutError(f"adapter '{name}': vLLM does not load '{shadow.folder}': {text}") from error
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
        with self._loading:
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
        """Has vLLM load a commit, in its pause. On any thread. What has failed is loaded by the next try.

        Raises:
          StateError: the slot does not have what was loaded, by module.
          LayoutError: the adapter's folder has another config.
        """
        with self._loading, working_on(self._manager.device):
            synchronize(self._manager.device)
            inner = self._manager._adapter_manager
            if lora_int_id in inner.lora_index_to_id or lora_int_id in self._unfinished:
                pinned = lora_int_id in getattr(inner._registered_adapters, "pinned_items", ())
                self._unfinished.add(lora_int_id)
                self._load_in_place(lora_int_id)
                if pinned:
                    self._pin(lora_int_id)
                synchronize(self._manager.device)
                self._require_written(lora_int_id)
                self._unfinished.discard(lora_int_id)
            elif lora_int_id in self._manager.list_adapters():
                self._remove(lora_int_id)  # the next request loads it

    def _load_in_place(self, lora_int_id: int) -> None:
        """Has vLLM load it; the version before stays where vLLM's code refuses the new one."""
        known = self._known[lora_int_id]
        self._committed = lora_int_id
        try:
            self._add(_request(known.name, lora_int_id, known.shadow.folder, load_inplace=True))
        finally:
            self._committed = None

    def _load(self, request: Any, shadow: Shadow) -> Any:
        """Inside the lock: whatever vLLM reads meanwhile is the shadow."""
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
        with self._loading:
            known = self._known.get(one)
            if known is not None and one != self._committed and not self._is_attached(one):
                if getattr(request, "load_inplace", False) or _folder(request) != known.shadow.folder:
                    del self._known[one]  # another one than what was attached
                    known = None
            return self._read(request) if known is None else self._load(request, known.shadow)

    def _is_attached(self, lora_int_id: int) -> bool:
        """Returns whether its receiver writes its shadow. Not yet, while it is being attached."""
        attached, known = self._attached(), self._known[lora_int_id]
        return attached is not None and attached.shadow_of(known.name) is known.shadow

    def _require_other(self, request: Any) -> None:
        """Raises:
        StateError: an adapter is attached, and another folder is to be loaded in its place; or its folder, as another adapter.
        """
        one, folder = request.lora_int_id, _folder(request)
        for other, known in self._known.items():
            if self._is_attached(other) and (other == one) != (known.shadow.folder == folder):
                raise StateError(
                    f"adapter '{known.name}' is attached as lora_int_id {other} with '{known.shadow.folder}', and '{folder}' is to be "
                    f"loaded as '{request.lora_name}', lora_int_id {one}: a swap of adapters is a new registration, call "
                    "dws_detach_adapter first"
                )

    def _in_step(self, call: Callable[..., Any], require: Callable[..., None] = lambda *args: None) -> Callable[..., Any]:
        """`call`, in a step of the gate: vLLM's own, or one for a call of a user's, which all ranks answer alike.

        Args:
          require: called before it for a user, with the same arguments.
        """

        def stepped(*args: Any) -> Any:
            attached = self._attached()
            if attached is None or attached.gate.held is not None:
                return call(*args)

            gate = attached.gate

            def asked() -> Any:
                require(*args)
                with gate.step():
                    return call(*args)

            return reply_together(asked, self._replies_last, lambda: self._minimum)

        return stepped

    def _forgetting(self, remove: Callable[..., Any]) -> Callable[..., Any]:
        """`remove`, of an adapter or of all: what is loaded after it is what the folder has then, but for attached ones."""

        def removed(*ids: int) -> Any:
            with self._loading:
                done = remove(*ids)
                for one in ids or list(self._known):
                    if one in self._known and not self._is_attached(one):
                        del self._known[one]
                return done

        return removed

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


def _request(name: str, lora_int_id: int, folder: str, load_inplace: bool = False) -> Any:
    made = importlib.import_module("vllm.lora.request").LoRARequest
    return made(name, lora_int_id, folder, load_inplace=load_inplace)


def _folder(request: Any) -> str:
    return os.path.realpath(str(request.lora_path))


def _alike(registered: Any, made: Any, values: bool) -> bool:
    """Returns whether two of vLLM's LoRAModels have the same modules and ranks, and tensors of the same shapes and
    types on the same devices; with `values`, whether they also have the same bits."""
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
    same = same_bits if values else alike_for_copy
    return all(same(a, b) for a, b in zip(ones, others) if a is not None)


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
