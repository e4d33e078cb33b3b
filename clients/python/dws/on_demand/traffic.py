"""What a rank has under way with its sender: gathers and pushes of the present attempt. Needs no torch."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any, Callable, Optional

from dws.deadline import Deadline
from dws.dtypes import DType
from dws.errors import DaemonUnavailableError, DeadlineError, StateError
from dws.on_demand.member import Member, Waits
from dws.on_demand.outbox import Buffer, Outbox, Piece
from dws.on_demand.units import Unit

_LOG = logging.getLogger(__name__)
# How often a push that waits for room looks whether its attempt is over.
_ROOM_SECONDS = 0.05


@dataclasses.dataclass
class Gathering:
    """A unit that is gathered.

    Attributes:
      ended: how many attempts had ended before.
      call: None until it was asked for.
    """

    unit: int
    version: int
    begins_microbatch: bool
    what: str
    ended: int
    call: Any = None


class Traffic:
    """Lifecycle: made for a membership; `begin` and `end` for each attempt. Threads: one at a time.

    Attributes:
      version: of the parameters that are gathered; None: none may be, until the next is published.
      waits: see Waits.
    """

    def __init__(
        self,
        member: Member,
        outbox: Outbox,
        ranks: int,
        barrier: Optional[Callable[[], None]],
        slots: int,
        timeout: float,
        waits: Waits,
    ) -> None:
        """Args:
        barrier: called in each gather and push.
        slots: units that the arena has room for.
        timeout: seconds of each wait.
        """
        self.version: Optional[int] = None
        self.waits = waits
        self._member = member
        self._outbox = outbox
        self._ranks = ranks
        self._barrier = barrier
        self._slots = slots
        self._timeout = timeout
        self._under_way = 0  # gathers that were begun, and whose bytes were not read
        self._pushes = 0  # of the attempt
        self._begins_microbatch = False
        self._ended = 0  # attempts
        self._buffers: dict[int, Buffer] = {}  # allocated for a unit and not pushed

    @property
    def pushes(self) -> int:
        """How many there were in the attempt."""
        return self._pushes

    def begin(self) -> None:
        """An attempt begins."""
        self._pushes = 0

    def end(self) -> None:
        """The attempt is over, whatever is under way: gathers that somebody still waits for end without bytes, and
        buffers are free."""
        self._ended += 1
        self._under_way = 0
        while self._buffers:
            self._buffers.popitem()[1].drop()

    def begin_microbatch(self) -> None:
        """The next gather is the first one of a microbatch.

        Raises:
          MinibatchAbandonedError: the attempt is over.
        """
        self._member.check()
        self._begins_microbatch = True

    def start_gather(self, unit: int, what: str) -> Gathering:
        """Asks for a unit; `end_gather` waits for it. If the arena has no room for one more, because FSDP2 was told to
        prefetch more units than it holds, it is asked for later.

        Raises:
          StateError: the step is decided, and the next version not published.
          MinibatchAbandonedError: the attempt is over.
        """
        if self.version is None:
            raise StateError(
                f"{what}: the step is decided: call publish() or skip() before the model is used again"
            )
        self._member.check()
        self._meet()
        begins, self._begins_microbatch = self._begins_microbatch, False
        gathering = Gathering(unit, self.version, begins, what, self._ended)
        if self._under_way < self._slots:
            self._ask(gathering)
        return gathering

    def _ask(self, gathering: Gathering) -> None:
        self._under_way += 1
        gathering.call = self._member.gather(gathering.unit, gathering.version, gathering.begins_microbatch)

    def end_gather(self, gathering: Gathering, read: Callable[[int], None]) -> None:
        """Waits for a gather and has its bytes read.

        Args:
          read: gets the offset of the unit in the arena.

        Raises:
          As Member.settle; StateError: too many other units wait to be read.
        """
        if gathering.ended != self._ended:
            if gathering.call is not None:
                self._member.forget(gathering.call)
            return
        if gathering.call is None:
            if self._under_way >= self._slots:
                raise StateError(
                    f"{gathering.what}: FSDP2 holds {self._under_way} other units that it has not read, and the arena has "
                    f"room for {self._slots}: prefetch fewer modules, or use Training(prefetch={self._under_way})"
                )
            self._ask(gathering)
        started = time.monotonic()
        self._under_way -= 1
        reply = self._settle(gathering)
        self.waits.gather_seconds += time.monotonic() - started
        self.waits.gathers += 1
        try:
            read(reply.offset_bytes)
        finally:
            self._member.release(reply)

    def _settle(self, gathering: Gathering) -> Any:
        """Member.settle. Asks again if an owner was lost while it was read: the attempt may go on with its next sender."""
        deadline = Deadline(self._timeout)
        while True:
            try:
                return self._member.settle(gathering.call, gathering.what)
            except DaemonUnavailableError as error:
                if self._member.lost is not None or not deadline.left:
                    raise
                _LOG.warning("dws: %s; asking again", error)
            gathering.call = self._member.gather(gathering.unit, gathering.version, gathering.begins_microbatch)

    def allocate(self, unit: int, what: str) -> Buffer:
        """A buffer for the gradients of a unit, to be pushed; waits for room.

        Raises:
          StateError: there is no attempt.
          MinibatchAbandonedError: the attempt is over.
          DeadlineError: there was no room in time.
        """
        if self._member.attempt is None:
            raise StateError(f"{what}: backward passes need an attempt: `for attempt in od.minibatch(plan)`, `with attempt:`")
        before = self._outbox.wait_seconds
        deadline = time.monotonic() + self._timeout
        while True:
            self._member.check()
            try:
                buffer = self._outbox.allocate(_ROOM_SECONDS)
                break
            except DeadlineError as error:
                if time.monotonic() > deadline:
                    waits_for = self._member.view.waits_for
                    raise DeadlineError(
                        f"{what}: no room in the outbox after {self._timeout:g} s, because the owners of earlier ones are "
                        f"behind; what the sender waits for: {waits_for or 'it does not say'}"
                    ) from error
        self.waits.push_seconds += self._outbox.wait_seconds - before
        self._buffers[unit] = buffer
        return buffer

    def push(self, index: int, unit: Unit, dtype: DType) -> None:
        """Pushes what was written to the unit's buffer: one piece for each owner.

        Raises:
          MinibatchAbandonedError: the attempt is over.
        """
        self._meet()
        self._member.check()
        attempt = self._member.attempt
        assert attempt is not None
        size = unit.shard_elements(self._ranks) * dtype.itemsize
        self._pushes += 1
        self.waits.pushes += 1
        pieces = [Piece(self._pushes, index, owner, owner * size, size) for owner in range(self._ranks)]
        self._buffers.pop(index).push(
            pieces, minibatch=attempt.minibatch, term=attempt.term, attempt=attempt.attempt, dtype=dtype
        )

    def _meet(self) -> None:
        if self._barrier is None:
            return
        started = time.monotonic()
        self._barrier()
        self.waits.barrier_seconds += time.monotonic() - started
