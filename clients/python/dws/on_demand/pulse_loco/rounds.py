"""Rounds of PULSELoCo over the senders of the workers.

1. Each worker says hello: its round, its digest, whether it contributes.
2. Rank 0 waits for the hellos, and puts a plan, whose number is the attempt: who takes part, and who needs theta_g in full.
3. Contributions go to the owners of the shards, which put the sums. Everybody fetches all sums, and makes the next theta_g
   from them, beside the one that it has.
4. Each worker says that it is ready, with the digest of that. When all are, rank 0 puts the decision; only then a worker
   takes the new theta_g in the place of the old one.
5. A worker that finds another one gone before that tells why, and goes back to 1. A worker that missed a decision is behind
   at the next hello, and takes theta_g in full. Then its local steps are in its residual, and it contributes no more to the
   round, also if that is tried again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np

from dws._proto import local_rounds_pb2
from dws.deadline import Deadline
from dws.digest import Digest, digest_bytes, digest_hex
from dws.errors import DaemonUnavailableError, DeadlineError, DwsError, InvalidArgumentError, RankLostError
from dws.on_demand.pulse_loco.arithmetic import Array, require_finite, require_flat
from dws.on_demand.pulse_loco.exchange import ObjectExchange, Wanted, from_proto, to_proto
from dws.on_demand.pulse_loco.objects import RANKS_MAX, object_bytes_max
from dws.on_demand.pulse_loco.owner import ShardSum
from dws.on_demand.pulse_loco.planning import Hello, Plan, common_of, make_plan, most_common, require_same
from dws.on_demand.pulse_loco.worker import Full, PulseLoCo, Residual

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 0.1
_LAST_TRY_SECONDS = 0.5  # long enough to hear that a rank is gone
_HELLO_AGAIN_SECONDS = 10.0
_CLOSE_SECONDS = 10.0
_MESSAGE_BYTES_MAX = 1 << 20  # of hello, plan and the like
_SHARDS_MAX = 1024


class Round(NamedTuple):
    """How a round has ended.

    Attributes:
      number: the rounds that theta_g has behind it now.
      attempt: that was decided.
      members: the ranks that took part, ascending.
      counted: those whose contributions are in the sums.
      residual: what became of this worker's residual, if it took theta_g in full in this round, or in calls of `run`
        before that raised; else None. The residual has what the local steps moved and was not sent, unless it was
        dropped.
      abandoned: why attempts before were abandoned.
    """

    number: int
    attempt: int
    members: tuple[int, ...]
    counted: tuple[int, ...]
    residual: Optional[Residual]
    abandoned: tuple[DwsError, ...]


class LocalRounds:
    """Lifecycle: make; `run` for each round; close. Threads: one at a time.

    Attributes:
      worker: theta_g, u and the residual. Each round replaces the object.
    """

    def __init__(
        self,
        socket: str,
        worker: PulseLoCo,
        *,
        job_id: str,
        ranks: int,
        timeout: float = 1800.0,
        missing_after: float = 60.0,
        on_contributed: Optional[Callable[[PulseLoCo], None]] = None,
    ) -> None:
        """Args:
          socket: of the sender of the worker's rank, which was started with --train-peers.
          ranks: how many workers the job has, and senders.
          timeout: seconds that `run` waits for other workers, which are named when they are over.
          missing_after: seconds that rank 0 waits for a worker without a process, from when it finds that, before it begins
            the round without it.
          on_contributed: called in each attempt with the worker, before anything is sent. If it saves `worker.state()`, no
            residual is dropped after a kill.

        Raises:
          InvalidArgumentError: ranks do not include the worker's, or there are too many shards.
        """
        if not worker.rank < ranks <= RANKS_MAX:
            raise InvalidArgumentError(f"rank {worker.rank} of {ranks} ranks: expected a lower one, and at most {RANKS_MAX}")
        if len(worker.shards) > _SHARDS_MAX:
            raise InvalidArgumentError(f"{len(worker.shards)} shards: expected at most {_SHARDS_MAX}")
        self.worker = worker
        self._rank, self._ranks = worker.rank, ranks
        self._timeout, self._missing_after = timeout, missing_after
        self._on_contributed = on_contributed
        self._common = common_of(worker)
        self._exchange = ObjectExchange(socket, job_id, worker.rank, ranks)
        self._next = worker.last_attempt + 1  # the number of the next object that is not of an attempt
        self._heard: dict[int, tuple[int, int]] = {}  # by rank, the last hello, or of rank 0 the last plan
        # Since the last `run` that returned: what takes did to the residual, and digests of weights whose steps are in the
        # residual, or in theta_g, already.
        self._residual: Optional[Residual] = None
        self._spent: set[Digest] = set()
        self._last: Optional[Plan] = None  # decided

    @property
    def theta_g(self) -> Array:
        """Where local steps begin; FP32, 1-D, read-only."""
        return self.worker.theta_g

    def run(self, theta_r: Optional[Array]) -> Round:
        """Runs a round with the others, again until an attempt is decided.

        After an error it may be called again with the same weights, whose steps count once: if this worker took theta_g in
        full before the error, they are in its residual, and it takes part without a contribution. Other weights have to
        come from steps that start from `theta_g` as it is then.

        Args:
          theta_r: the weights after local steps from `theta_g`, FP32, 1-D; None: this worker takes part without a
            contribution, for example to join.

        Raises:
          InvalidArgumentError, LayoutError, DTypeError: the weights are not as described or not finite, or this worker has
            other shards or settings than rank 0. The worker has not changed, unless it took theta_g in full.
          DeadlineError, RankLostError: a worker did not come in time, or is lost still; it is named.
          DaemonUnavailableError, StateError: the same for this worker's own sender; or a sender refuses.
        """
        if theta_r is not None:
            require_flat("theta_r", theta_r, self.worker.theta_g.size)
            require_finite("theta_r", theta_r)
        deadline = Deadline(self._timeout)
        abandoned: list[DwsError] = []
        while True:
            theta_r = self._unspent(theta_r)
            process = self._exchange.attached(deadline.left)
            try:
                result = self._attempt(process, theta_r, deadline, abandoned)
                self._residual = None
                self._spent.clear()
                return result
            except (RankLostError, DaemonUnavailableError) as error:
                if not deadline.left:
                    self._give_up(process, error)
                    raise
                _LOG.warning("dws: rank %d: round %d is tried again: %s", self._rank, self.worker.round, error)
                abandoned.append(error.with_traceback(None))  # which would keep the attempt's arrays
                time.sleep(min(_AGAIN_SECONDS, deadline.left))
            except BaseException as error:
                self._give_up(process, error)
                raise

    def _unspent(self, theta_r: Optional[Array]) -> Optional[Array]:
        """None: what the weights are to contribute is in the residual, or in theta_g, already."""
        if theta_r is None or not self._spent:
            return theta_r
        return None if digest_bytes(np.ascontiguousarray(theta_r)) in self._spent else theta_r

    def _attempt(self, process: int, theta_r: Optional[Array], deadline: Deadline, abandoned: Sequence[DwsError]) -> Round:
        plan = self._agree(process, theta_r is not None, deadline, abandoned)
        self._begin(plan, process, theta_r, deadline)
        parts = self._contribute(plan, process, theta_r)
        sums = self._sum(plan, process, parts, deadline)
        after = self.worker.fork()
        if plan.contributors:
            after.apply(sums)
        else:
            after.abandon()
        self._decide(plan, process, after, deadline)
        if self.worker.contributed_weights is not None:
            self._spent.add(self.worker.contributed_weights)
        self.worker, self._last = after, plan
        if self._rank:
            # The round is decided: what happens to a sender does not change that.
            with contextlib.suppress(DwsError):
                self._put(process, "done", plan.attempt, b"")
        return Round(after.round, plan.attempt, tuple(plan.members), tuple(plan.contributors), self._residual, tuple(abandoned))

    def _agree(self, process: int, contributes: bool, deadline: Deadline, abandoned: Sequence[DwsError]) -> Plan:
        """Steps 1 and 2."""
        message = local_rounds_pb2.RoundHello(
            round=self.worker.round, digest=to_proto(self.worker.digest()), contributes=contributes, common=self._common
        )
        # The others may still want what rank 0 has put in a round that it has decided; their next hello says that they do not.
        over = str(abandoned[-1]) if abandoned else "it has begun another round" if self._rank else None
        hello = Hello(process, self._say_hello(process, message, over), message)
        plan = self._await_plan(hello, deadline) if self._rank else self._make_plan(hello, deadline)
        self._next = max(self._next, plan.attempt + 1)
        return plan

    def _say_hello(self, process: int, message: Optional[Any], over: Optional[str] = None) -> int:
        """Returns its number. Without a message: the hellos before are answered, there is no new one yet."""
        number, self._next = self._next, self._next + 1
        self._put(process, "hello", number, b"" if message is None else message.SerializeToString(), over)
        return number

    def _make_plan(self, mine: Hello, deadline: Deadline) -> Plan:
        hellos = {0: mine}
        for rank in range(1, self._ranks):
            hello = self._hello_of(rank, deadline)
            if hello is not None and hello.message.common == self._common:
                hellos[rank] = hello
        message = make_plan(hellos)
        attempt = max(hello.number for hello in hellos.values())
        self._put(mine.process, "plan", attempt, message.SerializeToString(), "it has begun another attempt")
        return Plan.from_proto(mine.process, attempt, message)

    def _hello_of(self, rank: int, deadline: Deadline) -> Optional[Hello]:
        """None: the worker has no process."""
        patience: Optional[Deadline] = None  # once it has none
        while True:
            wanted = self._newer(rank, "hello")
            try:
                found = self._exchange.fetch(wanted, max(deadline.left, _LAST_TRY_SECONDS))
            except RankLostError as error:
                if not deadline.left:
                    raise
                patience = patience or Deadline(self._missing_after)
                if not patience.left:
                    _LOG.warning("dws: round %d begins without rank %d: %s", self.worker.round, rank, error)
                    return None
                time.sleep(_AGAIN_SECONDS)
                continue
            self._heard[rank] = found.process, found.number
            if not found.data:
                continue
            return Hello(found.process, found.number, _parse(local_rounds_pb2.RoundHello, found.data, rank))

    def _await_plan(self, mine: Hello, deadline: Deadline) -> Plan:
        """Says hello again and again, since rank 0 may have heard it in an attempt that it has given up, and want another."""
        numbers = [mine.number]  # of hellos that a plan may answer
        while True:
            wanted = self._newer(0, "plan")
            try:
                found = self._exchange.fetch(wanted, min(max(deadline.left, _LAST_TRY_SECONDS), _HELLO_AGAIN_SECONDS))
            except (RankLostError, DeadlineError) as error:
                if not deadline.left and isinstance(error, RankLostError):
                    raise
                if not deadline.left:
                    raise DeadlineError(
                        f"rank 0 has planned no round with this worker of rank {self._rank} in {self._timeout:g} s: is a "
                        "worker slow, or did one stop calling run?"
                    ) from error
                time.sleep(_AGAIN_SECONDS)
                numbers.append(self._say_hello(mine.process, mine.message))
                continue
            self._heard[0] = found.process, found.number
            self._next = max(self._next, found.number + 1)
            message = _parse(local_rounds_pb2.RoundPlan, found.data, 0)
            require_same(self._common, message.common, self._rank)
            plan = Plan.from_proto(found.process, found.number, message)
            me = plan.members.get(self._rank)
            if me is None or me.process != mine.process:
                continue
            if me.hello in numbers:
                if me.hello != numbers[-1]:
                    self._say_hello(mine.process, None)
                return plan
            # Rank 0 waits for an attempt that this worker does not make: it answers a hello of one that is over.
            numbers = [self._say_hello(mine.process, mine.message, "the plan answers a hello that is over")]

    def _begin(self, plan: Plan, process: int, theta_r: Optional[Array], deadline: Deadline) -> None:
        """Gives or takes theta_g in full, and opens the round."""
        if plan.members[self._rank].takes_full:
            self._take(self._fetch_full(plan, deadline), theta_r)
        else:
            self.worker.abandon()
        if plan.takers and self._rank == plan.source:
            full = self.worker.full()
            message = local_rounds_pb2.RoundFull(counted=full.counted.reshape(-1).tolist())
            self._put(process, "full", plan.attempt, message.SerializeToString())
            self._put(process, "full-theta", plan.attempt, full.theta_g.tobytes())
            self._put(process, "full-u", plan.attempt, full.u.tobytes())
        self.worker.begin(plan.attempt)

    def _take(self, full: Full, theta_r: Optional[Array]) -> None:
        """The others go on without this worker's steps, or have counted them: so what was not counted goes to the residual."""
        spent = [self.worker.contributed_weights, None if theta_r is None else digest_bytes(np.ascontiguousarray(theta_r))]
        found = self.worker.take(full, theta_r, final=True)
        self._spent.update(digest for digest in spent if digest is not None)
        if self._residual is None or self._residual is Residual.KEPT:
            self._residual = found

    def _fetch_full(self, plan: Plan, deadline: Deadline) -> Full:
        size = 4 * self.worker.theta_g.size
        names = {"full": _MESSAGE_BYTES_MAX, "full-theta": size, "full-u": size}
        wanted = [self._wanted(plan, plan.source, name, most) for name, most in names.items()]
        message, theta, u = (found.data for found in self._exchange.fetch_all(wanted, deadline.left))
        counted = np.array(_parse(local_rounds_pb2.RoundFull, message, plan.source).counted, np.int64)
        if counted.size != 2 * RANKS_MAX or len(theta) != size or len(u) != size:
            raise InvalidArgumentError(f"rank {plan.source} gave {len(theta)} and {len(u)} bytes in full, expected {size}")
        arrays = [np.frombuffer(data, np.float32) for data in (theta, u)]
        return Full(plan.round, arrays[0], arrays[1], counted.reshape(RANKS_MAX, 2), plan.digest)

    def _contribute(self, plan: Plan, process: int, theta_r: Optional[Array]) -> dict[int, bytes]:
        """Returns this worker's contribution to each shard; none: it makes none."""
        if theta_r is None or not plan.members[self._rank].contributes:
            return {}
        parts = dict(enumerate(self.worker.contribute(theta_r)))
        if self._on_contributed is not None:
            self._on_contributed(self.worker)
        for shard, part in parts.items():
            if plan.owner(shard) != self._rank:
                self._put(process, f"part-{shard}", plan.attempt, part)
        return parts

    def _sum(self, plan: Plan, process: int, parts: dict[int, bytes], deadline: Deadline) -> list[bytes]:
        """Makes the sums of the shards that this worker owns, and returns those of all."""
        if not plan.contributors:
            return []
        shards = self.worker.shards
        sums: dict[int, bytes] = {}
        begin = 0
        for shard, size in enumerate(shards):
            if plan.owner(shard) == self._rank:
                theta = self.worker.theta_g[begin : begin + size]
                sums[shard] = self._sum_of(plan, shard, theta, parts, deadline)
                self._put(process, f"sum-{shard}", plan.attempt, sums[shard])
            begin += size
        others = [shard for shard in range(len(shards)) if shard not in sums]
        wanted = [self._wanted(plan, plan.owner(shard), f"sum-{shard}", object_bytes_max(shards[shard])) for shard in others]
        sums.update(zip(others, (found.data for found in self._exchange.fetch_all(wanted, deadline.left))))
        return [sums[shard] for shard in range(len(shards))]

    def _sum_of(self, plan: Plan, shard: int, theta: Array, parts: dict[int, bytes], deadline: Deadline) -> bytes:
        owner = ShardSum(theta, self.worker.address(shard), self.worker.settings.values)
        if parts:
            owner.add(parts[shard], "this worker")
        others = [rank for rank in plan.contributors if rank != self._rank]
        wanted = [self._wanted(plan, rank, f"part-{shard}", object_bytes_max(theta.size)) for rank in others]
        for rank, found in zip(others, self._exchange.fetch_all(wanted, deadline.left)):
            owner.add(found.data, f"rank {rank}")
        return owner.total(plan.contributors)

    def _decide(self, plan: Plan, process: int, after: PulseLoCo, deadline: Deadline) -> None:
        """Step 4. Raises RankLostError if the digest of `after` is not the one that most have."""
        digest = after.digest()
        message = local_rounds_pb2.RoundReady(digest=to_proto(digest)).SerializeToString()
        if self._rank:
            self._put(process, "ready", plan.attempt, message)
            found = self._exchange.fetch(self._wanted(plan, 0, "decided"), deadline.left)
            decided = from_proto(_parse(local_rounds_pb2.RoundReady, found.data, 0).digest)
        else:
            digests = {0: digest}
            others = [rank for rank in plan.members if rank]
            wanted = [self._wanted(plan, rank, "ready") for rank in others]
            for rank, ready in zip(others, self._exchange.fetch_all(wanted, deadline.left)):
                digests[rank] = from_proto(_parse(local_rounds_pb2.RoundReady, ready.data, rank).digest)
            decided = most_common(digests)
            message = local_rounds_pb2.RoundReady(digest=to_proto(decided)).SerializeToString()
            self._exchange.put(process, "decided", plan.attempt, message, None, after.round)
        if digest != decided:
            why = f"rank {self._rank} has digest {digest_hex(digest)} after round {plan.round}, most have {digest_hex(decided)}"
            raise RankLostError(f"{why}: it takes theta_g in full", why, self._rank)

    def _newer(self, rank: int, name: str) -> Wanted:
        process, number = self._heard.get(rank, (0, 0))
        return Wanted(rank, process, name, number, _MESSAGE_BYTES_MAX, newer=True)

    def _wanted(self, plan: Plan, rank: int, name: str, bytes_max: int = _MESSAGE_BYTES_MAX) -> Wanted:
        return Wanted(rank, plan.members[rank].process, name, plan.attempt, bytes_max)

    def _put(self, process: int, name: str, number: int, data: bytes, over_because: Optional[str] = None) -> None:
        self._exchange.put(process, name, number, data, over_because, self.worker.round)

    def _give_up(self, process: int, error: BaseException) -> None:
        """Tells the others, so that they do not wait for this attempt. What this worker has contributed stays known, since the
        attempt may be decided."""
        try:
            self._put(process, "over", self._next, b"", f"it gave up: {error}"[:1000])
            self._next += 1
        except DwsError as also:
            _LOG.warning("dws: rank %d could not tell the others that it gives up: %s", self._rank, also)

    def close(self) -> None:
        """Leaves the job. Rank 0 waits until the others know how the last round has ended, at most 10 s. Idempotent."""
        plan, self._last = self._last, None
        if plan is not None and self._rank == 0:
            self._await_done(plan)
        self._exchange.close()

    def _await_done(self, plan: Plan) -> None:
        deadline = Deadline(_CLOSE_SECONDS)
        for rank in plan.members:
            # It may have gone on, or be gone.
            with contextlib.suppress(RankLostError, DeadlineError, DaemonUnavailableError):
                if rank:
                    self._exchange.fetch(self._wanted(plan, rank, "done"), deadline.left)

    def __enter__(self) -> "LocalRounds":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()


def _parse(kind: Any, data: bytes, rank: int) -> Any:
    try:
        return kind.FromString(data)
    except Exception as error:  # protobuf's own, of several kinds
        raise InvalidArgumentError(f"rank {rank} put something else than a {kind.__name__}: {error}") from error
