"""P5: from a publish to the engine's acknowledgement, two processes, against what a user would take instead, with
the same weights, changes and number of threads, over the same way: slime's path with each of its encodings, and a
full copy of the weights. Beside each peer ours runs in the same rounds: both publish each version, one after the
other, in turns first. Before, ours has published a few versions, from which its daemons learn how fast the way is."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
from typing import Any, Callable, ContextManager, Iterator, Optional, Protocol

from tests.integration.network_hosts import NetworkHosts
from tools.bench.daemons.report import Report
from tools.bench.end_to_end import model, wire
from tools.bench.end_to_end.directory import Directory, LocalDir
from tools.bench.end_to_end.dws_path import DwsPath
from tools.bench.end_to_end.full_copy import FullCopy
from tools.bench.end_to_end.limited_dir import LimitedDir
from tools.bench.end_to_end.link_dir import LinkDir
from tools.bench.end_to_end.published import Published
from tools.bench.end_to_end.slime_path import SlimePath
from tools.bench.end_to_end.slime_writer import ENCODINGS

DENSITY = 0.01
LINK_RATES_MB = (10, 100, 300, 1000)
_DIRECTORY_RATE_MB = 300
_FASTER_MIN = {"loopback": 4.0, 10: 2.8, 100: 2.8, 300: 3.0, 1000: 3.0}
_LEARNED_FROM = 3  # versions
_ONCE_SECONDS = 10.0  # a full copy that takes longer is made once


@dataclasses.dataclass(frozen=True)
class Size:
    """The settings of a comparison."""

    gib: float
    rounds: int
    threads: int
    piece_bytes: int


@dataclasses.dataclass
class Way:
    """How versions travel.

    Attributes:
      bytes_per_second: that the way is limited to, None for no limit.
      slime: the directory of slime's path.
      ours: the directory of ours, None for a connection.
      hosts: that connections go between, None for loopback.
      limit: begins to limit the way. Until then nothing is timed.
    """

    name: str
    faster_min: Optional[float]
    bytes_per_second: Optional[float]
    slime: Directory
    ours: Optional[Directory] = None
    hosts: Optional[NetworkHosts] = None
    limit: Callable[[], None] = lambda: None


@contextlib.contextmanager
def loopback(folder: str) -> Iterator[Way]:
    yield Way("loopback", _FASTER_MIN["loopback"], None, LocalDir(os.path.join(folder, "shared")))


@contextlib.contextmanager
def limited_files(folder: str) -> Iterator[Way]:
    rate = _DIRECTORY_RATE_MB * 1e6
    with LimitedDir(os.path.join(folder, "shared")) as shared:
        name = f"files at {_DIRECTORY_RATE_MB} MB/s"
        bar = _FASTER_MIN[_DIRECTORY_RATE_MB]
        yield Way(name, bar, rate, shared, ours=shared, limit=lambda: shared.limit(rate))


@contextlib.contextmanager
def link(folder: str, rate_mb: int) -> Iterator[Way]:
    """Trainer and engine on hosts of their own, whose one link has this rate in each direction. Raises
    NoNamespaces."""
    rate = rate_mb * 1_000_000
    with NetworkHosts(2) as hosts, LinkDir(os.path.join(folder, "shared"), hosts) as shared:
        limit = lambda: hosts.limit(wire.ENGINE_HOST, rate)
        bar = _FASTER_MIN.get(rate_mb)
        yield Way(f"link of {rate_mb} MB/s", bar, rate, shared, hosts=hosts, limit=limit)


class _Peer(Protocol):
    def publish(self) -> Published: ...

    def check(self) -> None: ...


Rounds = list[tuple[Published, Published]]  # ours and the peer's


class _Comparison:
    def __init__(self, way: Way, size: Size, folder: str) -> None:
        self._way = way
        self._size = size
        self._folder = folder

    def run(self) -> dict[str, Rounds]:
        """The timed rounds beside each peer."""
        way, size = self._way, self._size
        found = {}
        specs = model.specs(int(size.gib * (1 << 30)))
        with DwsPath(specs, size.threads, way.ours, way.hosts) as ours:
            changes = model.Changes(ours.views, DENSITY)
            way.limit()
            for _ in range(_LEARNED_FROM):
                changes.advance()
                ours.publish()
            for encoding in ENCODINGS:
                with self._slime(encoding, ours) as slime:
                    rounds = self._rounds(changes, ours, slime, size.rounds)
                found[f"slime {encoding}"] = rounds
            if way.ours is None:
                once = self._copy_is_slow(specs)
                with FullCopy(ours.views, way.hosts) as copy:
                    rounds = self._rounds(changes, ours, copy, 0 if once else size.rounds)
                found["full copy (once)" if once else "full copy"] = rounds
            ours.check()
        return found

    def _slime(self, encoding: str, ours: DwsPath) -> ContextManager[_Peer]:
        threads, piece_bytes = self._size.threads, self._size.piece_bytes
        return SlimePath(self._folder, ours.views, threads, piece_bytes, encoding, self._way.slime)

    def _copy_is_slow(self, specs: list[Any]) -> bool:
        size_bytes = sum(2 * spec.shape[0] for spec in specs)
        rate = self._way.bytes_per_second
        return rate is not None and size_bytes / rate > _ONCE_SECONDS

    @staticmethod
    def _rounds(changes: model.Changes, ours: DwsPath, peer: _Peer, rounds: int) -> Rounds:
        """After one round that warms up and is not returned; 0: that round alone."""
        found = []
        for turn in range(rounds + 1):
            changes.advance()
            if turn % 2 == 0:
                theirs = peer.publish()
                found.append((ours.publish(), theirs))
            else:
                mine = ours.publish()
                found.append((mine, peer.publish()))
        peer.check()
        return found[1:] or found


def _median(rounds: Rounds, of: str) -> tuple[float, float, float]:
    """Ours, the peer's, and the median of the rounds' ratios."""
    values = [(float(getattr(ours, of)), float(getattr(theirs, of))) for ours, theirs in rounds]
    ratio = statistics.median(theirs / mine for mine, theirs in values)
    return statistics.median(mine for mine, _ in values), statistics.median(b for _, b in values), ratio


def compare(way: Way, size: Size, folder: str, report: Report) -> None:
    found = _Comparison(way, size, folder).run()
    what = f"{size.gib:g} GiB; {DENSITY:.0%}; {size.threads} threads"
    for peer, rounds in found.items():
        ours, theirs, ratio = _median(rounds, "seconds")
        report.add("P5", f"{way.name}; {peer}; publish to last ACK", ours, theirs, ratio, "s")
    best = min(found, key=lambda peer: _median(found[peer], "seconds")[2])
    ours, theirs, ratio = _median(found[best], "size_bytes")
    report.add("P5", f"{way.name}; {best}; bytes of a version", ours / 1e6, theirs / 1e6, ratio, "MB")
    ours, theirs, ratio = _median(found[best], "stall_seconds")
    report.add("P5", f"{way.name}; {best}; until the weights may change", ours, theirs, ratio, "s")
    ours, theirs, ratio = _median(found[best], "seconds")
    case = f"{way.name}; the best of them ({best}); {what}"
    report.add("P5", case, ours, theirs, ratio, "s", at_least=way.faster_min)
