"""Publishes weights that a framework gathers and streams, (name, tensor) after (name, tensor).

It has the methods of the `weight_transfer` of TRL's AsyncGRPOTrainer, which calls them on process 0:

AsyncGRPOTrainer(model, ..., weight_transfer=WeightTransfer("/run/dws/sender-0.sock", "run7", model=model))

With the model, its weights have the names of its checkpoint, as Publisher gives them (dws.trainers.module_weights).
Other frameworks that gather their weights for the engines call `send_weights` in the place of their own
transfer (docs/trainers.md).
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, Sequence, Union

from dws.arrays import require_plain, spec_of
from dws.declare.pieces import Piece
from dws.errors import StateError
from dws.layout import TensorSpec
from dws.results import require_all
from dws.stream import Stream
from dws.torch_module import canonical_name
from dws.trainer import Trainer
from dws.trainers.flat_tensors import module_tensors
from dws.trainers.module_weights import checkpoint_parts

WAIT_SECONDS = 600.0


class WeightTransfer:
    """Versions count from 1, as `model_version` of AsyncGRPOTrainer and `weight_version` of slime do.

    Weights pass through a ring, and are never all in memory at once, except for the first version:
    the set of tensors is known only after that version, so it is kept in host memory until it is
    published.

    Lifecycle: one training. Threads: one at a time.
    """

    def __init__(
        self,
        socket: str,
        job_id: str,
        policy: Union[str, int] = "all",
        timeout: float = WAIT_SECONDS,
        cuts: Optional[Mapping[str, Any]] = None,
        rank: int = 0,
        world_size: int = 1,
        stream: Optional[Stream] = None,
        model: Any = None,
    ) -> None:
        """Args:
        socket, job_id: of the sender.
        policy: receivers that must have committed a version before `send_weights` returns; see
          Trainer.wait.
        timeout: seconds for that; then it raises NotCommittedError. So it does at once if "all" has
          left out a receiver that is connected (WaitResult).
        cuts: for engines that hold slices; see Trainer.register.
        rank, world_size, stream: of this process among those that publish; see Trainer. Each has
          a sender and streams whole tensors that no other one streams, such as its pipeline stage.
        model: the torch module whose weights are streamed under its own names; None: they are published under the names
          that they are streamed with.
        """
        self._model = model
        self._pieces: Optional[Mapping[str, Sequence[Piece]]] = None
        self._shapes: Mapping[str, tuple[int, ...]] = {}
        self._trainer = Trainer(socket, job_id, rank, world_size, stream)
        self._policy = policy
        self._timeout = timeout
        self._cuts = cuts
        self._specs: Optional[dict[str, TensorSpec]] = None

    @property
    def last_version(self) -> int:
        """The version that was published last; 0: none."""
        return self._trainer.last_version

    def init_weight_transfer(self) -> None:
        """Nothing: the tensors are not known yet."""

    def pause(self) -> None:
        """Nothing: an attached engine pauses itself for a commit, between two steps."""

    def resume(self) -> None:
        """Nothing."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Publishes the weights, and returns when receivers have committed them.

        Args:
          iterator: of (name, whole tensor).

        Raises:
          StateError: it has other tensors than the first time, or one that is not the model's, by name.
          LayoutError: a tensor is a wrapper, or without memory of its own, by name; or as Publisher.register, for the model.
          The errors of Trainer.version and Trainer.wait.
        """
        iterator = self._named(iterator)
        tensors: Any = iterator
        if self._specs is None:
            tensors = []
            for name, tensor in iterator:
                require_plain(name, tensor)
                tensors.append((name, tensor.detach().to("cpu", copy=True)))
            specs = {name: spec_of(name, tensor) for name, tensor in tensors}
            self._trainer.register_ring(list(specs.values()), cuts=self._cuts)
            self._specs = specs
        number = self._trainer.last_version + 1
        left = dict(self._specs)
        with self._trainer.version(number) as version:
            for name, tensor in tensors:
                if left.pop(name, None) is None:
                    raise StateError(f"'{name}' was not among the weights of the first version")
                require_plain(name, tensor)
                version.put(name, tensor.detach().contiguous())
            if left:
                raise StateError(
                    f"version {number} lacks {len(left)} weights, such as '{min(left)}'"
                )
        require_all(
            number, self._policy, self._trainer.wait(number, self._policy, self._timeout)
        )

    def _named(self, iterator: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """The weights under the names that are published."""
        if self._model is None:
            yield from iterator
            return
        if self._pieces is None:
            tensors = module_tensors(self._model)
            own = checkpoint_parts(self._model, tensors)
            self._pieces = {canonical_name(name): pieces for name, pieces in own.items()}
            self._shapes = {canonical_name(name): tuple(tensors[name].shape) for name in own}
        for name, tensor in iterator:
            pieces = self._pieces.get(canonical_name(name))
            if pieces is None:
                raise StateError(
                    f"'{name}' is not among the model's weights, such as '{next(iter(self._pieces), '')}': pass the model "
                    "whose weights are streamed"
                )
            require_plain(name, tensor)
            shape = self._shapes[canonical_name(name)]
            if tuple(tensor.shape) != shape:
                raise StateError(f"'{name}' has shape {list(tensor.shape)}, expected {list(shape)} as in the model that was passed")
            for piece in pieces:
                yield piece.name, piece.view(tensor)

    def destroy(self) -> None:
        """Ends the registration."""
        self._trainer.close()
