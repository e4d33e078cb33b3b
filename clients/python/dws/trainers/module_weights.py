"""A module's weights in the form in which this process registers and publishes them.

If this process publishes all of them whole, and they keep their element type and have memory of their own,
the module and the sender share memory: those of the host become views of shared memory, by
`param.data = view`, so the optimizer keeps its parameters; those of CUDA devices stay where they are.
Otherwise each share has a place of its own (resident_shares): on its device, or in shared memory into which it is copied
before each version. Shares are the parts of sharded tensors, which the framework has in buffers of its own, parts of whole
ones, views of larger memory, which an optimizer may update as a whole, and casts. Rows that FSDP1 and ZeRO-3 have cut are
put together (flat_exchange).

Names are those of the checkpoint: what transformers' own conversion gives for its models (dws.declare.conversion), such as one
weight for each expert of a stacked tensor; all other tensors keep their names, without those of wrappers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping, Optional

from dws.arrays import local_of, require_plain
from dws.declare.conversion import converted
from dws.declare.module_tensors import ModuleTensors, places_of
from dws.declare.pieces import Piece as Part
from dws.device_tensor import is_on_device
from dws.dtypes import DType, loaded_torch
from dws.errors import LayoutError, StateError
from dws.layout import TensorSpec
from dws.torch_module import WRAPPERS, canonical_name, is_module, named_tensors
from dws.trainer import Trainer
from dws.trainers.flat_exchange import FlatExchange, Piece, flat_source, rows_begun
from dws.trainers.flat_tensors import FlatTensor, module_tensors
from dws.trainers.placement import Ranges, ranges_of
from dws.trainers.published_types import PublishedTypes, kept_by_model
from dws.trainers.resident_shares import ResidentShares, ShareMemory, Source
from dws.trainers.shares import Declarations, Declared, Share


@dataclasses.dataclass(frozen=True)
class _Weight:
    """Attributes:
    own_name: the module's name for the tensor that it is a part of, wrappers included.
    part: which part.
    sharded: true if the tensor is a DTensor.
    local_shape: the shape of this process's part of the tensor.
    begins: for each dimension of that, the place in it of the weight's first element; negative if other processes have it.
    flat: FlatTensor.place of a tensor that is cut flat.
    """

    declared: Declared
    own_name: str
    part: Part
    sharded: bool = False
    local_shape: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()
    flat: Optional[tuple[Any, ...]] = None

    def local(self, tensor: Any, spec: TensorSpec) -> Any:
        """This process's part of the tensor, now; the same for all weights that are parts of it.

        Args:
          tensor: the module's, now.
          spec: of the weight, for errors.

        Raises:
          StateError: the framework has gathered or replaced the weight, or it is not its memory now.
        """
        if self.sharded and not hasattr(tensor, "placements"):
            raise StateError(
                f"{spec} was sharded when it was registered, and is not now: publish after the "
                "optimizer step, while the framework has no gathered weights"
            )
        try:
            local = local_of(spec.name, tensor)
        except LayoutError as error:
            raise StateError(f"{error}; it was plain when it was registered") from None
        if tuple(local.shape) != self.local_shape:
            raise StateError(
                f"{spec}: this process had {list(self.local_shape)} of it when it was registered, and "
                f"has {list(local.shape)} now"
            )
        return local

    def index(self, share: Share) -> Optional[tuple[Any, ...]]:
        """The index of the share's elements in this process's part of the tensor; None: it has none of them."""
        if not self.local_shape:
            return ()
        if not share.size_bytes:
            return None
        index: list[Any] = list(self.begins)
        for dim, (begin, end) in zip(self.part.dims(self.local_shape), share.ranges):
            index[dim] = slice(self.begins[dim] + begin, self.begins[dim] + end)
        return tuple(index)


def checkpoint_parts(module: Any, tensors: Mapping[str, Any]) -> dict[str, list[Part]]:
    """What is published of each tensor of a module, by its own name.

    Args:
      tensors: of module_tensors.

    Raises:
      LayoutError: the checkpoint has something else than parts of a tensor, or a tensor has no shape; by name.
    """
    for own_name, tensor in tensors.items():
        require_plain(canonical_name(own_name), tensor, values=False)
    found = {own: [Part(canonical_name(own))] for own in tensors}
    found.update(converted(module, tensors))
    return found


class ModuleWeights:
    """Lifecycle: made from a module whose devices and sharding are final; register once.

    Attributes:
      declared: the parts that this process has, by name.
    """

    def __init__(
        self,
        module: Any,
        cuts: Optional[Mapping[str, Any]] = None,
        types: PublishedTypes = PublishedTypes(),
    ) -> None:
        """Args:
          module: a torch module, also in torch.compile's wrapper, in DistributedDataParallel or in DeepSpeed's engine.
          cuts: for the engines; see Trainer.register.
          types: of weights where they are published.

        Raises:
          LayoutError, DTypeError: a weight that a layout cannot express, by name.
        """
        self._module = _plain(module)
        self._weights: dict[str, _Weight] = {}
        self._cuts = dict(cuts or {})
        tensors = module_tensors(self._module)
        parameters = {name for name, _ in self._module.named_parameters()}
        self._parts = checkpoint_parts(self._module, tensors)
        names = {own: canonical_name(own) for own in tensors}
        kept = kept_by_model(self._module, types.dtype, names.values())
        for name, (own_name, part) in places_of(self._parts).items():
            tensor, is_buffer = tensors[own_name], own_name not in parameters
            is_buffer = is_buffer and not isinstance(tensor, FlatTensor)
            dtype = types.of(name, tensor, is_buffer or names[own_name] in kept)
            self._weights[name] = self._weight(part, own_name, tensor, dtype, not is_buffer)
        # A process that does not have a scalar cannot say so by ranges.
        self.declared = {
            name: weight.declared
            for name, weight in self._weights.items()
            if weight.declared.spec.shape or weight.declared.flat != (0, 0)
        }
        self._is_flat = any(weight.flat for weight in self._weights.values())
        self._exchange: Optional[FlatExchange] = None
        self._copied = any(
            weight.sharded
            or weight.flat
            or (weight.part.index and weight.part.elements(weight.local_shape) is None)
            or weight.declared.spec.dtype is not DType.of(tensors[weight.own_name].dtype)
            for weight in self._weights.values()
        ) or _share_memory(tensors.values())
        self._shares: Mapping[str, Share] = {}
        self._index: dict[str, Optional[tuple[Any, ...]]] = {}  # of each share; see _Weight.index
        self._views: dict[str, Any] = {}  # if nothing is copied
        self._held: dict[str, Any] = {}  # the module's tensors then
        self._strides: dict[str, tuple[int, ...]] = {}  # of these in shared memory
        self._resident: Optional[ResidentShares] = None

    def _weight(
        self, part: Part, own_name: str, tensor: Any, dtype: DType, divisible: bool
    ) -> _Weight:
        if isinstance(tensor, FlatTensor):
            tensor = tensor.part(own_name, part)
            ranges = rows_begun(tensor.shape, tensor.held)
            declared = Declared.of(part.name, dtype, tensor.shape, ranges, self._cuts)
            declared = dataclasses.replace(
                declared, flat=tensor.held, flat_on_device=is_on_device(tensor.elements)
            )
            return _Weight(declared, own_name, part, flat=tensor.place)
        whole = tuple(int(extent) for extent in tensor.shape)
        held = ranges_of(own_name, tensor)
        ranges = _of_part(part, whole, held)
        declared = Declared.of(part.name, dtype, part.shape(whole), ranges, self._cuts, divisible)
        sharded = hasattr(tensor, "placements")
        local = tensor.to_local() if sharded else tensor
        begins = tuple(at - own for (at, _), (own, _) in zip(part.box(whole), held))
        return _Weight(declared, own_name, part, sharded, tuple(local.shape), begins)

    def meet(self, declared: Declarations) -> None:
        """Args:
          declared: by all processes.

        Raises:
          LayoutError: the ranges that they have of a tensor do not follow each other.
        """
        if self._is_flat:
            self._exchange = FlatExchange(declared)

    @property
    def memory(self) -> ShareMemory:
        """Where the sender reads what is registered."""
        if self._resident is not None:
            return self._resident.memory
        return ShareMemory(sum(share.size_bytes for share in self._shares.values()))

    def register(
        self,
        trainer: Trainer,
        shares: Mapping[str, Share],
        timeout: float,
        on_device: bool = True,
        lists: bool = False,
    ) -> None:
        """Registers the weights that this process publishes.

        Args:
          shares: the shares of this process, by name.
          on_device: see ResidentShares.
          lists: see Trainer.register.

        Raises:
          The errors of Trainer.register.
        """
        self._shares = shares
        self._index = {
            name: weight.index(shares[name])
            for name, weight in self._weights.items()
            if name in shares and not weight.flat
        }
        whole = set(shares) == set(self._weights) and all(s.whole for s in shares.values())
        self._copied = self._copied or not whole
        if self._copied:
            tensors = module_tensors(self._module)
            own = {name: [piece] for name, piece in self._own_pieces(tensors).items()}
            self._resident = ResidentShares(shares, on_device)
            self._resident.register(trainer, self._sources(tensors, own), timeout, lists)
            return
        self._held = named_tensors(self._module)
        parts = ModuleTensors(self._module, self._parts)
        cuts = {name: share.spec.cuts for name, share in shares.items()}
        self._views = trainer.register(parts, cuts=cuts, views="torch", timeout=timeout, lists=lists)
        parts.bind(self._views)
        self._strides = {name: tuple(tensor.stride()) for name, tensor in self._held.items()}

    def refresh(self) -> None:
        """Puts the current weights where the sender reads them. Call it before each version, with FSDP1 and ZeRO-3 on
        all processes.

        Raises:
          StateError: a weight is not as it was registered, by name.
        """
        try:
            tensors = module_tensors(self._module)
        except LayoutError as error:
            raise StateError(str(error)) from None
        changed = sorted(set(tensors) ^ set(self._parts))
        if changed:
            raise StateError(
                f"the module has other weights than when it was registered, such as '{changed[0]}': do "
                "not add, remove or tie weights during the training"
            )
        own = self._own_pieces(tensors)
        if self._resident is None:
            self._require_unmoved(tensors)
            return

        pieces = self._exchange.run(own) if self._exchange else {}
        self._resident.refresh(self._sources(tensors, pieces))

    def _require_unmoved(self, tensors: Mapping[str, Any]) -> None:
        """Raises StateError if a weight is not in the memory that the sender reads. The parts of one tensor moved there
        together: if one of them is in its place, all are."""
        parts: dict[str, str] = {}
        for name in self._views:
            parts.setdefault(self._weights[name].own_name, name)
        # A tensor of a device may have moved: the next publish registers its new place.
        names = [
            name
            for own_name, name in parts.items()
            if not (is_on_device(tensors[own_name]) and tensors[own_name] is self._held[own_name])
        ]
        for name, mine in self._current(tensors, names).items():
            view, own_name = self._views[name], self._weights[name].own_name
            strides = tuple(tensors[own_name].stride())
            place = mine.device, mine.data_ptr(), strides
            if place != (view.device, view.data_ptr(), self._strides[own_name]):
                raise StateError(
                    f"{self._shares[name].spec} has moved to other memory since it was registered: do not "
                    "convert, move or replace weights during the training"
                )

    def _current(self, tensors: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        """The elements that this process publishes of these weights, now.

        Args:
          tensors: the module's, now.

        Raises:
          As _Weight.local.
        """
        torch = loaded_torch()
        assert torch is not None
        found: dict[str, Any] = {}
        parts: dict[str, Any] = {}
        with torch.no_grad():
            for name in names:
                weight, share, index = self._weights[name], self._shares[name], self._index[name]
                local = parts.get(weight.own_name)
                if local is None:
                    local = weight.local(tensors[weight.own_name], share.spec)
                    parts[weight.own_name] = local
                if index is None:
                    found[name] = local.new_empty([end - begin for begin, end in share.ranges])
                else:
                    found[name] = local[index]
        return found

    def _sources(
        self, tensors: Mapping[str, Any], pieces: Mapping[str, list[Piece]]
    ) -> dict[str, Source]:
        """What the module has of each share.

        Args:
          pieces: of the flat-cut ones, by name; the first is this process's own.
        """
        whole = self._current(tensors, (name for name in self._shares if name not in pieces))
        found = {name: Source.of(tensor) for name, tensor in whole.items()}
        for name in pieces:
            if name in self._shares:
                found[name] = flat_source(pieces[name], self._shares[name])
        return found

    def _own_pieces(self, tensors: Mapping[str, Any]) -> dict[str, Piece]:
        """What this process has of the flat-cut weights, by name.

        Args:
          tensors: the module's, now.

        Raises:
          StateError: it has another place than when it was registered.
        """
        own: dict[str, Piece] = {}
        if not self._is_flat and not any(isinstance(each, FlatTensor) for each in tensors.values()):
            return own
        for name, weight in self._weights.items():
            tensor = tensors[weight.own_name]
            found = None
            if isinstance(tensor, FlatTensor):
                found = tensor.part(weight.own_name, weight.part)
            place = found and found.place
            if place != weight.flat:
                raise StateError(
                    f"{weight.declared.spec} had the place {weight.flat} in flat memory when it was registered, and has "
                    f"{place} now: do not wrap, convert or replace weights during the training"
                )
            if found is not None:
                own[name] = (found.held[0], found.elements)
        return own


def _of_part(part: Part, shape: tuple[int, ...], held: Ranges) -> Ranges:
    """What a process has of a part of a tensor, of which it has `held`.

    Raises:
      LayoutError: it is one number, which a process cannot be without.
    """
    if not part.index:
        return held
    ranges = part.held(shape, held)
    if ranges is not None and all(begin < end for begin, end in ranges):
        return ranges
    if not part.shape(shape):
        raise LayoutError(f"'{part.name}' is one number of a sharded tensor: expected dimensions")
    return tuple((0, 0) for _ in part.shape(shape))


def _share_memory(tensors: Iterable[Any]) -> bool:
    """Returns whether a tensor of the host is only a part of its memory, or two of them have the
    same."""
    seen = set()
    for tensor in tensors:
        if hasattr(tensor, "placements") or tensor.device.type != "cpu" or not tensor.numel():
            continue
        # untyped_storage: since torch 2.
        storage = (
            tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        )
        if storage.nbytes() != tensor.numel() * tensor.element_size() or storage.data_ptr() in seen:
            return True
        seen.add(storage.data_ptr())
    return False


def _plain(module: Any) -> Any:
    """The module whose weights are published, without wrappers.

    Raises:
      LayoutError: it is not a torch module, or its weights are not those that engines need.
    """
    if not is_module(module):
        raise LayoutError(f"expected a torch module, found a {type(module).__name__}")
    if type(module).__name__ in WRAPPERS:
        module = module.module
    if hasattr(module, "peft_config"):
        raise LayoutError(
            "the model has adapters (peft_config): publish one by itself, to engines that have loaded it, with adapter= of "
            "Publisher or PublishCallback; or publish merged weights, after merge_and_unload(), or let AsyncGRPOTrainer merge them "
            "for dws.trainers.weight_transfer"
        )
    return module
