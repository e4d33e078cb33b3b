"""What cells found, as a file and as the table at the end."""

from __future__ import annotations

import dataclasses
import json
from typing import Mapping, Sequence

from tools.real.engines.cells import CONFIGURATIONS, Configuration

NOT_RUN = "not run"


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a cell. `text`: figures, or why it failed."""

    good: bool
    text: str

    @property
    def shown(self) -> str:
        return self.text if self.good else f"**FAILED**: {self.text}"


def read_results(path: str, versions: Mapping[str, str]) -> dict[str, Result]:
    """What earlier runs found with these versions of engines; nothing if there is no such file."""
    try:
        with open(path) as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    return {
        name: Result(one["good"], one["text"])
        for name, one in found["cells"].items()
        if found["versions"] == versions
    }


def write_results(path: str, results: Mapping[str, Result], versions: Mapping[str, str]) -> None:
    cells = {name: dataclasses.asdict(one) for name, one in results.items()}
    with open(path, "w") as file:
        json.dump({"versions": versions, "cells": cells}, file, indent=1)


def table(
    results: Mapping[str, Result], names: Sequence[str], versions: Mapping[str, str], day: str
) -> str:
    """The results as Markdown: a table for each engine, with a row for each configuration and a column for each check;
    then one of the search for torn passes.

    Args:
      results: by the cell's name; a name in `names` without a result was not run.
      versions: the engines' versions, by package.
    """
    parts = [f"Run on {day}, on the CPU, with " + ", ".join(f"{n} {v}" for n, v in versions.items()) + "."]
    for package in versions:
        rows = [one for one in CONFIGURATIONS if one.package == package]
        parts.append(_configurations(results, rows))
    lines = [
        f"| {name} | {results[name].shown if name in results else NOT_RUN} |"
        for name in names
        if "/torn/" in name
    ]
    parts.append("\n".join(["| torn passes under load | found |", "|---|---|", *lines]))
    return "\n\n".join(parts) + "\n"


def _configurations(results: Mapping[str, Result], rows: Sequence[Configuration]) -> str:
    checks = rows[0].checks
    lines = [f"| engine | {' | '.join(checks)} |", "|---" * (len(checks) + 1) + "|"]
    for row in rows:
        found = [results.get(f"{row.name}/{check}") for check in checks]
        cells = [NOT_RUN if one is None else "ok" if one.good else "**FAILED**" for one in found]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)
