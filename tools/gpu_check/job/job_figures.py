"""What job_check.py makes of its measurements. Nothing here needs PyTorch or a daemon."""

from __future__ import annotations

import re
import statistics
from typing import NamedTuple, Optional, Sequence


class Pass(NamedTuple):
    """One forward pass of the engine. `asked` for the weights, `began` with them, `ended`: seconds."""

    asked: float
    began: float
    ended: float
    version: int


class Span(NamedTuple):
    begin: float
    end: float


def wait_for(passes: Sequence[Pass], version: int) -> Optional[float]:
    """Returns how long the first pass with `version` waited for its weights; None: there is none.
    """
    return next((one.began - one.asked for one in passes if one.version == version), None)


def usual_seconds(passes: Sequence[Pass], idle: Sequence[Span]) -> Optional[float]:
    """What a pass takes from asking to its end while nothing else happens: the median of those in the spans `idle`."""
    taken = [
        one.ended - one.asked
        for one in passes
        if any(span.begin <= one.asked and one.ended <= span.end for span in idle)
    ]
    return statistics.median(taken) if taken else None


def lost_seconds(passes: Sequence[Pass], span: Span, usual: float) -> float:
    """How much longer the passes took that ran in `span`, and their waits, than so many usual ones."""
    return sum(
        one.ended - one.asked - usual
        for one in passes
        if one.ended > span.begin and one.asked < span.end
    )


class Histogram(NamedTuple):
    seconds: float
    observations: float


_SAMPLE = re.compile(
    r"^(?P<name>dws_(?:sender|receiver)_\w*seconds)_(?P<what>sum|count)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$"
)
# Labels of one daemon, which are the same in all its samples.
_OF_THE_DAEMON = ("dws_job", "receiver_id", "trainer_rank")


def histograms(page: str) -> dict[str, Histogram]:
    """Sum and count of every histogram of seconds on a daemon's /metrics, by name, with the labels that tell them apart."""
    found: dict[str, dict[str, float]] = {}
    for line in page.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        labels = re.findall(r'(\w+)="([^"]*)"', sample["labels"] or "")
        own = ",".join(f"{name}={value}" for name, value in labels if name not in _OF_THE_DAEMON)
        name = sample["name"] + (f"{{{own}}}" if own else "")
        found.setdefault(name, {})[sample["what"]] = float(sample["value"])
    return {
        name: Histogram(parts["sum"], parts["count"])
        for name, parts in found.items()
        if parts.keys() == {"sum", "count"}
    }


def since(before: dict[str, Histogram], after: dict[str, Histogram]) -> dict[str, Histogram]:
    """What was added between two readings; what did not grow is left out."""
    added = {}
    for name, new in after.items():
        old = before.get(name, Histogram(0.0, 0.0))
        if new.observations > old.observations:
            added[name] = Histogram(
                new.seconds - old.seconds, new.observations - old.observations
            )
    return added
