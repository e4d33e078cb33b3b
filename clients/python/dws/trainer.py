"""The trainer's side: hand a rank's weights to its dws-sender and publish versions of them.

Resident weights (they live in shared memory, publishing reads them there):

    trainer = dws.Trainer("/run/dws/sender-0.sock", job_id="run7")
    weights = trainer.register(module_or_dict_of_tensors)     # name -> view to write into
    weights["lm_head.weight"].copy_(new)
    trainer.publish(1)                                        # on return they may be overwritten
    trainer.wait(1, policy="all", timeout=60)

Weights that are gathered one by one (at no time a second full copy):

    trainer.register_ring(specs, bucket_bytes=64 << 20, bucket_count=4)
    with trainer.version(1) as w:
        for name, tensor in gather():
            w.put(name, tensor)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import Any, Iterator, Optional, Union

from dws._proto import trainer_pb2, trainer_pb2_grpc
from dws.arrays import is_torch, raw_bits
from dws.declare import Tensors, declared, owned_part
from dws.errors import (
    DaemonUnavailableError,
    DeadlineError,
    DwsError,
    InvalidArgumentError,
    RegistrationLostError,
    StateError,
    VersionError,
)
from dws.handles import HandleConnection
from dws.layout import Cuts, RankLayout, ShardRanges
from dws.memory import SharedRegion, ViewKind, aligned
from dws.ring import BucketRing, VersionWriter
from dws.rpc import RPC_TIMEOUT_SECONDS, DaemonConnection
from dws.stream import Stream

PUBLISH_TIMEOUT_SECONDS = 300.0
# A wait's own deadline is the daemon's business; the call ends this much later at the latest.
_WAIT_SLACK_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class PublishStats:
    """What one publish did.

    Attributes:
      changed_elements, total_elements: of this rank against the version before; the first
        version of a stream changes nothing, receivers take it whole.
      capture_seconds: of the daemon's pass over resident weights; a ring's puts are not in it.
      stall_seconds: what the caller lost, measured here: the calls of the version, start to return.
    """

    version: int
    changed_elements: int
    total_elements: int
    capture_seconds: float
    stall_seconds: float


@dataclasses.dataclass(frozen=True)
class WaitResult:
    """What a wait found.

    Attributes:
      committed: ids of the receivers at or above the version.
      wire_bytes: the version's delta object; 0 when there is none.
      publish_to_commit_seconds: from the publish call to the policy being met.
    """

    committed: tuple[str, ...]
    wire_bytes: int
    publish_to_commit_seconds: float


class Trainer:
    """One trainer rank's connection to its dws-sender. One thread at a time; `wait` from any.

    Lifecycle: make, register once, publish any number of versions, close (or `with`). When the
    sender has restarted, calls raise DaemonUnavailableError; `reconnect` goes on with the same
    memory.
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
                f"rank {rank} needs stream=: rank 0 makes it (Stream.new()) and passes it to "
                "the others"
            )
        self.job_id = job_id
        self.rank = rank
        self.world_size = world_size
        self.stream = stream or Stream.new()
        self.last_version = 0
        self._daemon = DaemonConnection(
            socket, f"dws-sender --socket {socket} --job-id {job_id} --trainer-rank {rank}"
        )
        self._stub = trainer_pb2_grpc.TrainerServiceStub(self._daemon.channel)
        self._layout: Optional[RankLayout] = None
        self._region: Optional[SharedRegion] = None
        self._ring: Optional[BucketRing] = None
        self._offsets: list[int] = []
        self._handles: Optional[HandleConnection] = None
        self._session = 0
        self._open_version: Optional[int] = None

    # Registration.

    def register(
        self,
        tensors: Tensors,
        shards: Optional[ShardRanges] = None,
        cuts: Optional[Cuts] = None,
        views: Optional[ViewKind] = None,
    ) -> dict[str, Any]:
        """Allocates shared memory for the rank's weights and registers it.

        Args:
          tensors: a torch module, or name -> full tensor (values are copied in; only the rank's
          part
            when sharded), or TensorSpecs (memory starts as zeros).
          shards: name -> (first slice, slice count) this rank owns; names not in it are owned
          whole.
            Leave tensors the rank owns nothing of out of `tensors`.
          cuts: name -> Cut, or boundaries on dimension 0. Engines can attach unions of these
          slices.
          views: "numpy" or "torch"; by default what `tensors` holds, numpy for specs.

        Returns:
          name -> writable view of the rank's part, of shape [..., owned extent of cut_dim, ...].
          Write into it between `publish` calls; `dws.bind(module, views)` puts a whole module into
          it.

        Raises:
          DTypeError, LayoutError, InvalidArgumentError: bad tensors, cuts or shards, by name.
          DaemonUnavailableError: no sender; the message says how to start it.
          StateError: registered before.
        """
        self._require_unregistered()
        specs, values = declared(tensors, cuts)
        layout = RankLayout(specs, shards)
        self._offsets, end = [], 0
        for shard in layout.shards:
            self._offsets.append(end)
            end = aligned(end + shard.size_bytes)
        self._region = SharedRegion("dws-weights", max(end, 1))
        kind: ViewKind = views or ("torch" if any(map(is_torch, values.values())) else "numpy")
        result = {}
        for shard, offset in zip(layout.shards, self._offsets):
            name = shard.tensor.name
            result[name] = self._region.view(kind, shard.tensor.dtype, shard.shape, offset)
            if name in values:
                bits = owned_part(raw_bits(name, values[name], shard.tensor.dtype), shard)
                self._region.raw(shard.tensor.dtype, bits.size, offset).reshape(bits.shape)[
                    ...
                ] = bits
        self._layout = layout
        self._register_or_reset()
        return result

    def register_ring(
        self,
        tensors: Tensors,
        bucket_bytes: int = 64 << 20,
        bucket_count: int = 4,
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
        specs, _ = declared(tensors, cuts)
        layout = RankLayout(specs, shards)
        self._ring = BucketRing(layout, bucket_bytes, bucket_count)
        self._region = self._ring.region
        self._layout = layout
        self._register_or_reset()

    def reconnect(self, timeout: float = 30.0) -> None:
        """Registers the same memory again, in the same stream: after the sender restarted.

        Waits for the sender to come up. The next version continues the numbers.

        Raises:
          DaemonUnavailableError: no sender for `timeout` seconds.
          StateError: never registered.
        """
        if self._layout is None:
            raise StateError("reconnect() before register()")
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._register()
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
        self._require_registered()
        assert self._layout is not None
        return self._layout

    @property
    def connected(self) -> bool:
        """Whether the registration is live."""
        return self._handles is not None and not self._handles.hung_up()

    def _require_unregistered(self) -> None:
        if self._layout is not None:
            raise StateError(
                "this Trainer is registered: make another one to register other tensors"
            )

    def _register_or_reset(self) -> None:
        try:
            self._register()
        except DwsError:
            self._layout = self._ring = self._region = None
            raise

    def _register(self) -> None:
        assert self._layout is not None and self._region is not None
        request = trainer_pb2.RegisterRequest(
            job_id=self.job_id,
            stream=self.stream.to_proto(),
            trainer_rank=self.rank,
            world_size=self.world_size,
            layout=self._layout.to_proto(),
            client=f"dws-python, pid {os.getpid()}",
        )
        if self._ring is not None:
            request.ring.bucket_bytes = self._ring.bucket_bytes
            request.ring.bucket_count = self._ring.bucket_count
        else:
            request.resident.region_bytes.append(self._region.size_bytes)
            for offset in self._offsets:
                request.resident.shards.add(region=0, offset_bytes=offset)
        reply = self._daemon.call(self._stub.Register, request, f"registering rank {self.rank}")
        descriptor = self._region.read_only_descriptor()
        try:
            handles = HandleConnection(
                reply.handle_socket, reply.token, [descriptor], RPC_TIMEOUT_SECONDS
            )
        finally:
            os.close(descriptor)
        if self._handles is not None:
            self._handles.close()
        self._handles = handles
        self._session = reply.session
        self.last_version = max(self.last_version, reply.last_version)
        self._open_version = None

    # Versions.

    def publish(self, version: int, timeout: float = PUBLISH_TIMEOUT_SECONDS) -> PublishStats:
        """Captures the resident weights as `version`; on return they may be overwritten.

        Sealing, the ledger and the announcement run behind it: `wait` tells when receivers have it.

        Raises:
          VersionError: not above the newest version.
          StateError: not registered, or registered as a ring (use `version`).
          DaemonUnavailableError: the sender is gone; see `reconnect`.
        """
        self._require_registered()
        if self._ring is not None:
            raise StateError("a ring registration publishes with `with trainer.version(v) as w:`")
        self._require_next(version)
        started = time.monotonic()
        return self._publish(version, started, timeout)

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
        self._require_registered()
        if self._ring is None:
            raise StateError("version() needs register_ring(); resident weights use publish()")
        if self._open_version is not None:
            raise StateError(f"version {self._open_version} is still open: end its block first")
        self._require_next(version)
        assert self._layout is not None
        writer = VersionWriter(version, self._layout, self._ring, self._start_put, self._await_put)
        started = time.monotonic()
        self._call(
            self._stub.Begin,
            trainer_pb2.BeginRequest(session=self._session, version=version),
            f"opening version {version}",
        )
        writer.stall_seconds += time.monotonic() - started
        self._open_version = version
        try:
            yield writer
            writer.drain()
            started = time.monotonic() - writer.stall_seconds
            writer.stats = self._publish(version, started, timeout)
        except BaseException:
            writer.discard()
            self._abort(version)
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
        request = trainer_pb2.WaitRequest(
            session=self._session, version=version, timeout_seconds=timeout
        )
        if policy == "all":
            request.policy = trainer_pb2.WAIT_POLICY_ALL
        elif policy == "any":
            request.policy = trainer_pb2.WAIT_POLICY_ANY
        elif isinstance(policy, int) and policy > 0:
            request.policy, request.quorum = trainer_pb2.WAIT_POLICY_QUORUM, policy
        else:
            raise InvalidArgumentError(
                f"policy {policy!r}: expected 'all', 'any' or a number above 0"
            )
        what = f"waiting for version {version}"
        reply = self._call(self._stub.Wait, request, what, timeout + _WAIT_SLACK_SECONDS)
        return WaitResult(tuple(reply.committed), reply.wire_bytes, reply.publish_to_commit_seconds)

    def _require_registered(self) -> None:
        if self._layout is None:
            raise StateError("register() or register_ring() first")

    def _require_next(self, version: int) -> None:
        if version <= self.last_version:
            raise VersionError(
                f"version {version} is not above {self.last_version}, the newest one of stream "
                f"{self.stream}: use {self.last_version + 1} or more"
            )

    def _publish(self, version: int, started: float, timeout: float) -> PublishStats:
        reply = self._call(
            self._stub.Publish,
            trainer_pb2.PublishRequest(session=self._session, version=version),
            f"publishing version {version}",
            timeout,
        )
        self.last_version = version
        return PublishStats(
            version=version,
            changed_elements=reply.changed_elements,
            total_elements=reply.total_elements,
            capture_seconds=reply.capture_seconds,
            stall_seconds=time.monotonic() - started,
        )

    def _start_put(self, bucket: tuple[int, list[Any]]) -> Any:
        request = trainer_pb2.PutRequest(
            session=self._session, version=self._open_version, bucket=bucket[0], pieces=bucket[1]
        )
        return self._stub.Put.future(request, timeout=RPC_TIMEOUT_SECONDS)

    def _await_put(self, call: Any) -> None:
        self._call(lambda request, timeout: call.result(), None, "putting tensors")

    def _abort(self, version: int) -> None:
        # The block's own error is the one to see; a sender that is gone undoes the version by
        # itself.
        with contextlib.suppress(DwsError):
            request = trainer_pb2.AbortRequest(session=self._session, version=version)
            self._daemon.call(self._stub.Abort, request, f"giving up version {version}")

    def _call(
        self, method: Any, request: Any, what: str, timeout: float = RPC_TIMEOUT_SECONDS
    ) -> Any:
        try:
            return self._daemon.call(method, request, what, timeout)
        except DwsError as error:
            # A fenced registration and a restarted sender fail in many ways; the hang-up tells
            # them.
            if self.connected or isinstance(error, RegistrationLostError):
                raise
            raise RegistrationLostError(
                f"{error}; the registration is gone (the sender restarted, or another process "
                f"registered rank {self.rank}): call reconnect()"
            ) from error

    def close(self) -> None:
        """Ends the registration; views stay valid. Idempotent."""
        if self._handles is not None:
            self._handles.close()
        self._daemon.close()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()
