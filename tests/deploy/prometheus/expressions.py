"""Names in PromQL expressions, as far as the expressions of deploy/ need it: which metrics are read, with
which labels. promtool checks the syntax."""

from __future__ import annotations

import re
from typing import Iterator

# A metric and the matchers after it.
_SELECTOR = re.compile(r"\b((?:dws|process)_\w+|ALERTS|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
# Labels that Prometheus adds to a sample, and that of a histogram's buckets.
ADDED_LABELS = frozenset({"job", "instance", "le"})
# Metrics that Prometheus makes.
OWN_METRICS: dict[str, frozenset[str]] = {
    "ALERTS": frozenset({"alertname", "alertstate", "severity"}),
    "up": frozenset(),
}


def problems(expression: str, exposition: dict[str, frozenset[str]]) -> Iterator[str]:
    """The names in `expression` that do not exist. `exposition`: label names by sample name."""
    known = {**exposition, **OWN_METRICS}
    bare = _GROUPING.sub("", expression)
    seen: set[str] = set(ADDED_LABELS)
    found = False
    for match in _SELECTOR.finditer(bare):
        name, matchers = match.groups()
        found = True
        if name not in known:
            yield f"there is no metric {name}"
            continue
        seen |= known[name]
        for label in _MATCHER.findall(matchers or ""):
            if label not in known[name] | ADDED_LABELS:
                yield f"{name} has no label {label}"
    if not found:
        yield "it reads no metric"
    for group in _GROUPING.findall(expression):
        for label in filter(None, (part.strip() for part in group.split(","))):
            if label not in seen:
                yield f"no metric of it has the label {label}"
