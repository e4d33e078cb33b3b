"""The execution lease as the engine's threads and tasks see it: a gate, open or shut, and the blocks inside.

Pure bookkeeping without a daemon: dws.Engine applies the messages of the lease stream to it.

States: shut (at first; `reason` says why) and open (a Grant is held). `shut` closes the gate for
new blocks at once; `wait_empty` waits for those inside. So commits happen between forward passes.

Each block is counted, from its enter to its leave. A context variable says which blocks an enter is
inside of: those of the same thread or task, and those in which its task was started. The rules:

    1. while the gate is open, every enter is let in
    2. while it is shut, an enter inside of an open block continues that block: the block may wait for
       it. Blocks that overlap could continue each other for ever, so this ends after
       _CONTINUED_MAX times; a block inside of one that came through the open gate counts as the first
    3. every other enter waits for the gate. It is refused if it would wait for itself: a blocking
       enter keeps all tasks of its thread from leaving, an asynchronous one its own task
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import itertools
import threading
import time
from typing import Any, Callable, Iterator, Optional, Sequence, Union

from dws.errors import EnginePaused, StateError
from dws.stream import Stream


@dataclasses.dataclass(frozen=True)
class Grant:
    """The right to generate, and the exact weights it is for.

    Attributes:
      version: the weight version in the engine's memory.
      stream: the trainer incarnation it belongs to.
      state_token: 32 hex digits over all weights of that version.
    """

    version: int
    stream: Stream
    state_token: str

    def reaches(self, version: int, stream: Optional[Stream]) -> bool:
        """Returns whether it is `version` or a newer one of `stream`; None: of any stream."""
        return self.version >= version and stream in (None, self.stream)


# The code that runs: a task of asyncio, or a thread outside of tasks.
Caller = Union["asyncio.Task[Any]", threading.Thread]

_CONTINUED_MAX = 8


def caller() -> Caller:
    """What runs this call."""
    with contextlib.suppress(RuntimeError):  # no event loop runs in this thread
        task = asyncio.current_task()
        if task is not None:
            return task
    return threading.current_thread()


@dataclasses.dataclass(frozen=True)
class Block:
    """One running() block that has been entered.

    Attributes:
      grant: the weights in memory until it is left.
      continued: how often blocks were continued up to it while the gate was shut; 0: it came through
        the open gate.
      outermost: it is not part of another block.
      caller, thread: what entered it.
    """

    number: int  # of the lease
    grant: Grant
    continued: int
    outermost: bool
    caller: Caller
    thread: threading.Thread

    def __str__(self) -> str:
        if isinstance(self.caller, threading.Thread):
            return f"thread '{self.caller.name}'"
        return f"task '{self.caller.get_name()}' of thread '{self.thread.name}'"


@dataclasses.dataclass(frozen=True)
class LeaseStats:
    """Counted since the first grant.

    Attributes:
      grants: times the gate was opened.
      granted_seconds, paused_seconds: how long it was open or had a block inside, or neither.
      last_pause_seconds, longest_pause_seconds: from the last block's leave until the gate opens.
    """

    grants: int
    granted_seconds: float
    paused_seconds: float
    last_pause_seconds: float
    longest_pause_seconds: float


class ExecutionLease:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._grant: Optional[Grant] = None
        self._reason = "never released: the first version has not been committed yet"
        self._detail = ""  # what the receiver adds
        self._ended = False
        self._blocks: dict[int, Block] = {}  # those inside by number, in the order of their enters
        self._numbers = itertools.count()
        self._makers: dict[int, Caller] = {}  # by number, the task for which another one has entered
        self._for: contextvars.ContextVar[Optional[Caller]] = contextvars.ContextVar("dws_running_for", default=None)
        self._waiting: set[asyncio.Future[None]] = set()  # of tasks, for the gate to open
        # The numbers of the blocks around the code that looks; some may have been left.
        self._around: contextvars.ContextVar[tuple[int, ...]] = contextvars.ContextVar(
            "dws_running", default=()
        )
        self._grants = 0
        self._first_open = 0.0
        self._paused_since: Optional[float] = None
        self._paused = self._last_pause = self._longest_pause = 0.0

    @property
    def grant(self) -> Optional[Grant]:
        """The current grant, None while shut."""
        with self._changed:
            return self._grant

    @property
    def inside(self) -> bool:
        """Returns whether a block has to wait for this call: one around it, or one of this
        thread."""
        with self._changed:
            return bool(self._open_around() or self._of_thread())

    @property
    def block_count(self) -> int:
        """How many blocks are inside."""
        with self._changed:
            return len(self._blocks)

    def enter(self, timeout: Optional[float]) -> Block:
        """Enters once the gate is open; each enter needs a leave. Blocks the thread.

        Args:
          timeout: seconds, None = for ever.

        Raises:
          EnginePaused: shut for `timeout` seconds, or for good.
          StateError: another task of this thread is inside, which could not leave meanwhile; or
            blocks of this thread have overlapped for too long while the gate was shut.
        """
        with self._changed:
            beside = [block for block in self._of_thread() if block not in self._open_around()]
            if beside:
                raise StateError(
                    f"{beside[0]} is inside a running() block, and this call could keep it from leaving, "
                    "for ever: both are on this thread. Use `async with engine.running()` in tasks"
                )
            block = self._let_in()
            if block is not None:
                return block
            self._refuse_overlap(self._of_thread())
            self._changed.wait_for(lambda: self._ended or self._grant is not None, timeout)
            if self._grant is None:
                raise EnginePaused(self._why())
            block = self._let_in()
            assert block is not None
            return block

    async def enter_async(self, timeout: Optional[float]) -> Block:
        """As `enter`, but only the calling task waits.

        Raises:
          EnginePaused: shut for `timeout` seconds, or for good.
          StateError: not called by a task of asyncio; or blocks of this task have overlapped for too
            long while the gate was shut.
        """
        task = caller()
        if isinstance(task, threading.Thread):
            raise StateError(
                "`async with engine.running()` waits in a task of asyncio, and none runs here: use `with`"
            )
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        while True:
            with self._changed:
                block = self._let_in()
                if block is not None:
                    return block
                own = (task, self._for.get() or task)
                self._refuse_overlap(
                    [one for one in self._open_around() if one.caller in own or self._makers.get(one.number) in own]
                )
                left = None if end is None else end - loop.time()
                if self._ended or (left is not None and left <= 0):
                    raise EnginePaused(self._why())
                opened: asyncio.Future[None] = loop.create_future()
                self._waiting.add(opened)
            try:
                await asyncio.wait([opened], timeout=left)
            finally:
                with self._changed:
                    self._waiting.discard(opened)

    @contextlib.contextmanager
    def entered_for(self, task: Caller) -> Iterator[None]:
        """What enters inside of this does it for `task`. If another task enters, and ends before the block does, the block
        is one around `task`: before Python 3.12 asyncio.wait_for enters in a task of its own."""
        self._for.set(task)
        try:
            yield
        finally:
            self._for.set(None)

    def _open_around(self) -> list[Block]:
        around = {number: self._blocks[number] for number in self._around.get() if number in self._blocks}
        if self._makers:
            here = self._for.get() or caller()
            # The context of a task that has ended is lost, and with it what it was inside of.
            around.update(
                (number, self._blocks[number])
                for number, maker in self._makers.items()
                if maker is here and _has_ended(self._blocks[number].caller)
            )
        return list(around.values())

    def _of_thread(self) -> list[Block]:
        thread = threading.current_thread()
        return [block for block in self._blocks.values() if block.thread is thread]

    def _let_in(self) -> Optional[Block]:
        """Applies rules 1 and 2. Returns None if it has to wait."""
        around, grant, continued = self._open_around(), self._grant, 0
        if grant is None:
            continued = 1 + min((block.continued for block in around), default=_CONTINUED_MAX)
            if continued > _CONTINUED_MAX:
                return None
            grant = around[0].grant
        block = Block(
            next(self._numbers), grant, continued, not around, caller(), threading.current_thread()
        )
        self._blocks[block.number] = block
        maker = self._for.get()
        if maker is not None and maker is not block.caller:
            self._makers[block.number] = maker
        self._around.set((*(outer.number for outer in around), block.number))
        return block

    def _refuse_overlap(self, own: Sequence[Block]) -> None:
        if own:
            raise StateError(
                f"running() blocks of {own[0]} overlap, so that it is always inside one, and the engine "
                f"has to pause: {self._why()}. Leave all of them before it enters the next"
            )

    def wait_until(self, wanted: Callable[[Grant], bool], timeout: float) -> Optional[Grant]:
        """Returns a grant that is `wanted`; None if there is none within `timeout` seconds, or if
        there will be none."""

        def has_it() -> bool:
            return self._grant is not None and wanted(self._grant)

        with self._changed:
            self._changed.wait_for(lambda: self._ended or has_it(), timeout)
            return self._grant if has_it() else None

    def leave(self, block: Block) -> None:
        """Ends a block. Also on another thread or in another task than its enter, as a generator that
        is closed late.

        Raises:
          StateError: it was left before.
        """
        with self._changed:
            if self._blocks.pop(block.number, None) is None:
                raise StateError("this running() block was left before")
            self._makers.pop(block.number, None)
            self._around.set(tuple(outer.number for outer in self._open_around()))
            if not self._blocks and self._grant is None:
                self._start_pause()
            self._changed.notify_all()

    def shut(self, reason: str) -> None:
        """No further block can be entered; the blocks inside finish."""
        with self._changed:
            if self._grant is not None and not self._blocks:
                self._start_pause()
            self._grant = None
            if not self._ended:
                self._reason, self._detail = reason, ""

    def end(self, reason: str) -> None:
        """As `shut`, for good: what waits for the gate, and what comes later, gets EnginePaused at once. The first
        reason stays."""
        with self._changed:
            self.shut(reason)
            self._ended = True
            self._tell_waiting()

    def explain(self, detail: str) -> None:
        """Adds the receiver's reason why the gate is shut, until it is shut for another reason."""
        with self._changed:
            self._detail = detail

    @property
    def reason(self) -> str:
        """Why the gate is shut."""
        with self._changed:
            return self._why()

    def _why(self) -> str:
        why = [self._reason, self._detail] if self._detail else [self._reason]
        if self._blocks:
            first = next(iter(self._blocks.values()))
            why.append(f"{len(self._blocks)} running() blocks have not ended, the first is of {first}")
        return "; ".join(why)

    def wait_empty(self, timeout: float) -> bool:
        """Returns whether no block is inside, after at most `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._blocks, timeout)

    def open(self, grant: Grant) -> None:
        """Opens the gate with `grant`. Does nothing after `end`.

        Raises:
          StateError: a block is inside: a resume without a pause before it.
        """
        with self._changed:
            if self._ended:
                return
            if self._blocks:
                raise StateError(f"resumed at version {grant.version} while forward passes run")
            now = self._clock()
            if self._paused_since is not None:
                self._last_pause = now - self._paused_since
                self._longest_pause = max(self._longest_pause, self._last_pause)
                self._paused += self._last_pause
                self._paused_since = None
            if self._grants == 0:
                self._first_open = now
            self._grants += 1
            self._grant = grant
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        self._changed.notify_all()
        for opened in tuple(self._waiting):
            with contextlib.suppress(RuntimeError):  # its loop is closed
                opened.get_loop().call_soon_threadsafe(_wake, opened)

    @property
    def stopped_seconds(self) -> float:
        """How long the pause has lasted that the gate is in now; 0 if it is in none."""
        with self._changed:
            return self._clock() - self._paused_since if self._paused_since is not None else 0.0

    def stats(self) -> LeaseStats:
        with self._changed:
            paused = self._paused + self.stopped_seconds
            total = self._clock() - self._first_open if self._grants else 0.0
            return LeaseStats(
                self._grants, total - paused, paused, self._last_pause, self._longest_pause
            )

    def _start_pause(self) -> None:
        # A pause can only follow a grant.
        if self._grants and self._paused_since is None:
            self._paused_since = self._clock()


def _has_ended(entered: Caller) -> bool:
    return not isinstance(entered, threading.Thread) and entered.done()


def _wake(opened: asyncio.Future[None]) -> None:
    if not opened.done():
        opened.set_result(None)
