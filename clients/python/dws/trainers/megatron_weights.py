"""A Megatron rank's weights as they are registered and published: what it publishes of the checkpoint's tensors is
gathered from its parameters into shared memory before each version."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from dws.arrays import require_plain
from dws.declare.fused import Piece
from dws.declare.megatron import MegatronTensors
from dws.dtypes import loaded_torch
from dws.errors import DTypeError, LayoutError, StateError
from dws.trainer import Trainer
from dws.trainers.published_types import PublishedTypes
from dws.trainers.shares import Declarations, Declared, Share


class MegatronWeights:
    """Lifecycle: as ModuleWeights.

    Attributes:
      declared: the parts that this process has, by name.
    """

    def __init__(
        self,
        tensors: MegatronTensors,
        cuts: Optional[Mapping[str, Any]] = None,
        types: PublishedTypes = PublishedTypes(),
    ) -> None:
        """Args:
          cuts: for the engines; those of tensors that this process does not have are of other processes.
          types: of weights where they are published.

        Raises:
          DTypeError, LayoutError: a weight that a layout cannot express, by name.
        """
        self._tensors = tensors
        now = self._now(may_be_meta=True)
        self.declared = {}
        for name, held in tensors.held.items():
            found = {source.name: now[source.chunk][source.name] for source in held.sources}
            if len({tensor.dtype for tensor in found.values()}) > 1:
                raise DTypeError(
                    f"'{name}' is made of tensors of several types, "
                    f"{ {n: str(tensor.dtype) for n, tensor in found.items()} }: expected one"
                )
            dtype = types.of(name, next(iter(found.values())), keeps=False)
            self.declared[name] = Declared.of(name, dtype, held.tensor.shape, held.ranges, cuts)
        self._shares: Mapping[str, Share] = {}
        self._views: dict[str, Any] = {}

    def _now(self, may_be_meta: bool = False) -> list[Mapping[str, Any]]:
        """The trainer's tensors.

        Args:
          may_be_meta: takes those on the meta device, which have types and shapes.

        Raises:
          LayoutError: as MegatronTensors.tensors; or as require_plain.
        """
        now = self._tensors.tensors()
        for held in self._tensors.held.values():
            for source in held.sources:
                tensor = now[source.chunk][source.name]
                if not (may_be_meta and tensor.is_meta):
                    require_plain(source.name, tensor)
        return now

    def meet(self, declared: Declarations) -> None:
        """Args:
          declared: by all processes.

        Raises:
          LayoutError: they are not all of the model.
        """
        missing = self._tensors.model.missing({name for each in declared for name in each})
        if missing:
            raise LayoutError(
                f"no process has {len(missing)} tensors of the model, such as '{missing[0]}': expected all ranks, each with "
                "its own place in Parallel"
            )

    def register(self, trainer: Trainer, shares: Mapping[str, Share], timeout: float) -> None:
        """See ModuleWeights.register."""
        self._now()
        self._shares = shares
        specs = [share.spec for share in shares.values()]
        cells = {name: share.cells for name, share in shares.items()}
        self._views = trainer.register(specs, shards=cells, views="torch", timeout=timeout)

    def refresh(self) -> None:
        """Puts the current weights where the sender reads them. Call it before each version.

        Raises:
          StateError: the trainer's tensors are not those that were registered, by name.
        """
        torch = loaded_torch()
        assert torch is not None
        try:
            now = self._now()
        except LayoutError as error:
            raise StateError(str(error)) from None
        with torch.no_grad():
            for name, view in self._views.items():
                for source in self._tensors.held[name].sources:
                    copy_piece(
                        source.piece, now[source.chunk][source.name], view, self._shares[name]
                    )


def copy_piece(piece: Piece, parameter: Any, view: Any, share: Share) -> None:
    """Copies what a share has of a piece.

    Args:
      view: of the share's part of the canonical tensor.
    """
    mine: Optional[Piece] = piece
    for dim, (begin, end) in enumerate(share.ranges):
        mine = mine and mine.within(dim, begin, end)
    if mine is None:
        return
    part = parameter[tuple(slice(own.start, own.stop) for own in mine.own)]
    turned = part.permute([axis for axis in mine.axes if axis is not None])
    at: list[Any] = []
    for (begin, _), place, axis in zip(share.ranges, mine.place, mine.axes):
        first = place.start - begin
        at.append(
            first if axis is None else slice(first, first + len(place) * place.step, place.step)
        )
    view[tuple(at)].copy_(turned)
