"""A Megatron rank's weights as they are registered and published (resident_shares): tensors of the checkpoint that are
whole in one parameter, as it has them, or put together from several."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from dws.arrays import require_plain
from dws.declare.fused import Piece
from dws.declare.megatron import MegatronTensors
from dws.errors import DTypeError, LayoutError, StateError
from dws.trainer import Trainer
from dws.trainers.published_types import PublishedTypes
from dws.trainers.resident_shares import ResidentShares, ShareMemory, Source
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
        self._resident = ResidentShares({})

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

    @property
    def memory(self) -> ShareMemory:
        return self._resident.memory

    def register(
        self,
        trainer: Trainer,
        shares: Mapping[str, Share],
        timeout: float,
        on_device: bool = True,
        lists: bool = False,
    ) -> None:
        """See ModuleWeights.register."""
        self._shares = shares
        self._resident = ResidentShares(shares, on_device)
        self._resident.register(trainer, self._sources(), timeout, lists)

    def refresh(self) -> None:
        """Puts the current weights where the sender reads them. Call it before each version.

        Raises:
          StateError: the trainer's tensors are not those that were registered, by name.
        """
        try:
            self._resident.refresh(self._sources())
        except LayoutError as error:
            raise StateError(str(error)) from None

    def _sources(self) -> dict[str, Source]:
        """What the trainer has of each share now.

        Raises:
          LayoutError: as _now.
        """
        now = self._now()
        found = {}
        for name, share in self._shares.items():
            pieces = [
                (source.piece, now[source.chunk][source.name].detach())
                for source in self._tensors.held[name].sources
            ]
            found[name] = _source(pieces, share)
        return found


def _source(pieces: Sequence[tuple[Piece, Any]], share: Share) -> Source:
    """Args:
    pieces: each with its parameter.
    """

    def write(view: Any) -> None:
        for piece, parameter in pieces:
            copy_piece(piece, parameter, view, share)

    within = [(mine, own) for piece, own in pieces if (mine := _of_share(piece, share))]
    whole = whole_in(*within[0], share) if len(within) == 1 else None
    return Source(pieces[0][1], whole, write)


def whole_in(mine: Piece, parameter: Any, share: Share) -> Optional[Any]:
    """Returns the share as a view of the parameter; None: the piece lacks elements of it.

    Args:
      mine: what the share has of a piece.
    """
    extents = [end - begin for begin, end in share.ranges]
    if [len(place) for place in mine.place] != extents:
        return None
    found = _turned(mine, parameter)
    for dim, axis in enumerate(mine.axes):
        if axis is None:
            found = found.unsqueeze(dim)
    return found


def _of_share(piece: Piece, share: Share) -> Optional[Piece]:
    mine: Optional[Piece] = piece
    for dim, (begin, end) in enumerate(share.ranges):
        mine = mine and mine.within(dim, begin, end)
    return mine


def _turned(piece: Piece, parameter: Any) -> Any:
    """The piece, as a view with the canonical tensor's order of dimensions, without those of which it has one index."""
    part = parameter[tuple(slice(own.start, own.stop) for own in piece.own)]
    return part.permute([axis for axis in piece.axes if axis is not None])


def copy_piece(piece: Piece, parameter: Any, view: Any, share: Share) -> None:
    """Copies what a share has of a piece.

    Args:
      view: of the share's part of the canonical tensor.
    """
    mine = _of_share(piece, share)
    if mine is None:
        return
    at: list[Any] = []
    for (begin, _), place, axis in zip(share.ranges, mine.place, mine.axes):
        first = place.start - begin
        at.append(
            first if axis is None else slice(first, first + len(place) * place.step, place.step)
        )
    view[tuple(at)].copy_(_turned(mine, parameter))
