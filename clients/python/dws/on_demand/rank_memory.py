"""The memory of a rank that its sender maps: where parameters are gathered, and where gradients are summed. The outbox is
one more, of each membership. Needs no torch."""

from __future__ import annotations

from typing import Any, Sequence

from dws._proto import on_demand_pb2
from dws.dtypes import DType
from dws.errors import InvalidArgumentError
from dws.handles import Descriptor
from dws.host_pin import HostPin
from dws.memory import SharedRegion
from dws.on_demand.outbox import Outbox
from dws.on_demand.units import RECORD_BYTES, Unit, gradient_offsets

# The sender's limit (sender_daemon/on_demand/gather/limits.h).
PREFETCH_MAX = 64


class RankMemory:
    """Lifecycle: made once; `outbox` for each membership; close.

    Attributes:
      arena: `slots` times the largest unit.
      unit_bytes: of the largest unit in it.
      slots: 2 + prefetch.
      gradients: the sender's record, then the sums.
      gradient_offsets: for each unit, the number of its first element.
      gradient_elements: of all units, with what fills them up.
    """

    def __init__(
        self, units: Sequence[Unit], ranks: int, dtype: DType, gradient_dtype: DType, prefetch: int, exact: bool
    ) -> None:
        """Args:
          dtype: of gathered parameters.
          gradient_dtype: of what is pushed, BF16 or F32.
          exact: sums in FP64.

        Raises:
          InvalidArgumentError: a number is out of range.
          DwsError: the system has no memory left.
        """
        if not 0 <= prefetch <= PREFETCH_MAX:
            raise InvalidArgumentError(f"prefetch={prefetch}: expected 0 to {PREFETCH_MAX} units")
        self._units = tuple(units)
        self._ranks = ranks
        self._prefetch = prefetch
        self._exact = exact
        self._buffer_bytes = max(
            ranks * max(unit.shard_elements(ranks) for unit in units) * gradient_dtype.itemsize, 1
        )
        self.unit_bytes = max([1, *(unit.arena_offsets(dtype.itemsize)[1] for unit in units)])
        self.slots = 2 + prefetch
        self.arena = SharedRegion("dws-arena", self.unit_bytes * self.slots)
        self.gradient_offsets, self.gradient_elements = gradient_offsets(units, ranks)
        element_bytes = 8 if exact else 4
        self.gradients = SharedRegion(
            "dws-gradients", RECORD_BYTES + max(self.gradient_elements, 1) * element_bytes
        )
        self._pins: list[HostPin] = []

    def pin(self) -> None:
        """Page-locks what the device of this process copies from and to, later outboxes too. What cannot be is logged, and
        only slower."""
        self._pins = [HostPin(region) for region in (self.arena, self.gradients)]
        for pin in self._pins:
            pin.try_pin()

    def outbox(self, buffers: int) -> Outbox:
        """A new outbox. Args: buffers: how many units' gradients can be on their way."""
        outbox = Outbox(self._ranks, buffers, self._buffer_bytes)
        if self._pins:
            outbox.pin()
        return outbox

    def request(self, session: int, outbox: Outbox) -> Any:
        """A JoinRequest."""
        request = on_demand_pb2.JoinRequest(
            session=session,
            prefetch=self._prefetch,
            arena_bytes=self.arena.size_bytes,
            gradients_bytes=self.gradients.size_bytes,
            exact=self._exact,
            outbox_bytes=outbox.region.size_bytes,
        )
        for unit in self._units:
            request.units.add(
                name=unit.name,
                tensors=[parameter.name for parameter in unit.parameters],
                shard_elements=unit.shard_elements(self._ranks),
            )
        return request

    def descriptors(self, outbox: Outbox) -> list[Descriptor]:
        """The descriptors of what `request` declares, in its order."""
        return [
            self.arena.descriptor(),
            self.gradients.descriptor(),
            outbox.region.descriptor(),
            outbox.sender_end.fileno(),
        ]

    def close(self) -> None:
        """Drops the descriptors. Views stay valid. No copy of a device may be under way."""
        for pin in self._pins:
            pin.close()
        self.arena.close()
        self.gradients.close()
