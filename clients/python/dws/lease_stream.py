"""The lease stream to the receiver: turns its messages into calls, one at a time and in order."""

from __future__ import annotations

import queue
from typing import Any, Callable, Iterator, Optional, Sequence

import grpc

from dws._proto import engine_pb2
from dws.digest import digest_hex
from dws.errors import StateError
from dws.lease import Grant
from dws.stream import Stream

PostCommitHook = Callable[[int], None]
# With the version, and a number over the content of each attached view's canonical tensor; none of
# these from receivers that do not send them.
CommitHook = Callable[[int, Sequence[int]], None]
# Its argument tells whether the pause is still wanted. Returns the seconds since execution stopped,
# once the devices are idle; None if the pause is no longer wanted.
PauseCall = Callable[[Callable[[], bool]], Optional[float]]
ResumeCall = Callable[[Grant], None]

_ERROR_CHARACTERS_MAX = 1000


class ChangedTensors:
    """Finds the canonical tensors that have changed since an engine last updated the tensors that
    it derives from them, by the numbers that a receiver sends with each commit. Threads: one."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}

    def since_done(self, tensors: Sequence[str], contents: Sequence[int]) -> Optional[frozenset[str]]:
        """Args:
          tensors: the canonical tensor of each view that is attached.
          contents: for each view, a number over what its tensor has.

        Returns:
          those that may have changed since the last `done`; None: it is not known.
        """
        if len(tensors) != len(contents) or not self._done:
            return None
        return frozenset(t for t, content in zip(tensors, contents) if self._done.get(t) != content)

    def done(self, tensors: Sequence[str], contents: Sequence[int]) -> None:
        """Everything is up to date with these."""
        self._done = dict(zip(tensors, contents)) if len(tensors) == len(contents) else {}

    def forget(self) -> None:
        """Nothing is known to be up to date."""
        self._done = {}


class LeaseStream:
    """One lease, from LeaseOpen until the stream breaks. `serve` on one thread, `cancel` from
    any."""

    def __init__(
        self, stub: Any, engine_rank: int, generation: int, drains_devices: bool = False
    ) -> None:
        """Args:
        drains_devices: whether the pause call waits for the devices that hold weights, and they
          have been waited for already.
        """
        self._generation = generation
        self._drains_devices = drains_devices
        self._stopped = False
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._send(
            open=engine_pb2.LeaseOpen(
                engine_rank=engine_rank, generation=generation, devices_drained=drains_devices
            )
        )
        # No deadline: the lease lasts while both sides live; the death of either breaks the stream.
        self._call = stub.Lease(self._requests())

    def serve(
        self, pause: PauseCall, resume: ResumeCall, post_commit: Optional[CommitHook]
    ) -> str:
        """Runs until the stream ends; returns in words why it ended. An exception of `pause` ends
        it."""
        try:
            for message in self._call:
                kind = message.WhichOneof("message")
                if kind == "pause":
                    stopped_seconds = pause(self._call.is_active)
                    if stopped_seconds is None and self._stopped:
                        continue  # the receiver ends the lease when it has read why
                    if stopped_seconds is None:
                        return "the connection broke while forward passes were ending"
                    self._send(
                        paused=engine_pb2.Paused(
                            pause_id=message.pause.pause_id,
                            generation=self._generation,
                            devices_drained=self._drains_devices,
                            stopped_microseconds=int(stopped_seconds * 1e6),
                        )
                    )
                elif kind == "post_commit":
                    self._send(post_commit_done=_run_hook(message.post_commit, post_commit))
                elif kind == "resume":
                    resume(_grant(message.resume))
            return "it ended the lease"
        except grpc.RpcError as error:
            # gRPC raises the call object itself, so its traceback refers to it: a cycle. If it is
            # collected only when the interpreter ends, its __del__ may wait for ever for a lock
            # that was held by a thread that has ended by then.
            error.__traceback__ = None
            return f"{error.code().name}: {error.details()}"
        except StateError as error:
            return f"it broke the protocol: {error}"
        finally:
            self.cancel()

    def request_commit(self, version: int, stream: Optional[Stream]) -> None:
        """See Engine.let_commit; 0 takes the request back."""
        request = engine_pb2.CommitRequest(version=version)
        if stream is not None:
            request.stream.CopyFrom(stream.to_proto())
        self._send(commit_request=request)

    def stop(self, reason: str) -> None:
        """Tells the receiver that the engine has stopped for good: it ends the stream."""
        self._stopped = True
        self._send(stopped=engine_pb2.EngineStopped(reason=reason[:_ERROR_CHARACTERS_MAX]))
        self._outgoing.put(None)

    def cancel(self) -> None:
        """Ends the stream; serve() returns soon after."""
        self._call.cancel()
        self._outgoing.put(None)

    def _send(self, **message: Any) -> None:
        self._outgoing.put(engine_pb2.LeaseUp(**message))

    def _requests(self) -> Iterator[Any]:
        while (message := self._outgoing.get()) is not None:
            yield message


def _run_hook(message: Any, hook: Optional[CommitHook]) -> Any:
    done = engine_pb2.PostCommitDone(pause_id=message.pause_id)
    if hook is not None:
        # Any error of the engine's hook is reported to the receiver, which keeps the engine paused.
        try:
            hook(message.version, message.contents)
        except Exception as error:  # pylint: disable=broad-except
            done.error = f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS_MAX]
    return done


def _grant(message: Any) -> Grant:
    return Grant(
        version=message.version,
        stream=Stream.from_proto(message.stream),
        state_token=digest_hex((message.state_token.lane0, message.state_token.lane1)),
    )
