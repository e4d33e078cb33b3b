"""A module's weights as this process registers and publishes them.

If all of them are whole, keep their element type and have memory of their own, the module and the sender
share memory: those of the host become views of shared memory, by `param.data = view`, so the optimizer
keeps its parameters; those of CUDA devices stay where they are. Otherwise they are copied into shared
memory before each version: the parts of sharded tensors, which the framework has in buffers of its own,
views of larger memory, which an optimizer may update as a whole, and casts.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping, Optional

from dws.dtypes import DType, loaded_torch
from dws.errors import DTypeError, LayoutError, StateError
from dws.layout import Cut, TensorSpec
from dws.torch_module import bind, is_module, named_tensors
from dws.trainer import Trainer
from dws.trainers.placement import (
    Placement,
    cuts_by_name,
    merged_cut,
    owned_slices,
    placement_of,
)

# What wrappers add to names; checkpoints and engines do not have it.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


@dataclasses.dataclass(frozen=True)
class _Weight:
    """Attributes:
    own_name: the module's, wrappers included.
    """

    spec: TensorSpec
    placement: Optional[Placement]
    own_name: str

    @property
    def cut(self) -> Cut:
        return Cut(self.spec.cuts, self.spec.cut_dim)

    def slices_of(self, rank: int) -> Optional[tuple[int, int]]:
        """(first slice, slice count) that the rank owns: of a sharded weight its part, and on rank 0 of
        a whole one all; None for nothing."""
        if self.placement is None:
            return (0, self.spec.slice_count) if rank == 0 else None
        if self.placement.begin == self.placement.end:
            return None
        return owned_slices(self.placement, self.cut, self.spec.shape[self.placement.dim])

    def part(self, tensor: Any) -> Any:
        """The elements that this process has now.

        Args:
          tensor: the module's, now.

        Raises:
          StateError: the framework has gathered or replaced the weight.
        """
        if self.placement is not None and not hasattr(tensor, "placements"):
            raise StateError(
                f"{self.spec} was sharded when it was registered, and is not now: publish after the "
                "optimizer step, while the framework has no gathered weights"
            )
        return tensor.to_local() if hasattr(tensor, "placements") else tensor


class ModuleWeights:
    """Lifecycle: made from a module whose devices and sharding are final; register once.

    Attributes:
      rank, ranks: of the processes over which weights are sharded; 0 of 1 if none is sharded.
    """

    def __init__(
        self, module: Any, cuts: Optional[Mapping[str, Any]] = None, dtype: Any = None
    ) -> None:
        """Args:
          module: a torch module, also in torch.compile's wrapper or in DistributedDataParallel.
          cuts: for the engines; see Trainer.register.
          dtype: which floating-point weights have where they are published; None: the module's own.

        Raises:
          LayoutError, DTypeError: a weight that a layout cannot express, by name; or this process owns
            nothing.
        """
        self._module = _plain(module)
        wanted = cuts_by_name(cuts)
        self._weights: dict[str, _Weight] = {}
        self._copied = False
        tensors = named_tensors(self._module)
        for own_name, tensor in tensors.items():
            if "_fsdp_wrapped_module" in own_name.split("."):
                raise LayoutError(f"'{own_name}' is in a wrapper of FSDP1: use FSDP2 (fully_shard)")
            name = ".".join(part for part in own_name.split(".") if part not in _WRAPPERS)
            self._weights[name] = self._declared(name, own_name, tensor, wanted.get(name), dtype)
        unknown = sorted(set(wanted) - set(self._weights))
        if unknown:
            raise LayoutError(f"cuts= names tensors that the module does not have: {unknown}")
        placed = {
            (w.placement.rank, w.placement.ranks) for w in self._weights.values() if w.placement
        }
        if len(placed) > 1:
            raise LayoutError(
                f"weights are sharded over different groups of processes: this one is {sorted(placed)} "
                "(rank, ranks) of them; use one group"
            )
        self.rank, self.ranks = placed.pop() if placed else (0, 1)
        if not self._owned():
            raise LayoutError(
                f"rank {self.rank} of {self.ranks} has no element of any weight: shard over fewer "
                "processes"
            )
        self._copied = self._copied or _share_memory(tensors.values())
        self._views: dict[str, Any] = {}

    def _declared(
        self, name: str, own_name: str, tensor: Any, wanted: Optional[Cut], dtype: Any
    ) -> _Weight:
        placement = placement_of(name, tensor)
        try:
            own = published = DType.of(tensor.dtype)
        except DTypeError as error:
            raise DTypeError(f"tensor '{name}': {error}") from None
        if dtype is not None and tensor.is_floating_point():
            published = DType.of(dtype)
        if hasattr(tensor, "placements") or published is not own:
            self._copied = True
        cut = merged_cut(name, placement, wanted) or Cut(())
        spec = TensorSpec(name, published, tuple(tensor.shape), cut.dim, cut.boundaries)
        return _Weight(spec, placement, own_name)

    def register(self, trainer: Trainer, timeout: float) -> None:
        """Registers what the trainer's rank owns.

        Raises:
          As Trainer.register.
        """
        shards = self._owned()
        if self._copied:
            specs = [self._weights[name].spec for name in shards]
            self._views = trainer.register(specs, shards=shards, views="torch", timeout=timeout)
            return
        held = named_tensors(self._module)
        tensors = {name: held[weight.own_name] for name, weight in self._weights.items()}
        cuts = {name: weight.cut for name, weight in self._weights.items()}
        self._views = trainer.register(tensors, cuts=cuts, views="torch", timeout=timeout)
        bind(self._module, {self._weights[k].own_name: view for k, view in self._views.items()})

    def _owned(self) -> dict[str, tuple[int, int]]:
        """Of this rank, by name: (first slice, slice count)."""
        owned = {name: weight.slices_of(self.rank) for name, weight in self._weights.items()}
        return {name: slices for name, slices in owned.items() if slices is not None}

    def refresh(self) -> None:
        """Puts the current weights where the sender reads them. Call it before each version.

        Raises:
          StateError: a weight is not as it was registered, by name.
        """
        torch = loaded_torch()
        assert torch is not None
        tensors = named_tensors(self._module)
        changed = sorted(set(tensors) ^ {weight.own_name for weight in self._weights.values()})
        if changed:
            raise StateError(
                f"the module has other weights than when it was registered, such as '{changed[0]}': do "
                "not add, remove or tie weights during the training"
            )
        with torch.no_grad():
            for name, view in self._views.items():
                weight = self._weights[name]
                tensor = tensors[weight.own_name]
                part = weight.part(tensor)
                if part.shape != view.shape:
                    raise StateError(
                        f"{weight.spec}: this process registered {list(view.shape)} of it, and has "
                        f"{list(part.shape)} now"
                    )
                if self._copied:
                    view.copy_(part)
                elif tensor is view:
                    continue  # of a device: if it has moved, the next publish registers its new place
                elif part.device != view.device or part.data_ptr() != view.data_ptr():
                    raise StateError(
                        f"{weight.spec} has moved to other memory since it was registered: do not "
                        "convert, move or replace weights during the training"
                    )


def _share_memory(tensors: Iterable[Any]) -> bool:
    """Whether a tensor of the host is only a part of its memory, or two of them have the same."""
    seen = set()
    for tensor in tensors:
        if hasattr(tensor, "placements") or tensor.device.type != "cpu" or not tensor.numel():
            continue
        # untyped_storage: since torch 2.
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        if storage.nbytes() != tensor.numel() * tensor.element_size() or storage.data_ptr() in seen:
            return True
        seen.add(storage.data_ptr())
    return False


def _plain(module: Any) -> Any:
    """The module whose weights are published, without wrappers.

    Raises:
      LayoutError: it is no torch module, or one whose weights are not those that engines need.
    """
    if not is_module(module):
        raise LayoutError(f"expected a torch module, found a {type(module).__name__}")
    if type(module).__name__ == "DistributedDataParallel":
        module = module.module
    if hasattr(module, "peft_config"):
        raise LayoutError(
            "the model has adapters (peft_config), and engines need merged weights: publish after "
            "merge_and_unload(), or let AsyncGRPOTrainer merge them for dws.trainers.weight_transfer"
        )
    return module
