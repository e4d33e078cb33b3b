"""A reader of Prometheus' text format, as far as tests need it."""

from __future__ import annotations

import dataclasses
import re
import urllib.error
import urllib.request
from typing import Optional

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclasses.dataclass
class Exposition:
    """One page of /metrics."""

    text: str
    types: dict[str, str] = dataclasses.field(default_factory=dict)  # by metric
    samples: list[tuple[str, dict[str, str], float]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        for line in self.text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                self.types[name] = kind
            elif line and not line.startswith("#"):
                match = _SAMPLE.match(line)
                if match is None:
                    raise AssertionError(f"no sample: {line}")
                name, labels, value = match.groups()
                self.samples.append((name, dict(_LABEL.findall(labels or "")), float(value)))

    def metric_of(self, sample: str) -> str:
        """`x_bucket` is a sample of the histogram `x`."""
        for suffix in ("_bucket", "_sum", "_count"):
            stem = sample.removesuffix(suffix)
            if stem != sample and self.types.get(stem) == "histogram":
                return stem
        return sample

    def labels(self) -> dict[str, frozenset[str]]:
        """The label names of each sample name."""
        found: dict[str, frozenset[str]] = {}
        for name, labels, _ in self.samples:
            found[name] = found.get(name, frozenset()) | frozenset(labels)
        return found

    def value(self, name: str, **labels: str) -> Optional[float]:
        """The value of the first sample with these labels; None when there is none."""
        for sample, has, value in self.samples:
            if sample == name and labels.items() <= has.items():
                return value
        return None


def get(port: int, path: str) -> tuple[int, str, str]:
    """Status, content type and body of a page on 127.0.0.1."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()
