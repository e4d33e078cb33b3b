"""What a rank has under way with its sender: gathers and pushes of the present attempt. Needs no torch.

With parameters on a device, a gathered unit is let go of, and a push handed over, when the device's copy has ended. Nothing waits
for that but a gather or a push for which there is no room, and the end of the attempt; each call looks what has ended.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any, Callable, Optional

from dws.dtypes import DType
from dws.errors import DeadlineError, StateError
from dws.on_demand.deferred import Deferred, Done
from dws.on_demand.member import GatherCall, Member, Waits
from dws.on_demand.outbox import Buffer, Outbox, Piece
from dws.on_demand.units import Unit

# How often a push that waits for room looks whether its attempt is over.
_ROOM_SECONDS = 0.05
# The same while copies are under way, which may make room, too.
_COPY_SECONDS = 0.001


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
    call: Optional[GatherCall] = None


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
        self._written: list[Buffer] = []  # to be pushed when their copies have ended
        self._leases, self._copied, self._checks = Deferred(), Deferred(), Deferred()  # units, pushes, comparisons

    @property
    def pushes(self) -> int:
        """How many there were in the attempt."""
        return self._pushes

    def begin(self) -> None:
        """An attempt begins."""
        self._pushes = 0

    def end(self) -> None:
        """The attempt is over, whatever is under way: gathers that somebody still waits for end without bytes, and
        buffers are free. Waits for copies."""
        self._ended += 1
        self._under_way = 0
        self._copied.end()
        self._checks.end()
        for release in self._leases.end():
            release()
        while self._buffers:
            self._buffers.popitem()[1].drop()
        while self._written:
            self._written.pop().drop()

    def begin_microbatch(self) -> None:
        """The next gather is the first one of a microbatch.

        Raises:
          MinibatchAbandonedError: the attempt is over.
          StateError: see check_later.
        """
        self._look()
        self._begins_microbatch = True

    def settle(self) -> None:
        """Waits until all is pushed and compared.

        Raises:
          As begin_microbatch.
        """
        self._member.check()
        self._copied.run(0)
        self._checks.run(0)

    def check_later(self, done: Done, check: Callable[[], None]) -> None:
        """Calls `check` when a copy has ended, at the latest before the attempt is finished. What it raises is raised by
        the call that finds that the copy has ended."""
        self._checks.add(done, check)

    def _look(self) -> None:
        """Does what waits for copies that have ended."""
        self._member.check()
        for waiting in (self._leases, self._copied, self._checks):
            waiting.run()

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
        self._look()
        self._meet()
        begins, self._begins_microbatch = self._begins_microbatch, False
        gathering = Gathering(unit, self.version, begins, what, self._ended)
        if self._under_way < self._slots:
            self._ask(gathering)
        return gathering

    def _ask(self, gathering: Gathering) -> None:
        """Waits for copies from the arena, if those hold the slot."""
        self._leases.run(self._slots - self._under_way - 1)
        self._under_way += 1
        gathering.call = self._member.gather(gathering.unit, gathering.version, gathering.begins_microbatch)

    def end_gather(self, gathering: Gathering, read: Callable[[int], Optional[Done]]) -> None:
        """Waits for a gather and has its bytes read.

        Args:
          read: gets the offset of the unit in the arena. Returns the end of the copy that reads it; None: it was read.

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
        call = gathering.call
        assert call is not None
        started = time.monotonic()
        self._under_way -= 1
        reply = self._member.settle(call, gathering.what)
        self.waits.gather_seconds += time.monotonic() - started
        self.waits.gathers += 1
        done = None
        try:
            done = read(reply.offset_bytes)
        finally:
            if done is None:
                self._member.release(call)
        if done is not None:
            self._leases.add(done, functools.partial(self._member.release, call))

    def allocate(self, unit: int, what: str) -> Buffer:
        """A buffer for the gradients of a unit, to be pushed; waits for room.

        Raises:
          StateError: there is no attempt.
          MinibatchAbandonedError: the attempt is over.
          DeadlineError: there was no room in time.
        """
        if self._member.attempt is None:
            raise StateError(f"{what}: backward passes need an attempt: `for attempt in od.minibatch(plan)`, `with attempt:`")
        deadline = time.monotonic() + self._timeout
        while True:
            self._look()
            copying, before = len(self._copied) > 0, self._outbox.wait_seconds
            try:
                buffer = self._outbox.allocate(_COPY_SECONDS if copying else _ROOM_SECONDS)
                break
            except DeadlineError as error:
                if time.monotonic() > deadline:
                    raise DeadlineError(self._no_room(what)) from error
            finally:
                if not copying:
                    self.waits.push_seconds += self._outbox.wait_seconds - before
        self._buffers[unit] = buffer
        return buffer

    def _no_room(self, what: str) -> str:
        why = f"the owners of earlier ones are behind; what the sender waits for: {self._member.view.waits_for or 'it does not say'}"
        if self._copied:
            why = f"the device has not ended {len(self._copied)} copies to it"
        return f"{what}: no room in the outbox after {self._timeout:g} s, because {why}"

    def push(self, index: int, unit: Unit, dtype: DType, copied: Optional[Done] = None) -> None:
        """Pushes what was written to the unit's buffer: one piece for each owner.

        Args:
          copied: the end of the copy that writes it; None: it was written.

        Raises:
          MinibatchAbandonedError: the attempt is over.
          StateError: see check_later.
        """
        buffer = self._buffers.pop(index)
        self._written.append(buffer)
        if copied is not None:  # before all that may fail, so that `end` waits for it
            self._copied.add(copied, lambda: self._push(index, unit, dtype, buffer))
        self._meet()
        self._look()
        if copied is None:
            self._push(index, unit, dtype, buffer)

    def _push(self, index: int, unit: Unit, dtype: DType, buffer: Buffer) -> None:
        attempt = self._member.attempt
        if attempt is None:  # it is over, and `end` drops the buffer
            return
        size = unit.shard_elements(self._ranks) * dtype.itemsize
        self._pushes += 1
        self.waits.pushes += 1
        pieces = [Piece(self._pushes, index, owner, owner * size, size) for owner in range(self._ranks)]
        self._written.remove(buffer)
        buffer.push(
            pieces, minibatch=attempt.minibatch, term=attempt.term, attempt=attempt.attempt, dtype=dtype
        )

    def _meet(self) -> None:
        if self._barrier is None:
            return
        started = time.monotonic()
        self._barrier()
        self.waits.barrier_seconds += time.monotonic() - started
