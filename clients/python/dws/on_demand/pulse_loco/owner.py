"""The owner's side of a round: the sum of all workers' contributions to one shard."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from dws.dtypes import DType
from dws.errors import InvalidArgumentError, StateError
from dws.on_demand.pulse_loco.arithmetic import Array, require_finite, require_flat, total
from dws.on_demand.pulse_loco.objects import Address, Base, Decoded, Kind, decode, encode


class ShardSum:
    """Collects contributions in any order; their sum does not depend on it.

    Lifecycle: one for each shard and attempt; dropped when the attempt is abandoned or the round applied.
    Threads: one at a time. Memory: 12 bytes for each value that was sent, until the sum is made.
    """

    def __init__(self, theta: Array, address: Address, values: DType) -> None:
        """Args:
          theta: the shard of theta_g, FP32; it must not change.
          values: what workers send, F32 or BF16.

        Raises:
          DTypeError, LayoutError: theta is not FP32, 1-D.
          InvalidArgumentError: it is not finite.
        """
        require_flat("theta", theta)
        require_finite("theta", theta)
        self._base = Base.of(np.ascontiguousarray(theta))
        self._address = address
        self._values = values
        self._objects: dict[int, tuple[bytes, Decoded]] = {}

    @property
    def ranks(self) -> list[int]:
        """The ranks that have contributed, ascending."""
        return sorted(self._objects)

    def values(self, rank: int) -> Array:
        """What this rank contributes to each element of the shard, FP32.

        Raises:
          StateError: it has not contributed.
        """
        if rank not in self._objects:
            raise StateError(f"shard {self._address.shard} has no contribution of ranks [{rank}]: wait for them")
        return self._objects[rank][1].dense(self._base.theta.size)

    def add(self, data: bytes, sender: str) -> bool:
        """Takes a contribution.

        Args:
          sender: who sent it, for errors.

        Returns:
          False: the same contribution was here before, and is not added again.

        Raises:
          InvalidArgumentError: it is damaged, of another round, attempt, shard, theta_g or type, or differs from what
            the same rank sent before. Nothing was added.
        """
        found = decode(Kind.CONTRIBUTION, data, self._address, self._base, self._values, sender)
        rank = found.ranks[0]
        if rank in self._objects:
            if self._objects[rank][0] != data:
                raise InvalidArgumentError(
                    f"{sender} sent a second, different contribution of rank {rank} to shard {self._address.shard} in "
                    f"round {self._address.round}, attempt {self._address.attempt}: abandon the attempt"
                )
            return False
        self._objects[rank] = data, found
        return True

    def total(self, ranks: Sequence[int]) -> bytes:
        """The sum of the contributions of these ranks, for all workers.

        Raises:
          StateError: one of them is missing; the message names all that are.
          InvalidArgumentError: no rank, or a sum is beyond FP32.
        """
        if not ranks:
            raise InvalidArgumentError("a sum of no contributions: expected at least one rank")
        missing = sorted(set(ranks) - set(self._objects))
        if missing:
            raise StateError(f"shard {self._address.shard} has no contribution of ranks {missing}: wait for them")
        order = sorted(set(ranks))
        parts = [self._objects[rank][1] for rank in order]
        sums = total([(part.positions, part.values) for part in parts], self._base.theta.size)
        return encode(Kind.SUM, self._address, self._base, sums, DType.F32, order)
