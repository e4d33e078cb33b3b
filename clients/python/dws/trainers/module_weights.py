"""A module's weights as this process registers and publishes them.

If all of them are whole and keep their element type, the module and the sender share memory: those of
the host become views of shared memory, by `param.data = view`, so the optimizer keeps its parameters;
those of CUDA devices stay where they are. Otherwise they are copied into shared memory before each
version: the parts of sharded tensors, which the framework has in buffers of its own, and casts.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional

from dws.dtypes import DType, loaded_torch
from dws.errors import DTypeError, LayoutError, StateError
from dws.layout import Cut, TensorSpec
from dws.torch_module import Holder, bind, holders, is_module
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
    holder: Holder

    @property
    def tensor(self) -> Any:
        held, key = self.holder
        return held[key]

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

    def part(self) -> Any:
        """The elements that this process has now.

        Raises:
          StateError: the framework has gathered or replaced the weight.
        """
        tensor = self.tensor
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
          LayoutError, DTypeError: a weight that a layout cannot express, by name.
        """
        self._module = _plain(module)
        wanted = cuts_by_name(cuts)
        self._weights: dict[str, _Weight] = {}
        self._copied = False
        for own_name, holder in holders(self._module).items():
            if "_fsdp_wrapped_module" in own_name.split("."):
                raise LayoutError(f"'{own_name}' is in a wrapper of FSDP1: use FSDP2 (fully_shard)")
            name = ".".join(part for part in own_name.split(".") if part not in _WRAPPERS)
            self._weights[name] = self._declared(name, own_name, holder, wanted.get(name), dtype)
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
        self._views: dict[str, Any] = {}

    def _declared(
        self, name: str, own_name: str, holder: Holder, wanted: Optional[Cut], dtype: Any
    ) -> _Weight:
        tensor = holder[0][holder[1]]
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
        return _Weight(spec, placement, own_name, holder)

    def register(self, trainer: Trainer, timeout: float) -> None:
        """Registers what the trainer's rank owns.

        Raises:
          LayoutError: it owns nothing.
          As Trainer.register.
        """
        owned = {name: weight.slices_of(trainer.rank) for name, weight in self._weights.items()}
        shards = {name: slices for name, slices in owned.items() if slices is not None}
        if not shards:
            raise LayoutError(
                f"rank {self.rank} of {self.ranks} has no element of any weight: shard over fewer "
                "processes"
            )
        if self._copied:
            specs = [self._weights[name].spec for name in shards]
            self._views = trainer.register(specs, shards=shards, views="torch", timeout=timeout)
            return
        tensors = {name: weight.tensor for name, weight in self._weights.items()}
        cuts = {name: weight.cut for name, weight in self._weights.items()}
        self._views = trainer.register(tensors, cuts=cuts, views="torch", timeout=timeout)
        bind(self._module, {self._weights[k].own_name: view for k, view in self._views.items()})

    def refresh(self) -> None:
        """Puts the current weights where the sender reads them. Call it before each version.

        Raises:
          StateError: a weight is not as it was registered, by name.
        """
        torch = loaded_torch()
        assert torch is not None
        with torch.no_grad():
            for name, view in self._views.items():
                weight = self._weights[name]
                part = weight.part()
                if part.shape != view.shape:
                    raise StateError(
                        f"{weight.spec}: this process registered {list(view.shape)} of it, and has "
                        f"{list(part.shape)} now"
                    )
                if self._copied:
                    view.copy_(part)
                elif part.device != view.device or part.data_ptr() != view.data_ptr():
                    self._refuse_moved(weight)

    @staticmethod
    def _refuse_moved(weight: _Weight) -> None:
        if weight.tensor.is_cuda:
            return  # registered at its new place by the next publish
        raise StateError(
            f"{weight.spec} has moved to other memory since it was registered: do not convert, move or "
            "replace weights during the training"
        )


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
