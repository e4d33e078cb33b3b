"""What a rank has under way, without a sender, and copies of a device that end when a test says so. Needs no torch."""

from __future__ import annotations

import contextlib
import types
from typing import Any, Callable, Iterator, Optional

from dws.dtypes import DType
from dws.on_demand.member import AttemptId, Waits
from dws.on_demand.rank_memory import RankMemory
from dws.on_demand.traffic import Traffic
from dws.on_demand.units import Unit, UnitParameter

RANKS, RANK, VERSION = 3, 1, 4
UNIT = Unit(
    "u",
    (UnitParameter("a", (7, 5), True), UnitParameter("frozen", (2, 3), False), UnitParameter("b", (4,), True)),
)


class Copy:
    """A Done that ends when the test says so, or when it is waited for."""

    def __init__(self, ended: bool = False) -> None:
        self.ended, self.waited_for = ended, False

    def query(self) -> bool:
        return self.ended

    def synchronize(self) -> None:
        self.ended = self.waited_for = True


class FailedCopy(Copy):
    def synchronize(self) -> None:
        raise RuntimeError("an illegal memory access")


class LateCopy(Copy):
    """Ends after so many questions, at each of which it calls `then`."""

    def __init__(self, queries: int, then: Callable[[], None]) -> None:
        super().__init__()
        self._queries, self._then = queries, then

    def query(self) -> bool:
        self._then()
        self._queries -= 1
        return self._queries < 0

    def synchronize(self) -> None:
        raise AssertionError("waited for a copy that ends by itself")


class Member:
    """Brings each unit at once, to the place that `offset` says.

    Attributes:
      released: the leases that were let go of.
    """

    def __init__(self) -> None:
        self.attempt: Optional[AttemptId] = AttemptId(1, 7, 1)
        self.view = types.SimpleNamespace(waits_for="rank 2")
        self.offset = 0
        self.gathers = 0
        self.released: list[int] = []

    def check(self) -> None:
        pass

    def gather(self, unit: int, version: int, begins_microbatch: bool) -> Any:
        self.gathers += 1
        return types.SimpleNamespace(lease=self.gathers, offset_bytes=self.offset)

    def settle(self, call: Any, what: str) -> Any:
        return call

    def release(self, call: Any) -> None:
        self.released.append(call.lease)


class Job:
    """What a rank has, without a sender."""

    def __init__(self, prefetch: int = 1, seconds: float = 5.0) -> None:
        self.member: Any = Member()
        self.memory = RankMemory([UNIT], RANKS, DType.BF16, DType.BF16, prefetch, exact=False)
        self.outbox = self.memory.outbox(2)
        self.traffic = Traffic(
            self.member, self.outbox, RANKS, None, self.memory.slots, seconds, Waits()
        )
        self.traffic.version = VERSION

    def gather(self, copy: Optional[Copy]) -> None:
        gathering = self.traffic.start_gather(0, "gathering")
        self.traffic.end_gather(gathering, lambda offset: copy)

    def push(self, copy: Optional[Copy], value: int = 0) -> None:
        self.traffic.allocate(0, "pushing").bytes[:] = value
        self.traffic.push(0, UNIT, DType.BF16, copy)

    def pushed(self) -> list[tuple[int, int]]:
        """The number and the first byte of each piece for rank 0 that the sender can see."""
        slots = self.outbox._slots
        found = [(int(slots["number"][i, 0]), int(self.outbox._data[i, 0])) for i in range(2) if slots["state"][i, 0]]
        return sorted(found)

    def take(self) -> None:
        """Frees all that was pushed, as the sender does."""
        self.outbox._slots["state"] = 0

    def close(self) -> None:
        self.outbox.close()
        self.memory.close()


@contextlib.contextmanager
def job(**options: Any) -> Iterator[Job]:
    made = Job(**options)
    try:
        yield made
    finally:
        made.close()
