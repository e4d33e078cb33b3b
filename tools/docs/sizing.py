"""The table of docs/sizing.md: each row has a formula in code, and its figures for some models.

  python3 -m tools.docs.sizing          prints the document with the figures computed
  python3 -m tools.docs.sizing --write  writes it

Bytes are printed with decimal units, three significant digits.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Callable

DOCUMENT = Path("docs/sizing.md")
MIB = float(1 << 20)
GIB = float(1 << 30)
# What the formulas call things that are the same for all models. docs/sizing.md says what they are.
CONSTANTS = {
    "e": 2.0, "d": 0.02, "c": 1.1, "b": 1.25e9, "n": 16.0, "MiB": MIB, "GiB": GIB,
    "retain_bytes": 1 * GIB, "retain_versions": 64.0, "staging_bytes": 256 * MIB,
}
# Columns: the parameters, the ranks of the trainer, and the hosts of one engine.
MODELS = {
    "8B": {"P": 8e9, "R": 8.0, "H": 1.0},
    "70B": {"P": 70e9, "R": 32.0, "H": 1.0},
    "355B": {"P": 355e9, "R": 128.0, "H": 1.0},
    "1T": {"P": 1e12, "R": 256.0, "H": 4.0},
}
ROW = re.compile(r"^\| (?P<name>[^|]+) \| `(?P<formula>[^`|]+)` \| (?P<unit>bytes|seconds|count) \|.*$")
_OPERATIONS: dict[type, Callable[[float, float], float]] = {
    ast.Add: lambda x, y: x + y, ast.Sub: lambda x, y: x - y, ast.Mult: lambda x, y: x * y,
    ast.Div: lambda x, y: x / y, ast.FloorDiv: lambda x, y: float(x // y),
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max}


def evaluate(formula: str, names: dict[str, float]) -> float:
    """Arithmetic over `names` with min and max. ValueError: anything else."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return float(node.value)
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            return float(_FUNCTIONS[node.func.id](*map(value, node.args)))
        raise ValueError(f"{formula}: expected arithmetic over {sorted(names)}, found {ast.dump(node)}")

    return value(ast.parse(formula, mode="eval").body)


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def shown(value: float, unit: str) -> str:
    if unit == "count":
        return f"{value:.0f}"
    if unit == "seconds":
        return f"{_three_digits(value)} s" if value >= 1 else f"{_three_digits(value * 1000)} ms"
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{_three_digits(value / size)} {name}"
    return f"{value:.0f} B"


def computed(row: str) -> str:
    """A row of the table with its figures; any other line as it is."""
    match = ROW.match(row)
    if match is None:
        return row
    cells = []
    for model in MODELS.values():
        names = {**CONSTANTS, **model}
        names["W"] = names["P"] * names["e"]
        names["D"] = names["P"] * names["d"] * names["c"]
        cells.append(shown(evaluate(match["formula"], names), match["unit"]))
    return f"| {match['name']} | `{match['formula']}` | {match['unit']} | {' | '.join(cells)} |"


def computed_document(text: str) -> str:
    return "".join(computed(line) + "\n" for line in text.splitlines())


def formula_of(row: str) -> str:
    match = ROW.match(row)
    assert match is not None, row
    return match["formula"]


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if ROW.match(line)]


def main() -> None:
    text = computed_document(DOCUMENT.read_text("utf-8"))
    if sys.argv[1:] == ["--write"]:
        DOCUMENT.write_text(text, "utf-8")
    elif not sys.argv[1:]:
        print(text, end="")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
