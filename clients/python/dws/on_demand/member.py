"""A rank's membership in its sender's job of training on demand: the calls of OnDemandService, and what
the sender tells of the minibatch. Needs no torch.

A wait ends with the sender's news, the end of a call, or the end of the time, whichever is first:
nothing polls.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import Any, Callable, NamedTuple, Optional, Sequence

import grpc

from dws._proto import on_demand_pb2, on_demand_pb2_grpc, train_pb2
from dws.deadline import Deadline
from dws.errors import (
    DaemonUnavailableError,
    DeadlineError,
    DwsError,
    MinibatchAbandonedError,
    RankLostError,
    StateError,
)
from dws.handles import Descriptor, HandleConnection, again_while_displaced
from dws.rpc import DaemonConnection

_LOG = logging.getLogger(__name__)
_Phase = on_demand_pb2.MinibatchView
# How long a call that failed may wait for news that its attempt is over, which is then the reason.
_NEWS_SECONDS = 10.0
# How long a gather waits for such news if an owner was lost while it was read: then it may be asked for again.
_OWNER_NEWS_SECONDS = 1.0
_ABANDON_SECONDS = 5.0
_FOLLOW_AGAIN_SECONDS = 0.05

OPEN = _Phase.PHASE_OPEN
STEPPED = _Phase.PHASE_STEPPED
DECIDED = (STEPPED, _Phase.PHASE_TO_BE_SKIPPED)
_NAMES_NO_ATTEMPT = (_Phase.PHASE_UNSPECIFIED, _Phase.PHASE_JOINING, _Phase.PHASE_LOST)


class AttemptId(NamedTuple):
    """One attempt at one minibatch, the same on all ranks."""

    minibatch: int
    term: int
    attempt: int

    @classmethod
    def from_proto(cls, message: Any) -> AttemptId:
        return cls(message.minibatch, message.term, message.attempt)

    def to_proto(self) -> Any:
        return train_pb2.AttemptId(minibatch=self.minibatch, term=self.term, attempt=self.attempt)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of minibatch {self.minibatch} (term {self.term})"


@dataclasses.dataclass
class Waits:
    """Seconds that a rank has waited since it joined, and what for.

    Attributes:
      gather_seconds: for units of parameters.
      push_seconds: for room in the outbox.
      decision_seconds: from `finish` to the decision.
      barrier_seconds: in the barriers of lockstep=True.
      gathers, pushes: how many there were.
    """

    gather_seconds: float = 0.0
    push_seconds: float = 0.0
    decision_seconds: float = 0.0
    barrier_seconds: float = 0.0
    gathers: int = 0
    pushes: int = 0


class Member:
    """Lifecycle: make; join once; close. After a restart of the sender, make another one.

    Threads: one calls; a thread of its own listens to the sender. `settle` and `wake` from any.

    Attributes:
      attempt: the one that this rank takes part in; None between minibatches. Waits end with
        MinibatchAbandonedError when it is over.
    """

    def __init__(self, socket: str, job_id: str, rank: int, timeout: float) -> None:
        """Args:
        timeout: seconds of each wait for other ranks.
        """
        self._daemon = DaemonConnection(
            socket,
            f"dws-sender --socket {socket} --job-id {job_id} --trainer-rank {rank} --train-peers ...",
        )
        self._stub = on_demand_pb2_grpc.OnDemandServiceStub(self._daemon.channel)
        self._rank = rank
        self._timeout = timeout
        self._handles: Optional[HandleConnection] = None
        self._member = 0
        self._news = threading.Condition()
        self._view: Any = on_demand_pb2.MinibatchView()
        self._lost: Optional[DwsError] = None
        self._closed = False
        self._released: list[int] = []  # leases
        self._follow: Any = None
        self.attempt: Optional[AttemptId] = None

    def join(self, request: Any, descriptors: Sequence[Descriptor], timeout: float) -> None:
        """Joins, hands the memory over, and begins to listen.

        Args:
          request: a JoinRequest.
          descriptors: in the order that JoinRequest says.

        Raises:
          StateError, InvalidArgumentError: the sender refuses, with its reason.
          DwsError: as HandleConnection.hand_over.
        """
        deadline = Deadline(timeout)

        def once() -> int:
            what = f"joining training on demand as rank {self._rank}"
            try:
                reply = self._stub.Join(request, timeout=deadline.left)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                    raise StateError(f"{what}: the sender does not train on demand: start it with --train-peers") from error
                raise self._daemon.error(error, what) from error
            self._handles = handles = HandleConnection()
            handles.hand_over(reply.handle_socket, reply.token, descriptors, deadline.left)
            return int(reply.member)

        self._member = again_while_displaced(once)
        self._start_following()
        threading.Thread(target=self._listen, name="dws-on-demand", daemon=True).start()

    def _listen(self) -> None:
        while (lost := self._hear()) is None:
            time.sleep(_FOLLOW_AGAIN_SECONDS)
            self._start_following()
        with self._news:
            self._lost = lost
            self._news.notify_all()
        if not self._closed:
            _LOG.warning("dws: rank %d: %s", self._rank, lost)

    def _start_following(self) -> None:
        with self._news:
            if not self._closed:
                self._follow = self._stub.Follow(on_demand_pb2.FollowRequest(member=self._member))

    def _hear(self) -> Optional[DwsError]:
        """Takes news until they end. Returns why the membership has ended; None: it has not."""
        try:
            for view in self._follow:
                with self._news:
                    self._view = view
                    self._news.notify_all()
        except grpc.RpcError as error:
            if self._still_joined(error):
                return None
            return self._daemon.error(error, f"following the minibatch as rank {self._rank}")
        return DaemonUnavailableError("the sender has ended the membership: join again")

    def _still_joined(self, error: grpc.RpcError) -> bool:
        """Returns whether only gRPC's connection is broken: after either process stood still, its keepalive takes the other for
        dead. The handle socket ends with the sender and with the membership, and not before."""
        if self._closed or error.code() != grpc.StatusCode.UNAVAILABLE:
            return False
        return self._handles is not None and not self._handles.hung_up()

    @property
    def view(self) -> Any:
        """The newest MinibatchView."""
        with self._news:
            return self._view

    @property
    def lost(self) -> Optional[DwsError]:
        """Why the sender no longer counts this rank in; None: it does."""
        with self._news:
            return self._lost

    def wake(self) -> None:
        """Makes a wait look again."""
        with self._news:
            self._news.notify_all()

    def wait(self, until: Callable[[Any], bool], what: str, timeout: Optional[float] = None) -> Any:
        """Waits for a view, or for something that is followed by `wake`.

        Args:
          until: gets the newest view.
          what: for people, what is waited for.
          timeout: seconds; None: as given to the constructor.

        Returns:
          The view.

        Raises:
          MinibatchAbandonedError: `attempt` is over.
          DeadlineError: the time has passed; the message has what the sender waits for.
          DaemonUnavailableError, DwsError: the membership has ended.
        """
        deadline = Deadline(self._timeout if timeout is None else timeout)
        with self._news:
            while not until(self._view):
                if self._lost is not None:
                    raise self._lost
                if self.attempt is not None and self._is_over(self._view):
                    self._raise_over(deadline)
                if not deadline.left:
                    raise DeadlineError(self._late(what, deadline))
                self._news.wait(deadline.left)
            return self._view

    def _late(self, what: str, deadline: Deadline) -> str:
        waits_for = self._view.waits_for or "it does not say"
        return f"{what}: not after {deadline.seconds:g} s; what the sender waits for: {waits_for}"

    def _is_over(self, view: Any) -> bool:
        if view.phase in _NAMES_NO_ATTEMPT:
            return True
        return AttemptId.from_proto(view.attempt) != self.attempt

    def check(self) -> None:
        """Raises if `attempt` is over, or the membership has ended."""
        self.wait(lambda view: self.attempt is None or not self._is_over(view), "the attempt")
        if (lost := self.lost) is not None:
            raise lost

    def _raise_over(self, deadline: Deadline) -> None:
        """Waits until it is decided what comes next, since that has the reason. Holds _news."""
        over, self.attempt = self.attempt, None
        while self._view.phase in _NAMES_NO_ATTEMPT:
            if self._lost is not None:
                raise self._lost
            if not deadline.left:
                raise DeadlineError(self._late(f"{over} is lost, and the next one", deadline))
            self._news.wait(deadline.left)
        decision = self._view.abandoned
        reason = decision.reason or "the sender began another attempt"
        if decision.HasField("rank"):
            raise RankLostError(f"{over} was abandoned because of rank {decision.rank}: {reason}", reason, decision.rank)
        raise MinibatchAbandonedError(f"{over} was abandoned: {reason}", reason)

    def gather(self, unit: int, version: int, begins_microbatch: bool) -> Any:
        """Asks for a unit; `settle` what it returns."""
        with self._news:
            released, self._released = self._released, []
        request = on_demand_pb2.GatherRequest(
            member=self._member,
            unit=unit,
            version=version,
            begins_microbatch=begins_microbatch,
            released=released,
        )
        call = self._stub.Gather.future(request, timeout=self._timeout)
        call.add_done_callback(lambda _: self.wake())
        return call

    def settle(self, call: Any, what: str) -> Any:
        """Waits for a gather.

        Returns:
          The GatherReply: call `release` with it when its bytes were read.

        Raises:
          As `wait`; DwsError: the gather failed. A DeadlineError names the owner that it has waited for; a
            DaemonUnavailableError an owner that was lost while it was read.
        """
        try:
            self.wait(lambda _: bool(call.done()), what)
        except BaseException:
            self.forget(call)
            raise
        try:
            return call.result()
        except grpc.RpcError as error:
            failed = self._daemon.error(error, what)
            if isinstance(failed, DeadlineError):
                raise failed from error
            self.explain(failed, _OWNER_NEWS_SECONDS if isinstance(failed, DaemonUnavailableError) else _NEWS_SECONDS)

    def explain(self, error: DwsError, timeout: float = _NEWS_SECONDS) -> Any:
        """Raises the error of a call. It may have failed because the attempt is over, of which the news is still on
        its way: then that is raised, if it comes in `timeout` seconds."""
        if self.attempt is not None:
            try:
                self.wait(lambda _: False, "", timeout)
            except DeadlineError:
                pass
            except DwsError as over:
                raise over from error
        raise error

    def release(self, reply: Any) -> None:
        """Lets go of gathered bytes, with the next gather."""
        with self._news:
            self._released.append(reply.lease)

    def forget(self, call: Any) -> None:
        """Lets go of a gather's bytes as soon as it has ended, without waiting for that."""

        def ended(done: Any) -> None:
            if not done.cancelled() and done.exception() is None:
                self.release(done.result())

        call.add_done_callback(ended)

    def finish(self, pushes: int, weight: float, waits: Waits) -> Any:
        """Says that the rank has pushed everything, and waits for the decision.

        Args:
          pushes: of the attempt.
          weight: what they count.
          waits: what the rank has waited so far, for the sender's status.

        Returns:
          The view with it, whose phase is in DECIDED.

        Raises:
          As `wait`.
        """
        assert self.attempt is not None
        request = on_demand_pb2.FinishRequest(
            member=self._member, attempt=self.attempt.to_proto(), pushes=pushes, weight=weight,
            waits=on_demand_pb2.RankWaits(
                gather_seconds=waits.gather_seconds,
                push_seconds=waits.push_seconds,
                decision_seconds=waits.decision_seconds,
            ),
        )
        what = f"finishing {self.attempt}"
        try:
            self._daemon.call(self._stub.Finish, request, what)
        except DwsError as error:
            self.explain(error)
        started = time.monotonic()
        view = self.wait(
            lambda view: not self._is_over(view) and view.phase in DECIDED,
            f"the decision about {self.attempt}",
        )
        waits.decision_seconds += time.monotonic() - started
        self.attempt = None
        return view

    def abandon(self, reason: str) -> None:
        """Tells the other ranks that this one cannot go on with the attempt, if the sender can be reached."""
        if self.attempt is None:
            return
        request = on_demand_pb2.AbandonRequest(
            member=self._member, attempt=self.attempt.to_proto(), reason=reason
        )
        try:
            self._stub.Abandon(request, timeout=_ABANDON_SECONDS)
        except grpc.RpcError as error:  # it is over already, or the sender is gone
            _LOG.info("dws: rank %d: abandoning %s: %s", self._rank, self.attempt, error)
        self.attempt = None

    def skip(self, minibatch: int) -> None:
        """Skips the step of a minibatch whose gradient is not finite."""
        request = on_demand_pb2.SkipRequest(member=self._member, minibatch=minibatch)
        self._daemon.call(self._stub.Skip, request, f"skipping minibatch {minibatch}")

    def close(self) -> None:
        """Ends the membership: the other ranks see this one as lost. Idempotent."""
        with self._news:
            self._closed = True
        if self._follow is not None:
            self._follow.cancel()
        if self._handles is not None:
            self._handles.close()
        self._daemon.close()
