"""Reports the boundaries between an engine's batches to its receiver. At a
boundary a receiver with --commit-policy=boundary, or max-behind:K, commits the version that it
holds back."""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import Any, Iterator

import grpc

from dws._proto import engine_pb2, engine_pb2_grpc
from dws.errors import DaemonUnavailableError, DeadlineError
from dws.rpc import DaemonConnection

# A commit takes a pause of milliseconds, but a newer version may be fetched first.
BOUNDARY_TIMEOUT_SECONDS = 60.0
_RETRY_SECONDS = 0.2
# For what a call that was given up may have begun.
_END_SECONDS = 5.0
_WHAT = "naming a boundary"


class _Stay:
    """One `stay`, shared with its thread."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.guard = threading.Lock()  # guards the others: none is made once it is over
        self.boundary_id = 0
        self.call: Any = None


class Boundaries:
    """Names boundaries for the whole engine of a receiver: from the engine's process, or from one that
    drives it, on the receiver's host and by a user that may attach engines.

    Nothing computes with the engine's weights between two batches. That is the caller's part; a batch
    that runs nevertheless is not torn, because its forward passes hold the commit back as always.

    Lifecycle: make, use, close. Threads: any.
    """

    def __init__(self, socket: str) -> None:
        """Args:
        socket: the receiver's --socket; of a commit group, its leader's.
        """
        self._daemon = DaemonConnection(
            socket, f"dws-receiver --socket {socket} --job-id JOB --sender unix:PATH"
        )

    def passed(self, timeout: float = BOUNDARY_TIMEOUT_SECONDS) -> int:
        """Reports a boundary: the receiver commits the version that it holds back. Returns after
        the commit, or at once if no version is held back.

        Args:
          timeout: seconds.

        Returns:
          the version that memory has now; 0 if it holds none.

        Raises:
          DeadlineError: the commit took longer. None begins after that.
          DaemonUnavailableError: no receiver answers, or it ended meanwhile.
        """
        try:
            return self._pass(timeout)
        except grpc.RpcError as error:
            if not self._daemon.found_again(error):
                raise self._daemon.error(error, _WHAT) from error
        try:
            return self._pass(timeout)
        except grpc.RpcError as error:
            raise self._daemon.error(error, _WHAT) from error

    def _pass(self, timeout: float) -> int:
        boundary_id = _new_id()
        try:
            request = engine_pb2.BoundaryRequest(boundary_id=boundary_id)
            return int(self._stub.Boundary(request, timeout=timeout).version)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            with contextlib.suppress(DeadlineError, DaemonUnavailableError):
                self._end(boundary_id, _END_SECONDS)
            raise DeadlineError(
                f"the receiver on {self._daemon.socket_path} did not commit the version that it holds back within "
                f"{timeout:g} s of this boundary: its status and log say what it is doing"
            ) from error

    @contextlib.contextmanager
    def stay(self, timeout: float = BOUNDARY_TIMEOUT_SECONDS) -> Iterator[None]:
        """A block between two batches, for example while the engine waits for the next prompts:
        versions are committed as they arrive. This also works while the receiver restarts: it is
        told again.

        Args:
          timeout: seconds for the end of the block, if a commit is in progress.

        Raises:
          DeadlineError: at the end: a commit that began in the block takes longer.
        """
        stay = _Stay()
        thread = threading.Thread(target=self._keep, args=(stay,), name="dws-boundary", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stay.over.set()
            with stay.guard:
                boundary_id, call = stay.boundary_id, stay.call
            try:
                if boundary_id:
                    with contextlib.suppress(DaemonUnavailableError):  # it commits nothing then
                        self._end(boundary_id, timeout)
            finally:
                # The receiver may see the end before the begin, which it would keep open.
                if call is not None:
                    call.cancel()
            thread.join(_END_SECONDS)

    def close(self) -> None:
        """Closes the connection. Idempotent; a block of `stay` has to have ended."""
        self._daemon.close()

    @property
    def _stub(self) -> Any:
        return engine_pb2_grpc.EngineServiceStub(self._daemon.channel)

    def _keep(self, stay: _Stay) -> None:
        while True:
            with stay.guard:
                if stay.over.is_set():
                    return
                stay.boundary_id = _new_id()
                request = engine_pb2.BoundaryRequest(boundary_id=stay.boundary_id, stays=True)
                try:
                    call = stay.call = self._stub.Boundary.future(request)
                except ValueError:  # closed
                    return
            try:
                with contextlib.suppress(grpc.RpcError):  # it restarts, perhaps: it is told again
                    call.result()
            except grpc.FutureCancelledError:  # closed
                return
            stay.over.wait(_RETRY_SECONDS)

    def _end(self, boundary_id: int, timeout: float) -> None:
        request = engine_pb2.EndBoundaryRequest(boundary_id=boundary_id)
        try:
            self._stub.EndBoundary(request, timeout=timeout)
        except grpc.RpcError as error:
            raise self._daemon.error(error, "ending a boundary") from error


def _new_id() -> int:
    return 1 + secrets.randbelow((1 << 63) - 1)
