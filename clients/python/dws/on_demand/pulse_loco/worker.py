"""One worker of PULSELoCo: theta_g, u and the residual e between rounds, and the round that is open."""

from __future__ import annotations

import copy
import enum
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from dws.digest import Digest, combine, digest_bytes, digest_hex
from dws.dtypes import DType
from dws.errors import InvalidArgumentError, LayoutError, StateError
from dws.on_demand.pulse_loco.arithmetic import Array, Settings, outer_step, require_finite, require_flat, select
from dws.on_demand.pulse_loco.objects import RANKS_MAX, Address, Base, Decoded, Kind, decode, encode
from dws.on_demand.pulse_loco.state import Pending, State, pack, unpack

_NUMBER_MAX = (1 << 63) - 1


class Full(NamedTuple):
    """What all workers have in common, for one that differs or joins.

    Attributes:
      round: the rounds that are behind it.
      theta_g, u: FP32, all elements.
      counted: int64, [256, 2]: of each rank the last round and attempt in which its contribution was in the sum; -1:
        none was.
      digest: of all that.
    """

    round: int
    theta_g: Array
    u: Array
    counted: Array
    digest: Digest


class Residual(enum.Enum):
    """What became of a worker's residual when it took a Full."""

    KEPT = "nothing of the worker was counted since; what it had contributed to a round that is over is in the residual"
    COUNTED = "the contribution of the open round was counted; what it did not send is in the residual"
    DROPPED = "contributions that this state does not know were counted, so the residual was set to 0"


class PulseLoCo:
    """Lifecycle: `begin`, local steps, `contribute`, `apply`, and again; `abandon` between begin and apply leads back to
    begin. Nothing that `contribute` does is final before `apply`. A call that raises has changed nothing.

    Threads: one at a time. Memory: 12 bytes an element, while a contribution is pending 16, inside calls up to 36.

    Attributes:
      rank: of this worker, below 256.
      round: rounds that were applied.
      attempt: of the open round; None: no round is open.
    """

    def __init__(self, theta: Array, *, rank: int, shards: Sequence[int], settings: Settings = Settings()) -> None:
        """Args:
          theta: the first theta_g, FP32, 1-D: the same bits on every worker. It is copied.
          shards: the elements of each owner's shard, in order.

        Raises:
          LayoutError, DTypeError, InvalidArgumentError: an argument is not as described; theta is not finite.
        """
        settings.check()
        require_flat("theta", theta)
        require_finite("theta", theta)
        if not 0 <= rank < RANKS_MAX:
            raise InvalidArgumentError(f"rank {rank}: expected 0 to {RANKS_MAX - 1}")
        if min(shards, default=-1) < 0 or sum(shards) != theta.size:
            raise LayoutError(f"shards of {list(shards)} elements: expected {theta.size} together, none below 0")
        self.rank, self.round, self.settings = rank, 0, settings
        self.attempt: Optional[int] = None
        self._last_attempt = 0
        self._bounds = [sum(shards[:shard]) for shard in range(len(shards) + 1)]
        self._theta, self._u, self._residual = theta.copy(), np.zeros_like(theta), np.zeros_like(theta)
        self._counted = np.full((RANKS_MAX, 2), -1, np.int64)
        self._pending: Optional[Pending] = None
        self._bases = self._make_bases(self._theta)

    @property
    def theta_g(self) -> Array:
        """A view that cannot be written. Its memory is not written either: `apply` makes new memory."""
        return _read_only(self._theta)

    @property
    def u(self) -> Array:
        """u, the outer momentum: float32, one for each parameter; read-only."""
        return _read_only(self._u)

    @property
    def residual(self) -> Array:
        """e, which no open round changes."""
        return _read_only(self._residual)

    @property
    def last_attempt(self) -> int:
        """The number of the last attempt of this round; 0: there was none."""
        return self._last_attempt

    @property
    def shards(self) -> list[int]:
        """Parameters in each rank's shard, by rank."""
        return [end - begin for begin, end in zip(self._bounds, self._bounds[1:])]

    @property
    def contributed(self) -> Optional[list[bytes]]:
        """The objects of the open attempt, to send them again; None before `contribute`."""
        return list(self._pending.objects) if self._pending else None

    @property
    def contributed_weights(self) -> Optional[Digest]:
        """The digest of the weights that `contributed` was made from."""
        return self._pending.theta_r if self._pending else None

    def digest(self) -> Digest:
        """The digest of theta_g, u and who was counted when. Workers compare it after each round."""
        return _digest(self._bases, self._u, self._counted)

    def address(self, shard: int) -> Address:
        """Raises StateError if no round is open."""
        if self.attempt is None:
            raise StateError(f"round {self.round} is not open: call begin first")
        return Address(self.round, self.attempt, shard)

    def begin(self, attempt: Optional[int] = None) -> Array:
        """Opens the round, and returns theta_g, from which the local steps start.

        Args:
          attempt: its number, which all workers have to use; None: one more than the last one of this round.

        Raises:
          StateError: a round is open.
          InvalidArgumentError: the number is not above that of the last attempt.
        """
        if self.attempt is not None:
            raise StateError(f"attempt {self.attempt} of round {self.round} is open: apply or abandon it first")
        number = self._last_attempt + 1 if attempt is None else attempt
        if not self._last_attempt < number <= _NUMBER_MAX:
            raise InvalidArgumentError(f"attempt {number}: expected a number above {self._last_attempt}")
        self.attempt = self._last_attempt = number
        return self.theta_g

    def contribute(self, theta_r: Array) -> list[bytes]:
        """Makes this worker's contribution from the weights after its local steps.

        A worker that saves `state` between this call and sending loses nothing when it is killed.

        Args:
          theta_r: FP32, 1-D, all elements.

        Returns:
          One object for each shard's owner. The same weights give the same objects again.

        Raises:
          InvalidArgumentError: weights, or what is to be sent, are not finite. The worker may still apply the sum of
            the others.
          LayoutError, DTypeError: it has another shape or type.
          StateError: no round is open, or other weights were contributed to this attempt: abandon it first.
        """
        addresses = [self.address(shard) for shard in range(len(self._bases))]
        require_flat("theta_r", theta_r, self._theta.size)
        require_finite("theta_r", theta_r)
        of = digest_bytes(np.ascontiguousarray(theta_r))
        if self._pending is not None:
            if self._pending.theta_r != of:
                raise StateError(
                    f"attempt {self.attempt} of round {self.round} has a contribution of other weights: call abandon, "
                    "and begin the next attempt, on all workers"
                )
            return list(self._pending.objects)
        chosen = select(self._theta, self._residual, theta_r, self.settings.values)
        objects = [
            encode(Kind.CONTRIBUTION, address, base, chosen.values[begin:end], self.settings.values, [self.rank])
            for address, base, (begin, end) in zip(addresses, self._bases, self._ranges())
        ]
        self._pending = Pending(of, chosen.residual, objects)
        return list(objects)

    def abandon(self) -> None:
        """Ends the open attempt, if there is one: all is as it was before `begin`."""
        self.attempt, self._pending = None, None

    def apply(self, sums: Sequence[bytes]) -> Digest:
        """Ends the round with the sums of all shards: the outer step. The next `begin` returns the new theta_g.

        If this worker's contribution is not in the sums, all of it stays in the residual.

        Returns:
          The digest, to compare with the other workers'.

        Raises:
          InvalidArgumentError: a sum is damaged, not of this attempt, or of other ranks than another shard's; the new
            theta_g or u would not be finite.
          StateError: no round is open, or the sums have a contribution of this rank that it does not know.
        """
        if len(sums) != len(self._bases):
            raise InvalidArgumentError(f"{len(sums)} sums: expected one for each of {len(self._bases)} shards")
        found = [decode(Kind.SUM, data, self.address(shard), base, DType.F32, f"the owner of shard {shard}")
                 for shard, (data, base) in enumerate(zip(sums, self._bases))]
        ranks = self._common_ranks(found)
        if self.rank in ranks and self._pending is None:
            raise StateError(
                f"the sums have a contribution of rank {self.rank}, which has made none in attempt {self.attempt} of "
                f"round {self.round}: take theta_g and u in full from another worker"
            )
        dense = np.concatenate([part.dense(base.theta.size) for part, base in zip(found, self._bases)])
        theta, u = outer_step(self._theta, self._u, dense, len(ranks), self.settings)
        residual = self._residual_after(self.rank in ranks)
        bases = self._make_bases(theta)
        counted = self._counted.copy()
        counted[list(ranks)] = self.round, self.attempt
        self._counted = counted
        self._commit(self.round + 1, theta, u, residual, bases)
        return self.digest()

    def fork(self) -> "PulseLoCo":
        """The same worker again, for a step that may be given up. They share arrays, which neither writes."""
        return copy.copy(self)

    def full(self) -> Full:
        """What another worker needs to become equal. Arrays are not copied, and stay as they are."""
        return Full(self.round, self.theta_g, self.u, self._counted.copy(), self.digest())

    def take(self, full: Full, theta_r: Optional[Array] = None, *, final: bool = False) -> Residual:
        """Makes this worker equal to another. An open attempt ends.

        Args:
          theta_r: the weights after local steps from this worker's theta_g, FP32, 1-D; they may differ from those that
            were contributed to the open attempt. What the steps moved goes to the residual, less what was counted of it.
            None: the weights that were contributed.
          final: they are not contributed again, also if the round is not over.

        Returns:
          What became of the residual. It is never added twice; it is lost only as the value says.

        Raises:
          InvalidArgumentError: the arrays do not have the digest, or are not finite; or theta_r is not.
          LayoutError, DTypeError: they have other shapes or types.
          StateError: it is of an earlier round than this worker.
        """
        for name, array in (("theta_g", full.theta_g), ("u", full.u)):
            require_flat(name, array, self._theta.size)
            require_finite(name, array)
        if full.counted.shape != self._counted.shape or full.counted.dtype != np.int64:
            raise LayoutError(f"counted is {full.counted.dtype} {full.counted.shape}: expected int64, [256, 2]")
        if full.round < self.round:
            raise StateError(f"round {full.round} in full, but this worker is at {self.round}: load its state of then")
        theta = full.theta_g.copy()
        bases = self._make_bases(theta)
        if (found := _digest(bases, full.u, full.counted)) != full.digest:
            raise InvalidArgumentError(
                f"theta_g and u in full have digest {digest_hex(found)}, expected {digest_hex(full.digest)}: fetch them "
                "again"
            )
        last = tuple(full.counted[self.rank].tolist())
        if last == tuple(self._counted[self.rank].tolist()):
            # A round that is not over is abandoned: its weights may be contributed again.
            over = final or full.round > self.round
            outcome, residual = Residual.KEPT, self._residual_after(False, theta_r) if over else self._residual
        elif self._pending is not None and last == (self.round, self.attempt):
            outcome, residual = Residual.COUNTED, self._residual_after(True, theta_r)
        else:
            outcome, residual = Residual.DROPPED, np.zeros_like(self._residual)
        self._counted = full.counted.copy()
        self._commit(full.round, theta, full.u.copy(), residual, bases)
        return outcome

    def state(self) -> dict[str, Array]:
        """All of this worker, an open attempt with its contribution too, as named arrays for numpy.savez, or, with
        torch.from_numpy, for a distributed checkpoint. They are not copied; this class does not write them again.
        """
        return pack(State(self._theta, self._u, self._residual, self._counted, self.shards, self.rank, self.round,
                          self.attempt or 0, self._last_attempt, self.settings, self._pending))

    @classmethod
    def from_state(cls, arrays: Mapping[str, Any]) -> "PulseLoCo":
        """The worker that `state` was called on.

        Raises:
          InvalidArgumentError: arrays (or tensors of the host) are missing or damaged.
        """
        state = unpack(arrays)
        worker = cls(state.theta_g, rank=state.rank, shards=state.shards, settings=state.settings)
        worker.round, worker.attempt, worker._last_attempt = state.round, state.attempt or None, state.last_attempt
        worker._u, worker._residual, worker._counted = state.u, state.residual, state.counted
        worker._pending = state.pending
        return worker

    def _commit(self, number: int, theta: Array, u: Array, residual: Array, bases: list[Base]) -> None:
        self.round, self._theta, self._u, self._residual, self._bases = number, theta, u, residual, bases
        self.attempt, self._last_attempt, self._pending = None, 0, None

    def _residual_after(self, counted: bool, theta_r: Optional[Array] = None) -> Array:
        """Args:
          counted: the open attempt's contribution was.
          theta_r: as of `take`.
        """
        if theta_r is not None:
            require_flat("theta_r", theta_r, self._theta.size)
            with np.errstate(over="ignore", invalid="ignore"):
                s: Array = self._residual + (self._theta - theta_r)
                if counted:
                    self._add_sent(s, -1)
            require_finite("the residual and this round's change together", s)
            return s
        if self._pending is None:
            return self._residual
        if counted:
            return self._pending.residual
        # The residual was s - v, without rounding where v is not 0; so this is s again, to the bit.
        s = self._pending.residual.copy()
        self._add_sent(s, 1)
        return s

    def _add_sent(self, out: Array, sign: int) -> None:
        """Adds what the open attempt has contributed, or subtracts it."""
        objects = self._pending.objects if self._pending else []
        own = [decode(Kind.CONTRIBUTION, data, self.address(shard), base, self.settings.values, "this worker")
               for shard, (data, base) in enumerate(zip(objects, self._bases))]
        for part, (begin, end) in zip(own, self._ranges()):
            out[begin:end][part.positions] += np.float32(sign) * part.values

    def _common_ranks(self, found: Sequence[Decoded]) -> tuple[int, ...]:
        for shard, part in enumerate(found):
            if part.ranks != found[0].ranks:
                raise InvalidArgumentError(
                    f"the sum of shard {shard} has contributions of ranks {list(part.ranks)}, that of shard 0 of "
                    f"{list(found[0].ranks)}: owners have to be told the same ranks"
                )
        return found[0].ranks

    def _make_bases(self, theta: Array) -> list[Base]:
        return [Base.of(theta[begin:end]) for begin, end in self._ranges()]

    def _ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._bounds, self._bounds[1:]))


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _digest(bases: Sequence[Base], u: Array, counted: Array) -> Digest:
    digests = [base.digest for base in bases]
    return combine([*digests, digest_bytes(np.ascontiguousarray(u)), digest_bytes(counted)])
