"""Objects that a worker gives the others, and theirs: the calls of ObjectService at the worker's own sender.

An object has a name and a number, and is gone with the process that has put it.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import grpc

from dws._proto import delta_pb2, objects_pb2, objects_pb2_grpc
from dws.deadline import Deadline
from dws.digest import Digest, digest_bytes
from dws.errors import DaemonUnavailableError, DeadlineError, DwsError, InvalidArgumentError, RankLostError, StateError
from dws.rpc import DaemonConnection, details_of

_CHUNK_BYTES = 1 << 20
_ATTACH_AGAIN_SECONDS = 0.05
_PUT_SECONDS = 600.0
# Because of these a rank is lost, and may be back later.
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.DATA_LOSS)


class Wanted(NamedTuple):
    """Attributes:
      rank: whose object.
      process: of that rank, which has put it; with `newer` any other one will do, too.
      number: of the object; with `newer` any higher one will do, too, and this one will not.
      bytes_max: more are refused before they are read.
    """

    rank: int
    process: int
    name: str
    number: int
    bytes_max: int
    newer: bool = False


class Found(NamedTuple):
    """An object, and which process of its rank has put it with which number."""

    process: int
    number: int
    data: bytes


class ObjectExchange:
    """Lifecycle: attaches from its making on, again after a restart of the sender; close. Threads: one calls; one of its
    own stays attached."""

    def __init__(self, socket: str, job_id: str, rank: int, ranks: int) -> None:
        start = f"dws-sender --socket {socket} --job-id {job_id} --trainer-rank {rank} --train-peers ..."
        self._daemon = DaemonConnection(socket, start)
        self._stub = objects_pb2_grpc.ObjectServiceStub(self._daemon.channel)
        self._who = objects_pb2.AttachObjectsRequest(job_id=job_id, trainer_rank=rank, ranks=ranks)
        self._changed = threading.Condition()
        self._process = 0  # 0: not attached
        self._lost: Optional[DwsError] = None  # why it is not
        self._closed = False
        self._attachment: Any = None
        self._thread = threading.Thread(target=self._stay_attached, name="dws-objects", daemon=True)
        self._thread.start()

    def _stay_attached(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                self._attachment = self._stub.Attach(self._who)
            lost = self._attach(self._attachment)
            with self._changed:
                self._process, self._lost = 0, lost
                self._changed.notify_all()
            if not isinstance(lost, DaemonUnavailableError):
                return
            time.sleep(_ATTACH_AGAIN_SECONDS)

    def _attach(self, call: Any) -> DwsError:
        """Returns why it has ended."""
        what = f"attaching as rank {self._who.trainer_rank}"
        try:
            for attached in call:
                with self._changed:
                    self._process = attached.process
                    self._changed.notify_all()
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                return StateError(f"{what}: the sender keeps no objects: start it with --train-peers, without --object-bytes=0")
            return self._daemon.error(error, what)
        return DaemonUnavailableError(f"{what}: the sender has ended the call")

    def attached(self, timeout: float) -> int:
        """Waits until the sender knows this process. Returns the process's number there.

        Raises:
          StateError: the sender refuses it, or another process has taken its place.
          DaemonUnavailableError: no sender answers in `timeout` seconds.
        """
        deadline = Deadline(timeout)
        with self._changed:
            while not self._process:
                if self._lost is not None and not isinstance(self._lost, DaemonUnavailableError):
                    raise self._lost
                if not deadline.left:
                    raise self._lost or DaemonUnavailableError(f"{self._daemon.socket_path}: no sender answers in {timeout:g} s")
                self._changed.wait(deadline.left)
            return self._process

    def put(
        self, process: int, name: str, number: int, data: bytes, over_because: Optional[str] = None, rounds: int = 0
    ) -> None:
        """Puts an object in the place of the one that has the name.

        Args:
          process: that `attached` has returned.
          over_because: lower numbers are over, for this reason.
          rounds: that the process has behind it, for the sender's status.

        Raises:
          DaemonUnavailableError: the sender is gone, or no longer knows the process: attach again.
          DwsError: there is no room; another error.
        """
        what = f"putting '{name}' number {number} as rank {self._who.trainer_rank}"
        try:
            self._stub.Put(_chunks(process, name, number, data, over_because, rounds), timeout=_PUT_SECONDS)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                raise DaemonUnavailableError(f"{what}: {error.details()}") from error
            raise self._daemon.error(error, what) from error

    def fetch(self, wanted: Wanted, timeout: float) -> Found:
        return self.fetch_all([wanted], timeout)[0]

    def fetch_all(self, wanted: Sequence[Wanted], timeout: float) -> list[Found]:
        """Waits for all of these objects. The first one that is not available ends the wait.

        Raises:
          RankLostError: a rank, or its sender, is gone, or it has gone on to a later number.
          DeadlineError: not in `timeout` seconds.
          InvalidArgumentError: an object is larger than wanted.
          DaemonUnavailableError: this rank's own sender is gone.
          StateError, DwsError: the other sender refuses.
        """
        calls = [self._stub.Fetch(_request(each), timeout=timeout) for each in wanted]
        failed: list[int] = []

        def on_end(index: int) -> None:
            if calls[index].code() != grpc.StatusCode.OK:
                failed.append(index)
                if failed[0] == index:
                    for call in calls:
                        call.cancel()

        for index, call in enumerate(calls):
            if not call.add_callback(functools.partial(on_end, index)):
                on_end(index)
        try:
            return [_read(call, each) for call, each in zip(calls, wanted)]
        except grpc.RpcError as error:
            index = failed[0] if failed else calls.index(error)
            raise self._error(calls[index], wanted[index], timeout) from error
        finally:
            for call in calls:
                call.cancel()

    def _error(self, error: Any, wanted: Wanted, timeout: float) -> DwsError:
        what = f"fetching '{wanted.name}' number {wanted.number} of rank {wanted.rank}"
        code, details = error.code(), error.details() or "no details"
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineError(f"{what}: that worker has not put it in {timeout:.1f} s; is it slow, or did it stop calling run?")
        refusal = objects_pb2.ObjectRefusal.FromString(details_of(error))
        if not details_of(error):
            return self._daemon.error(error, what)
        if code in _LOST:
            return RankLostError(f"{what}: {details}", details, refusal.trainer_rank)
        if code == grpc.StatusCode.OUT_OF_RANGE:
            return InvalidArgumentError(f"{what}: {details}")
        return StateError(f"{what}: {details}")

    def close(self) -> None:
        """Detaches: what was put is gone. Idempotent."""
        with self._changed:
            self._closed = True
            if self._attachment is not None:
                self._attachment.cancel()
        self._thread.join()
        self._daemon.close()


def to_proto(digest: Digest) -> Any:
    return delta_pb2.Digest(lane0=digest[0], lane1=digest[1])


def from_proto(digest: Any) -> Digest:
    return digest.lane0, digest.lane1


def _request(wanted: Wanted) -> Any:
    return objects_pb2.FetchObjectRequest(
        trainer_rank=wanted.rank,
        process=wanted.process,
        key=objects_pb2.ObjectKey(name=wanted.name, number=wanted.number),
        newer=wanted.newer,
        size_bytes_max=wanted.bytes_max,
    )


def _chunks(process: int, name: str, number: int, data: bytes, over_because: Optional[str], rounds: int) -> Iterator[Any]:
    yield objects_pb2.PutObjectChunk(
        process=process,
        key=objects_pb2.ObjectKey(name=name, number=number),
        size_bytes=len(data),
        digest=to_proto(digest_bytes(data)),
        over_because=over_because,
        rounds=rounds,
    )
    for begin in range(0, len(data), _CHUNK_BYTES):
        yield objects_pb2.PutObjectChunk(data=data[begin : begin + _CHUNK_BYTES])


def _read(call: Any, wanted: Wanted) -> Found:
    process = number = 0
    data = bytearray()
    for chunk in call:
        if not data:
            process, number = chunk.process, chunk.number
        if len(data) + len(chunk.data) > wanted.bytes_max:
            raise InvalidArgumentError(f"'{wanted.name}' of rank {wanted.rank} has more than {wanted.bytes_max} bytes")
        data += chunk.data
    return Found(process, number, bytes(data))
