"""A trainer rank's registration with its dws-sender: its identity, its memory, and keeping both."""

from __future__ import annotations

import os
import time
from typing import Any, Iterator, Mapping, Optional, TypeVar

from dws._proto import trainer_pb2
from dws.deadline import Deadline
from dws.declare.passed import Tensors
from dws.errors import DaemonUnavailableError, DeadlineError, InvalidArgumentError, StateError
from dws.handles import again_while_displaced
from dws.handover import Handover, resident_handover, ring_handover
from dws.layout import Cuts, RankLayout, ShardRanges
from dws.memory import ViewKind
from dws.sender_link import SenderLink
from dws.stream import Stream

REGISTER_TIMEOUT_SECONDS = 60.0
_RETRY_SECONDS = 0.05

_Self = TypeVar("_Self", bound="RegisteredTrainer")


class RegisteredTrainer:
    """The part of Trainer that registers; Trainer adds the versions.

    Lifecycle: make, register once, close (or `with`). Threads: one at a time.
    """

    def __init__(
        self,
        socket: str,
        job_id: str,
        rank: int = 0,
        world_size: int = 1,
        stream: Optional[Stream] = None,
    ) -> None:
        """Args:
          socket: the sender's --socket.
          job_id: the sender's --job-id.
          rank, world_size: of the trainer.
          stream: rank 0 may omit it (Stream.new()); the others pass rank 0's.

        Raises:
          InvalidArgumentError: the rank does not fit, or the stream is missing.
        """
        if not 0 <= rank < world_size:
            raise InvalidArgumentError(
                f"rank {rank} of world size {world_size}: expected 0 <= rank < size"
            )
        if stream is None and rank != 0:
            raise InvalidArgumentError(
                f"rank {rank} needs stream=: the one that rank 0 made with Stream.new()"
            )
        self.job_id = job_id
        self.rank = rank
        self.world_size = world_size
        self.stream = stream or Stream.new()
        self.last_version = 0
        self._link = SenderLink(socket, job_id, rank)
        self._handover: Optional[Handover] = None
        self._open_version: Optional[int] = None

    def register(
        self,
        tensors: Tensors,
        shards: Optional[ShardRanges] = None,
        cuts: Optional[Cuts] = None,
        views: Optional[ViewKind] = None,
        timeout: float = REGISTER_TIMEOUT_SECONDS,
        parts: Optional[Mapping[str, Any]] = None,
        lists: bool = False,
    ) -> dict[str, Any]:
        """Registers the rank's weights: in shared memory allocated here, or live on CUDA devices.

        Args:
          tensors: a torch module, or name -> full tensor (values are copied in; of a sharded one
            only the rank's part), or TensorSpecs (memory starts as zeros). Tensors of CUDA devices,
            row-major and contiguous, stay where they are; the sender reads them there. A module
            with stacked experts: what dws.declare.from_module gives for it.
          shards: name -> (first slice, slice count) that this rank owns; names not in it are owned
            as a whole. Omit from `tensors` those of which the rank owns nothing.
          cuts: name -> Cut, several of them on different dimensions, or boundaries on dimension 0.
            Engines attach boxes of these slices.
          views: "numpy" or "torch"; by default the kind of `tensors`, numpy for specs.
          timeout: seconds for the sender, in all.
          parts: name -> the rank's part itself, on a CUDA device, for some of the TensorSpecs in `tensors`: in
            the part's shape, row-major and contiguous. The sender reads it there; each `publish` looks in this
            mapping again.
          lists: whether `publish` may get changes=. Takes shared memory of an eighth of the weights on devices, once
            there are lists.

        Returns:
          name -> writable view of the rank's part, in the part's shape. Write to it between
          `publish` calls; `dws.bind(module, views)` makes a whole module use the views. For a
          tensor of a device, the tensor itself or its part.

        Raises:
          DTypeError, LayoutError, InvalidArgumentError: bad tensors, cuts or shards; the message
            names them.
          DaemonUnavailableError: no sender; the message says how to start it.
          DeadlineError: the sender does not answer.
          CudaError: the driver failed.
          StateError: already registered.
        """
        self._require_unregistered()
        handover, result = resident_handover(tensors, shards, cuts, views, parts, lists)
        self._register(handover, Deadline(timeout))
        return result

    def register_ring(
        self,
        tensors: Tensors,
        bucket_bytes: int = 64 << 20,
        bucket_count: int = 3,
        shards: Optional[ShardRanges] = None,
        cuts: Optional[Cuts] = None,
        timeout: float = REGISTER_TIMEOUT_SECONDS,
    ) -> None:
        """Registers weights that are handed over with `version(...)` and `put`.

        Args:
          tensors: as for `register`; values are not read.
          bucket_bytes, bucket_count: the ring takes bucket_bytes * bucket_count bytes.
          timeout: as for `register`.

        Raises:
          The errors of `register`.
        """
        self._require_unregistered()
        handover = ring_handover(tensors, shards, cuts, bucket_bytes, bucket_count)
        self._register(handover, Deadline(timeout))

    def reconnect(self, timeout: float = 30.0) -> None:
        """Registers the same memory again, in the same stream, after the sender restarted or
        stalled (SenderStalledError).

        Waits until the sender is up, and until it has released the memory of the previous
        registration. The next version continues the numbers: `last_version` is the newest one that
        the sender has.

        Raises:
          DaemonUnavailableError, DeadlineError: no sender, or none that answers, for `timeout`
            seconds.
          StateError: never registered; or the sender no longer knows which version numbers of the
            stream are used, because its ledger was lost or the stream was forgotten. Then all ranks
            start a new stream: rank 0 makes Stream.new(), and each rank closes its Trainer and
            registers the values of its views with another one.
        """
        handover = self._require_registered()
        deadline = Deadline(timeout)
        while True:
            try:
                self._register(handover, deadline)
                return
            except (DaemonUnavailableError, DeadlineError):
                if not deadline.left:
                    raise
                time.sleep(_RETRY_SECONDS)

    @property
    def layout(self) -> RankLayout:
        """The registered layout.

        Raises:
          StateError: nothing yet.
        """
        return self._require_registered().layout

    def resident_weights(self) -> Iterator[Any]:
        """The memory that the next `publish` captures, to be read: that of the host as numpy bytes, then
        tensors of devices, whole.

        Raises:
          StateError: not registered.
          CudaError: a device failed.
        """
        return self._require_registered().weights()

    @property
    def connected(self) -> bool:
        """Returns whether the registration is live."""
        return self._link.connected

    @property
    def session(self) -> int:
        """The number by which the sender knows the registration, another one after each `reconnect`."""
        return self._link.session

    def _require_unregistered(self) -> None:
        if self._handover is not None:
            raise StateError(
                "this Trainer is registered: make another one to register other tensors"
            )

    def _require_registered(self) -> Handover:
        if self._handover is None:
            raise StateError("call register() or register_ring() first")
        return self._handover

    def _register(self, handover: Handover, deadline: Deadline) -> None:
        request = trainer_pb2.RegisterRequest(
            job_id=self.job_id,
            stream=self.stream.to_proto(),
            trainer_rank=self.rank,
            world_size=self.world_size,
            client=f"dws-python, pid {os.getpid()}",
        )
        known = again_while_displaced(lambda: self._link.register(request, handover, deadline))
        self.last_version = max(self.last_version, known)
        self._open_version = None
        self._handover = handover
        handover.try_pin()

    def close(self) -> None:
        """Ends the registration, without waiting for the sender; views stay valid. Idempotent."""
        self._link.close()
        if self._handover is not None:
            self._handover.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()
