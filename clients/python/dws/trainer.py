"""The trainer's side: hand a rank's weights to its dws-sender and publish versions of them.

trainer = dws.Trainer("/run/dws/sender-0.sock", job_id="run7")
weights = trainer.register(module)                 # resident: name -> view to write into
weights["lm_head.weight"].copy_(new)
trainer.publish(1)                                 # on return they may be overwritten
trainer.wait(1, policy="all", timeout=60)

trainer.register_ring(specs)                       # or: gathered one by one, never all at once
with trainer.version(1) as w:
    for name, tensor in gather():
        w.put(name, tensor)
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Iterator, Optional, Union

from dws._proto import trainer_pb2
from dws.declare import Tensors
from dws.errors import (
    DaemonUnavailableError,
    DeadlineError,
    DwsError,
    InvalidArgumentError,
    StateError,
    VersionError,
)
from dws.handover import Handover, resident_handover, ring_handover
from dws.layout import Cuts, RankLayout, ShardRanges
from dws.memory import ViewKind
from dws.results import PublishStats, WaitResult
from dws.ring import VersionWriter
from dws.sender_link import SenderLink
from dws.stream import Stream

PUBLISH_TIMEOUT_SECONDS = 300.0


class Trainer:
    """One trainer rank's connection to its dws-sender. One thread at a time; `wait` from any.

    Lifecycle: make, register once, publish any number of versions, close (or `with`). When the
    sender has restarted, calls raise RegistrationLostError: `reconnect` keeps the same memory.
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
          stream: rank 0 may leave it out (Stream.new()); the others pass rank 0's.

        Raises:
          InvalidArgumentError: the rank does not fit, or the stream is missing.
        """
        if not 0 <= rank < world_size:
            raise InvalidArgumentError(
                f"rank {rank} of world size {world_size}: expected 0 <= rank < it"
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

    # Registration.

    def register(
        self,
        tensors: Tensors,
        shards: Optional[ShardRanges] = None,
        cuts: Optional[Cuts] = None,
        views: Optional[ViewKind] = None,
    ) -> dict[str, Any]:
        """Registers the rank's weights: in shared memory allocated here, or live on CUDA devices.

        Args:
          tensors: a torch module, or name -> full tensor (values are copied in; of a sharded one
            only the rank's part), or TensorSpecs (memory starts as zeros). Tensors of CUDA devices,
            row-major and contiguous, stay where they are; the sender reads them there.
          shards: name -> (first slice, slice count) this rank owns; names not in it are owned
            whole. Leave tensors the rank owns nothing of out of `tensors`.
          cuts: name -> Cut, or boundaries on dimension 0. Engines attach unions of these slices.
          views: "numpy" or "torch"; by default what `tensors` holds, numpy for specs.

        Returns:
          name -> writable view of the rank's part: the tensor's shape, cut_dim restricted. Write
          between `publish` calls; `dws.bind(module, views)` puts a whole module there. For a tensor
          of a device itself.

        Raises:
          DTypeError, LayoutError, InvalidArgumentError: bad tensors, cuts or shards, by name.
          DaemonUnavailableError: no sender; the message says how to start it.
          CudaError: the driver failed.
          StateError: registered before.
        """
        self._require_unregistered()
        handover, result = resident_handover(tensors, shards, cuts, views)
        self._register(handover)
        return result

    def register_ring(
        self,
        tensors: Tensors,
        bucket_bytes: int = 64 << 20,
        bucket_count: int = 3,
        shards: Optional[ShardRanges] = None,
        cuts: Optional[Cuts] = None,
    ) -> None:
        """Registers weights that are handed over with `version(...)` and `put`.

        Args:
          tensors: as for `register`; values are not read.
          bucket_bytes, bucket_count: the ring; bucket_bytes * bucket_count bytes are all it costs.

        Raises:
          As `register`.
        """
        self._require_unregistered()
        self._register(ring_handover(tensors, shards, cuts, bucket_bytes, bucket_count))

    def reconnect(self, timeout: float = 30.0) -> None:
        """Registers the same memory again, in the same stream: after the sender restarted.

        Waits for the sender to come up. The next version continues the numbers.

        Raises:
          DaemonUnavailableError: no sender for `timeout` seconds.
          StateError: never registered.
        """
        handover = self._require_registered()
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._register(handover)
                return
            except (DaemonUnavailableError, DeadlineError):
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    @property
    def layout(self) -> RankLayout:
        """What is registered.

        Raises:
          StateError: nothing yet.
        """
        return self._require_registered().layout

    @property
    def connected(self) -> bool:
        """Whether the registration is live."""
        return self._link.connected

    def _require_unregistered(self) -> None:
        if self._handover is not None:
            raise StateError(
                "this Trainer is registered: make another one to register other tensors"
            )

    def _require_registered(self) -> Handover:
        if self._handover is None:
            raise StateError("register() or register_ring() first")
        return self._handover

    def _register(self, handover: Handover) -> None:
        request = trainer_pb2.RegisterRequest(
            job_id=self.job_id,
            stream=self.stream.to_proto(),
            trainer_rank=self.rank,
            world_size=self.world_size,
            client=f"dws-python, pid {os.getpid()}",
        )
        known = self._link.register(request, handover)
        self.last_version = max(self.last_version, known)
        self._open_version = None
        self._handover = handover
        handover.try_pin()

    # Versions.

    def publish(self, version: int, timeout: float = PUBLISH_TIMEOUT_SECONDS) -> PublishStats:
        """Captures the resident weights as `version`; on return they may be overwritten.

        Waits first until devices that weights are on have done what this process asked of them.
        Weights that have come to lie elsewhere on them since are registered there.

        Sealing, the ledger and the announcement run behind it: `wait` tells when receivers have it.

        Raises:
          VersionError: not above the newest version.
          StateError: not registered, or registered as a ring (use `version`).
          DaemonUnavailableError: the sender is gone; see `reconnect`.
          CudaError: a device failed.
        """
        handover = self._require_registered()
        if handover.ring is not None:
            raise StateError("a ring registration publishes with `with trainer.version(v) as w:`")
        self._require_next(version)
        started = time.monotonic()
        handover.settle(self._register)
        stats = self._link.publish(version, started, timeout)
        self.last_version = version
        return stats

    @contextlib.contextmanager
    def version(
        self, version: int, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> Iterator[VersionWriter]:
        """A block in which tensors are put; its end publishes them as `version`.

        Tensors not put are unchanged. If the block raises, the version is given up and what was
        captured is undone; the same number may be used again.

        Raises:
          As `publish`.
        """
        handover = self._require_registered()
        if handover.ring is None:
            raise StateError("version() needs register_ring(); resident weights use publish()")
        if self._open_version is not None:
            raise StateError(f"version {self._open_version} is still open: end its block first")
        self._require_next(version)
        handover.try_pin()
        writer = VersionWriter(version, handover.layout, handover.ring, self._link)
        started = time.monotonic()
        self._link.begin(version)
        writer.stall_seconds += time.monotonic() - started
        self._open_version = version
        try:
            yield writer
            writer.drain()
            started = time.monotonic() - writer.stall_seconds
            writer.stats = self._link.publish(version, started, timeout)
            self.last_version = version
        except BaseException:
            writer.discard()
            # The block's own error is the one to see; a sender that is gone undoes it alone.
            with contextlib.suppress(DwsError):
                self._link.abort(version)
            raise
        finally:
            self._open_version = None

    def wait(
        self, version: int, policy: Union[str, int] = "all", timeout: float = 60.0
    ) -> WaitResult:
        """Waits until receivers have committed `version` or a newer one.

        Args:
          policy: "all" receivers that are present (with none present it waits for one), "any", or a
            number of receivers.
          timeout: seconds.

        Raises:
          DeadlineError: not met in time.
          VersionLostError: the version went down with its sender: publish a newer one.
          InvalidArgumentError: an unknown policy or version.
        """
        self._require_registered()
        return self._link.wait(version, policy, timeout)

    def _require_next(self, version: int) -> None:
        if version <= self.last_version:
            raise VersionError(
                f"version {version} is not above {self.last_version}, the newest one of stream "
                f"{self.stream}: use {self.last_version + 1} or more"
            )

    def close(self) -> None:
        """Ends the registration; views stay valid. Idempotent."""
        self._link.close()
        if self._handover is not None:
            self._handover.close()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()
