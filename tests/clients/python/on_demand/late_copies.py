"""A device for dws.on_demand whose memory is that of the host, and whose copies end late: as late as a device's may, and no
later than somebody waits for them. Needs torch, of any version."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from dws.on_demand.deferred import Done
from dws.on_demand.device_copies import DeviceCopies


class LateDone:
    """Has ended when it was asked for often enough, or waited for."""

    def __init__(self, ended: Callable[[], None], queries: int) -> None:
        """Args:
        ended: called once.
        queries: the answers before it has ended.
        """
        self._ended: Optional[Callable[[], None]] = ended
        self._queries = queries

    def query(self) -> bool:
        if self._queries > 0:
            self._queries -= 1
            return self._ended is None
        self.synchronize()
        return True

    def synchronize(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


class Mark(LateDone):
    """The end of what a stream was given so far, which the host's memory has done at once.

    Attributes:
      number: of the mark, from 1.
    """

    def __init__(self, number: int) -> None:
        super().__init__(lambda: None, 0)
        self.number = number


class LateRuntime:
    """A Runtime. What is copied out is garbage before the copy has ended. What is copied in is garbage for a stream that does not
    follow the copy, must not change before the copy has ended, and must not take the place of what may still be read.

    Attributes:
      stream: the current one.
      late: copies that were asked for before they had ended, and had not.
      out: copies out.
      afters: for each copy in, the number of the mark that it comes after.
      followed: each stream that was told to follow something, and the number of the mark; 0: a copy in.
    """

    def __init__(self, queries: int = 3) -> None:
        """Args:
        queries: see LateDone.
        """
        self.stream = "pass"
        self.late = self.out = 0
        self.afters: list[int] = []
        self.followed: list[tuple[str, int]] = []
        self._queries = queries
        self._marks = 0
        self._under_way: list[LateDone] = []
        self._followed: dict[int, Callable[[], None]] = {}  # by the id of a copy's end: what a stream that follows it sees
        self._unread: set[int] = set()  # addresses that were copied to, and are followed by no mark
        self._read: dict[int, int] = {}  # by address: the mark after which it may be written

    def _later(self, ended: Callable[[], None]) -> LateDone:
        runtime = self

        class Counted(LateDone):
            def query(self) -> bool:
                found = super().query()
                runtime.late += not found
                return found

        self._under_way = [done for done in self._under_way if done._ended is not None]
        self._under_way.append(Counted(ended, self._queries))
        return self._under_way[-1]

    def empty(self, size_bytes: int) -> Any:
        return torch.full((size_bytes,), 0xFF, dtype=torch.uint8)

    def host(self, like: Any) -> Any:
        return torch.empty_like(like)

    def copy_in(self, to: Any, source: Any, after: Done) -> Done:
        assert isinstance(after, Mark)
        self.afters.append(after.number)
        if to.data_ptr() in self._unread or after.number < self._read.get(to.data_ptr(), 0):
            raise AssertionError(f"a copy to the device after mark {after.number} overwrites what may still be read")
        self._unread.add(to.data_ptr())
        to.fill_(0xFF)
        came = source.clone()

        def ended() -> None:
            if not torch.equal(source, came):
                raise AssertionError("what a copy to the device reads has changed before the copy had ended")

        done = self._later(ended)
        self._followed[id(done)] = lambda: to.copy_(came)
        return done

    def copy_out(self, to: Any, source: Any) -> Done:
        self.out += 1
        if to.dtype != torch.bool:
            to.view(torch.uint8).fill_(0xFF)
        came = source.clone()
        return self._later(lambda: to.copy_(came))

    def copied(self, source: Any) -> Any:
        return source.clone()

    def mark(self) -> Done:
        self._marks += 1
        for address in self._unread:
            self._read[address] = self._marks
        self._unread.clear()
        return Mark(self._marks)

    def current(self) -> Any:
        return self.stream

    def follow(self, stream: Any, done: Done) -> None:
        self.followed.append((stream, done.number if isinstance(done, Mark) else 0))
        if stream == self.stream:
            self._followed.pop(id(done), lambda: None)()

    def finish(self) -> None:
        for done in self._under_way:
            done.synchronize()


def late_copies(device: Any, unit_bytes: int) -> DeviceCopies:
    """In the place of copies_of, for parameters on the host."""
    assert device.type == "cpu"
    return DeviceCopies(LateRuntime(), unit_bytes)
