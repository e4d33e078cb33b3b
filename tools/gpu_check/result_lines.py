"""The lines that the Python parts of gpu_check print: those of report/results.h. tests/gpu/README.md says what is
in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Mapping, NamedTuple, Optional, Sequence

FAKE = "not compared with its bar: the driver is a fake"


class Limit(NamedTuple):
    """The most that a measurement may be, in its unit, and what that is made of. It holds if there is nothing in
    `not_here`."""

    value: float
    of_what: str
    not_here: str = ""


class Lines:
    """Prints the lines of one section. On the CPU they are marked: figures of such a run mean nothing."""

    def __init__(self, section: str, device: str) -> None:
        self.section = section
        self.fake = device == "cpu"
        self.failed = 0

    def passed(self, name: str, note: str = "") -> None:
        self._print(name, "passed", note)

    def skipped(self, name: str, why: str) -> None:
        self._print(name, "skipped", why)

    def checked(self, name: str, why_not: str) -> None:
        """Passed if nothing is in `why_not`."""
        self._print(name, "failed" if why_not else "passed", why_not)

    def measured(
        self,
        name: str,
        value: float,
        unit: str,
        limit: Optional[Limit] = None,
        values: Sequence[float] = (),
        note: str = "",
    ) -> None:
        """Failed if it is above its limit. `values`: what `value` is the median of."""
        figure: dict[str, Any] = {"value": value, "unit": unit}
        if values:
            figure["values"] = [round(each, 6) for each in values]
        status = "passed"
        if limit is not None:
            figure.update(reference=limit.value, of_what=limit.of_what, ratio=value / limit.value)
            why_not = FAKE if self.fake else limit.not_here
            if why_not:
                note = f"{note}; {why_not}" if note else why_not
                status = "skipped" if self.fake else "passed"
            else:
                figure["bar"] = "<= 1"
                status = "passed" if value <= limit.value else "failed"
        self._print(name, status, note, figure)

    def _print(
        self, name: str, status: str, note: str = "", figure: Optional[dict[str, Any]] = None
    ) -> None:
        line: dict[str, Any] = {"section": self.section, "name": name, "status": status}
        if figure is not None:
            line["figure"] = figure
        if note:
            line["note"] = note
        if self.fake:
            line["fake_driver"] = True
        self.failed += status == "failed"
        print(json.dumps(line), flush=True)


def why_failed(
    command: Sequence[str],
    seconds: float,
    environment: Mapping[str, str],
    stdout: Any = None,
) -> str:
    """Runs a check in a process of its own, with what it adds to the environment. Returns why it failed, or ""."""
    try:
        done = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, **environment},
            stdout=stdout,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"did not finish within {seconds:.0f} s"
    return f"exit status {done.returncode}, see above" if done.returncode != 0 else ""
