"""Layers whose weights the engine processes after it has loaded them: packed or padded for a kernel, or a source of
other tensors (MLA's absorbed projections).

A commit writes the form that checkpoints have, so tensors in that form are kept: beside the
engine's, or in place of them if processing passes a tensor through unchanged. After a commit the
engine's own processing runs over the kept tensors of the layers that have changed, and its results
are copied into the tensors that the engine has had all the time, which CUDA graphs and kernels
know.

    processed = ProcessedLayers(model, engine)
    with processed.as_loaded():       # as the engine's load_weights needs it
        mapping = ...
    processed.keep(mapping)           # one trial of each layer's processing
    engine.attach(processed.target, mapping, rebuild=processed.rebuild)

A trial with meaningless values, not a list of layers, finds out what processing does: which tensors
it passes through, which it makes and where those are held. A layer is refused, by name, if the
tensors it makes do not fit those that the engine has, or if it makes something that is not a
tensor: a handle of a library, with the weights of another version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import time
from typing import Any, Callable, ContextManager, Iterable, Iterator, Mapping, Optional, Protocol

from dws.errors import LayoutError
from dws.mapping import Mapped, tensors_of
from dws.plugins.checkpoint import CheckpointFiles, fill
from dws.held.held_state import HeldState, Path, changed_values, tensor_at
from dws.plugins.layers import refuse, what_needs_a_hook
from dws.plugins.tensor_memory import (
    alike,
    alike_for_copy,
    bytes_of,
    copy_of,
    device_of,
    filled_like,
    may_be_addresses,
    same_place,
    shares_storage,
    shown,
    storage_of,
    twin_of,
    working_on,
)
from dws.torch_module import named_tensors

_TABLES = ("_parameters", "_buffers")


@dataclasses.dataclass(frozen=True)
class Processing:
    """The processing that an engine does with a layer after loading.

    Attributes:
      run: does it, on the layer as it is.
      loaded: the layer's own tensors as loaders take them, by name, on torch's meta device; or the live ones,
        which processing does not change.
      derives: it makes tensors from those of its submodules.
    """

    run: Callable[[], None]
    loaded: Mapping[str, Any]
    derives: bool = False


class EngineProcessing(Protocol):
    """An engine's way to process a layer again."""

    def of(self, name: str, layer: Any) -> Optional[Processing]:
        """None: it has none, for this layer."""

    def loading(self) -> ContextManager[Any]:
        """In which the model's load_weights makes nothing of what it has loaded."""

    def context(self) -> ContextManager[Any]:
        """In which `run` may be called."""

    def refresh(self) -> Optional[Callable[[], Any]]:
        """The model's own call that updates the copies it has made of its weights; None: it has
        none."""


class ProcessedLayers:
    """Lifecycle: made; as_loaded, then keep; then `target` and `rebuild`. Threads: one at a time.

    Attributes:
      target: a torch module with the names of the model, to be attached in its place. Tensors that
        are not processed are the model's own.
      rebuilt_layers, rebuild_seconds: of the last rebuild.
    """

    def __init__(
        self,
        model: Any,
        engine: Optional[EngineProcessing],
        has_hook: bool = False,
        also: Iterable[str] = (),
    ) -> None:
        """Args:
          engine: None: it has no way to process a layer again.
          has_hook: a hook of the user's does all that is needed.
          also: names of layers that hold copies of weights: the engine's processing may make them.

        Raises:
          LayoutError: it has none for a layer that needs it, by name.
        """
        self._model = model
        self._engine = engine
        self._layers: list[_Layer] = []
        self.rebuilt_layers = 0
        self.rebuild_seconds = 0.0
        self.target = model
        self._tried = 0
        modules = dict(model.named_modules())
        others = frozenset(id(module) for module in modules.values())
        needing = [] if has_hook else what_needs_a_hook(model)
        for name in dict.fromkeys([*(need.layer for need in needing), *(() if has_hook else also)]):
            processing = None if engine is None else engine.of(name, modules[name])
            if processing is not None:
                self._layers.append(_Layer(name, modules[name], processing, others))
        done = {layer.name for layer in self._layers}
        refuse(model, [need for need in needing if need.layer not in done])
        self._tried = len(self._layers)
        # Layers that make tensors from other layers' tensors come after those.
        self._layers.sort(key=lambda layer: layer.derives)

    @property
    def count(self) -> int:
        return len(self._layers)

    def how(self) -> str:
        """For the line that an attach logs; "" if the model has no such layers."""
        if not self._tried:
            return ""
        kept = sum(layer.kept_bytes for layer in self._layers)
        return (
            f"; of {self._tried} layers that are processed after loading {len(self._layers)} are processed after "
            f"each commit that changes them ({kept >> 20} MiB kept for that)"
        )

    @property
    def derives(self) -> bool:
        """Returns whether a layer makes tensors from those of its submodules."""
        return any(layer.derives for layer in self._layers)

    def updated(self) -> list[Any]:
        """The tensors that `rebuild` writes."""
        return [tensor for layer in self._layers for tensor in layer.updated]

    def status(self) -> dict[str, Any]:
        """The figures of the last commit, for JSON."""
        return {"processed_layers": self.rebuilt_layers, "process_seconds": self.rebuild_seconds}

    @contextlib.contextmanager
    def as_loaded(self) -> Iterator[None]:
        """A block in which layers have the form that loaders take."""
        with contextlib.ExitStack() as stack:
            if self._engine is not None:
                stack.enter_context(self._engine.loading())
            for layer in self._layers:
                stack.enter_context(layer.as_loaded())
            yield

    def keep(self, mapping: Mapped) -> None:
        """Finds out what processing does, and allocates what has to be kept.

        Args:
          mapping: of all tensors, in the form that loaders take.

        Raises:
          LayoutError: a layer that cannot be processed again, by name.
        """
        if not self._layers:
            return
        with self.as_loaded():
            attached = {id(tensor): tensor for tensor in named_tensors(self._model).values()}
        with self._working():
            for layer in self._layers:
                layer.try_out(attached)
        # If everything is passed through, a commit writes the engine's own tensors.
        self._layers = [layer for layer in self._layers if layer.makes]
        if not self._layers:
            return
        layers = {id(layer.module): layer for layer in self._layers}
        self.target = _skeleton(self._model, layers, {})
        names = {id(tensor): name for name, tensor in named_tensors(self.target).items()}
        bones = dict(self.target.named_modules())
        for layer in self._layers:
            tensors = named_tensors(bones[layer.name]).values()
            held = [names[id(tensor)] for tensor in tensors if id(tensor) in names]
            layer.sources = frozenset(
                source for name in held for source in tensors_of(mapping.get(name, name))
            )

    def require_as_loaded(self, mapping: Mapped, files: CheckpointFiles) -> None:
        """Compares the results of processing a checkpoint with the engine's tensors.

        Raises:
          LayoutError: a layer differs, by name: the engine has loaded another checkpoint, or has not processed
            it like this.
        """
        live = {id(tensor) for tensor in named_tensors(self._model).values()}
        kept = {n: tensor for n, tensor in named_tensors(self.target).items() if id(tensor) not in live}
        fill(kept, mapping, files)
        with self._working():
            differ = [layer.name for layer in self._layers if layer.differs()]
        if differ:
            raise LayoutError(
                f"{len(differ)} layers differ from what the engine's own processing makes of checkpoint "
                f"'{files.folder}': {', '.join(differ[:3])}{' ...' if len(differ) > 3 else ''}. Has the engine "
                "loaded another one?"
            )

    def rebuild(self, changed: Optional[frozenset[str]]) -> None:
        """Updates the engine's tensors from the kept tensors.

        Args:
          changed: canonical tensors that may have changed since it last returned; None: all.
        """
        begin = time.monotonic()
        concerned = [one for one in self._layers if changed is None or not one.sources or one.sources & changed]
        with self._working():
            for layer in concerned:
                layer.rebuild()
        self.rebuilt_layers, self.rebuild_seconds = len(concerned), time.monotonic() - begin

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        device = next((tensor.device for tensor in self._model.parameters()), None)
        assert self._engine is not None  # there are layers
        with working_on(device), self._engine.context():
            yield


class _Layer:
    """One layer. Paths are the names of what its state holds.

    Attributes:
      kept_bytes: of memory beside the engine's.
      updated: the engine's tensors that processing writes.
    """

    def __init__(
        self, name: str, module: Any, processing: Processing, layers: frozenset[int]
    ) -> None:
        """Args:
        layers: all of the model, by identity.
        """
        self.name = name
        self.module = module
        self.derives = processing.derives
        self._loaded = processing.loaded
        self.sources: frozenset[str] = frozenset()
        self._run = processing.run
        self._layers = layers
        self._before: HeldState
        self._kept: dict[str, Any] = {}  # by name, as loaders take them; the live one if it is passed through
        self._made: list[Path] = []  # what has to be copied
        self.kept_bytes = 0
        self.updated: list[Any] = []

    @property
    def makes(self) -> bool:
        """Returns whether processing does more than to pass all through."""
        return self.derives or bool(self._made)

    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables of the kept tensors, for the skeleton."""
        return self._tables(self._kept)

    def _tables(self, tensors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        torch: Any = importlib.import_module("torch")
        tables: dict[str, dict[str, Any]] = {table: {} for table in _TABLES}
        for name, tensor in tensors.items():
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            tables["_parameters" if is_parameter else "_buffers"][name] = tensor
        return tables

    def _install(self, tensors: Mapping[str, Any]) -> None:
        for table, entries in self._tables(tensors).items():
            # Not replaced: code of the engine may hold it.
            held = vars(self.module)[table]
            nothing = [name for name, tensor in held.items() if tensor is None]
            held.clear()
            held.update(dict.fromkeys(nothing))
            held.update(entries)
        for name in tensors:
            vars(self.module).pop(name, None)

    @contextlib.contextmanager
    def as_loaded(self) -> Iterator[None]:
        before = HeldState(self.module, self._layers)
        self._install(self._loaded)
        try:
            yield
        finally:
            before.restore()

    @contextlib.contextmanager
    def _processed(self, as_input: Callable[[Any], Any]) -> Iterator[None]:
        """A block in which the layer has the results of processing the kept tensors.

        Args:
          as_input: of each tensor that is kept, what processing gets.
        """
        self._before.again()
        try:
            self._install({name: as_input(tensor) for name, tensor in self._kept.items()})
            try:
                self._run()
            except Exception as error:
                raise LayoutError(
                    f"layer '{self.name}' ({type(self.module).__name__}): the engine's own processing of what was "
                    f"loaded fails when it is repeated: {type(error).__name__}: {error}"
                ) from error
            yield
        finally:
            self._before.restore()

    def try_out(self, attached: Mapping[int, Any]) -> None:
        """Args:
        attached: all tensors that are attached as the engine has them, by identity.
        """
        live = {**vars(self.module)["_parameters"], **vars(self.module)["_buffers"]}
        moving = {
            storage_of(tensor) for tensor in attached.values() if tensor.device.type == "cpu"
        }
        for name, tensor in self._loaded.items():
            self._kept[name] = tensor if tensor.device.type != "meta" else filled_like(tensor, device_of(live))
        values = {name: bytes_of(tensor).clone() for name, tensor in self._kept.items()}
        before = self._before = HeldState(self.module, self._layers)
        with self._neutral(before), self._processed(twin_of):
            after = HeldState(self.module, self._layers)
            unchanged = {n for n, tensor in self._kept.items() if bytes_of(tensor).equal(values[n])}
            passed = {
                name
                for name in unchanged
                if self._is_passed(name, live.get(name), before.tensors, after.tensors)
            }
            self._require_fits(before, after)
            for path, tensor in after.tensors.items():
                old = before.tensors.get(path)
                if old is None or self._is_passed_on(old, tensor, live, passed):
                    continue
                if may_be_addresses(tensor):
                    continue  # these do not depend on weights
                # Attaching moves the memory of tensors on the host, but not of other tensors made
                # from it.
                follows = old.device.type != "cpu" or id(old) in attached
                if not (same_place(old, tensor) and (follows or storage_of(old) not in moving)):
                    self._made.append(path)
        self.updated += [before.tensors[path] for path in self._made]
        self._kept.update((name, live[name]) for name in passed)
        self.kept_bytes = sum(
            tensor.numel() * tensor.element_size()
            for name, tensor in self._kept.items()
            if tensor is not live.get(name)
        )

    @contextlib.contextmanager
    def _neutral(self, before: HeldState) -> Iterator[None]:
        """A block after which the engine's tensors have the same elements as before."""
        # On the host: a device may have no room for them.
        real = [tensor for tensor in before.tensors.values() if tensor.device.type != "meta"]
        elements = [(tensor, bytes_of(tensor).to("cpu", copy=True)) for tensor in real]
        written = []
        try:
            yield
        finally:
            for tensor, was in elements:
                if not bytes_of(tensor).cpu().equal(was):
                    written.append(tensor)
                    tensor.data.copy_(was.view(tensor.dtype).reshape(tensor.shape))
        self.updated += written
        # Derived tensors are made from the engine's tensors.
        if self.derives and written:
            raise LayoutError(
                f"layer '{self.name}' ({type(self.module).__name__}): processing it again makes other elements of "
                f"{list(written[0].shape)} than the engine has: it was not made like this. Choose another kernel or "
                "backend for it, or pass hooks= that rebuild it"
            )

    def _is_passed(self, name: str, live: Any, before: Mapping[Path, Any], after: Mapping[Path, Any]) -> bool:
        """Returns whether processing leaves it as it is, and all that the engine has in its place
        is one tensor."""
        kept = self._kept[name]
        own = [path for path in ((table, name) for table in _TABLES) if path in after]
        if live is None or not own or not (same_place(after[own[0]], kept) and alike(live, kept)):
            return False
        for path, tensor in after.items():
            if not shares_storage(tensor, kept):
                continue
            old = before.get(path)
            if old is None or not same_place(tensor, kept) or not same_place(old, live):
                return False
            # Attaching moves tensors on the host, by the parameter.
            if live.device.type == "cpu" and old is not live:
                return False
        return True

    def _is_passed_on(self, old: Any, new: Any, live: Mapping[str, Any], passed: set[str]) -> bool:
        """Returns whether it is the loaded tensor, which a commit writes."""
        if not new.numel():
            return True
        return any(same_place(new, self._kept[n]) and same_place(old, live[n]) for n in passed)

    def _require_fits(self, before: HeldState, after: HeldState) -> None:
        def refuse(path: Path, what: str) -> LayoutError:
            return LayoutError(
                f"layer '{self.name}' ({type(self.module).__name__}): processing what was loaded again {what} "
                f"in '{'.'.join(path)}': what the engine has now cannot be kept up to date. Choose another "
                "kernel or backend for it, or pass hooks= that rebuild it"
            )

        for path, new in after.tensors.items():
            old = before.tensors.get(path)
            if old is None:
                if new.numel():
                    raise refuse(path, f"makes {new.dtype} {list(new.shape)}, which it did not have,")
            elif not alike_for_copy(old, new):
                raise refuse(
                    path,
                    f"makes {new.dtype} {list(new.shape)} for {old.dtype} {list(old.shape)}",
                )
            elif may_be_addresses(new) and not any(shares_storage(new, kept) for kept in self._kept.values()):
                if bytes_of(new).equal(bytes_of(old)):
                    continue
                raise refuse(path, f"makes other numbers of {new.dtype}, which may be addresses,")
        for path, old in before.tensors.items():
            if path not in after.tensors and old.numel():
                raise refuse(path, f"no longer makes {old.dtype} {list(old.shape)}")
        for path in changed_values(before.values, after.values):
            raise refuse(
                path, f"makes {shown(after.values.get(path))} of {shown(before.values.get(path))}"
            )

    def _copies(self) -> Iterator[tuple[Any, Any]]:
        """Yields what processing makes, with the engine's tensor for it."""
        held = [tensor_at(self.module, path) for path in self._made]
        # Processing may work in place, and the kept tensors must stay those of the version.
        with self._processed(copy_of):
            for path, old in zip(self._made, held):
                new = tensor_at(self.module, path)
                if new is None or old is None or not alike_for_copy(old, new):
                    raise LayoutError(
                        f"layer '{self.name}': processing makes another '{'.'.join(path)}' than at the attach"
                    )
                yield new, old

    def rebuild(self) -> None:
        for new, old in self._copies():
            old.data.copy_(new)

    def differs(self) -> bool:
        return any(not bytes_of(new).equal(bytes_of(old)) for new, old in self._copies())


def _skeleton(module: Any, layers: Mapping[int, _Layer], made: dict[int, Any]) -> Any:
    """A module with the same names and tensors, except those that are kept in another form. Tables
    are the module's own, so that tensors that move are found."""
    if id(module) in made:
        return made[id(module)]
    torch: Any = importlib.import_module("torch")
    bones = made[id(module)] = torch.nn.Module()
    layer = layers.get(id(module))
    tables = layer.tables() if layer is not None else {t: vars(module)[t] for t in _TABLES}
    vars(bones).update(tables)
    vars(bones)["_non_persistent_buffers_set"] = module._non_persistent_buffers_set
    for name, child in module._modules.items():
        bones._modules[name] = None if child is None else _skeleton(child, layers, made)
    return bones
