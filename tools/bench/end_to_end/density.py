"""What the daemons choose by themselves, for versions from a few changed elements to all of them, beside a full
version and a delta of the same changes. The three have daemons of their own, as these learn from what is
published; in a round each publishes the same weights, one after the other. What one leaves behind (free memory, pages
that go to disk) helps or hinders the next, so three rounds have each in every place, and six every order. Each density begins with versions
that are not timed, from which the daemons learn.

The delta is that of profile fast, which is made for 1 %. A sender that would give deltas up sees a version between
any two that changes one element.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any, Callable, Protocol

import numpy as np

from tools.bench.daemons.report import Report
from tools.bench.end_to_end import model
from tools.bench.end_to_end.dws_path import DwsPath
from tools.bench.end_to_end.published import Published

_STEPS = (0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0)
_RANDOM = (0.1, 0.5, 1.0)
_SLOWER_MAX = 1.1
_LEARNED_FROM = 3  # versions
# Up to this density a round is short: more of them, so that what else the machine does counts less.
_SPARSE = 0.03
_SPARSE_ROUNDS = 3  # times as many


class _Changes(Protocol):
    def advance(self) -> None: ...


class _Paths:
    """The three, with the same weights. A context manager."""

    def __init__(self, size_bytes: int, threads: int) -> None:
        specs = model.specs(size_bytes)
        self._auto = DwsPath(specs, threads)
        self._full = DwsPath(specs, threads)
        self._delta = DwsPath(specs, threads, flags=["--profile=fast"])
        self._paths = (self._auto, self._full, self._delta)

    def __enter__(self) -> "_Paths":
        with ExitStack() as stack:
            for path in self._paths:
                stack.enter_context(path)
            self._stack = stack.pop_all()
        return self

    @property
    def views(self) -> dict[str, Any]:
        return self._auto.views

    def round(self, turn: int) -> dict[str, Published]:
        """Publishes the contents of the views."""
        for other in (self._full, self._delta):
            for name, view in self.views.items():
                np.copyto(other.views[name], view)
        publish: list[tuple[str, Callable[[], Published]]] = [
            ("auto", self._auto.publish),
            ("full", lambda: self._full.publish(full=True)),
            ("delta", self._publish_delta),
        ]
        first = turn % len(publish)
        order = publish[first:] + publish[:first]
        if turn // len(publish) % 2 == 1:
            order.reverse()
        return {name: call() for name, call in order}

    def _publish_delta(self) -> Published:
        found = self._delta.publish()
        if found.full:
            raise RuntimeError("a version that has to be a delta is full")
        next(iter(self._delta.views.values()))[0] ^= np.uint16(1)
        self._delta.publish()
        return found

    def check(self) -> None:
        """Ends the engines. Raises RuntimeError if one has other weights than its trainer."""
        for path in self._paths:
            path.check()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def bench_density(gib: float, rounds: int, threads: int, report: Report) -> None:
    with _Paths(int(gib * (1 << 30)), threads) as paths:
        kinds: dict[str, tuple[Callable[[Any, float], _Changes], tuple[float, ...]]] = {
            "one step": (model.Changes, _STEPS),
            "random bits": (model.RandomBits, _RANDOM),
        }
        for kind, (make, densities) in kinds.items():
            for density in densities:
                changes = make(paths.views, density)
                found = []
                count = rounds * (_SPARSE_ROUNDS if density <= _SPARSE else 1)
                for turn in range(_LEARNED_FROM + count):
                    changes.advance()
                    found.append(paths.round(turn))
                what = f"{100 * density:g} % {kind}; {gib:g} GiB; {threads} threads"
                _add(what, found[_LEARNED_FROM:], report)
        paths.check()


def _add(what: str, rounds: list[dict[str, Published]], report: Report) -> None:
    full = sum(round["auto"].full for round in rounds)
    chose = "full" if full == len(rounds) else "delta" if full == 0 else "both"
    for name, of in (("publish", "stall_seconds"), ("publish to COMMITTED", "seconds")):
        for other in ("delta", "full"):
            auto, against = (
                statistics.median(getattr(round[path], of) for round in rounds)
                for path in ("auto", other)
            )
            ratio = statistics.median(
                getattr(round["auto"], of) / getattr(round[other], of) for round in rounds
            )
            case = f"{what}; chose {chose}; {name} against {other}"
            report.add("dense", case, auto, against, ratio, "s", at_most=_SLOWER_MAX)
