"""The tables of docs that say what has been run, made from docs/ran.json, which tools/real.sh CHECK --record writes.

  python3 -m tools.docs.compatibility          prints what differs
  python3 -m tools.docs.compatibility --write  writes it

In docs/real-engines.md that is what is between the markers; in docs/features.md the days, and the releases, of the rows of
"Compatibility" that a recorded check is about.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from pathlib import Path
from typing import Iterable, Mapping

from tools.real.record import Ran, read

RECORD = Path("docs/ran.json")
CELLS = Path("docs/real-engines.md")
TABLE = Path("docs/features.md")
# Cells that have a table of their own: ENGINE/GROUP/WAY, or all of a check.
GROUPS = {"torn": "torn passes under load", "draft": "draft models", "adapters": "adapters of LoRA"}
BEGIN, END = "<!-- made from ran.json -->", "<!-- end -->"
# By how a row of features.md begins: the cases that it is about, and the package whose release it names.
ROWS = {
    "vLLM, worker extension": (("engines/vllm*",), ""),
    "SGLang, entry point": (("engines/sglang*",), ""),
    "vLLM and SGLang, over HTTP": (("engines/*/follow-*",), ""),
    "PyTorch: ": (("trainers/fsdp*",), "torch"),
    "transformers": (("declare/*",), "transformers"),
    "TRL: ": (("trainers/grpo*",), "trl"),
    "peft": (("adapters/*", "trainers/*-adapter"), ""),
    "DeepSpeed": (("trainers/zero*",), "deepspeed"),
    "Megatron-Core": (("trainers/megatron*",), "megatron-core"),
    "verl": (("verl/*",), "verl"),
    "ModelExpress": (("chains/*",), "modelexpress"),
}


def _said(one: Ran) -> str:
    return "ok" if one.good else "**FAILED**"


def _numbered(text: str) -> list[object]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def _state(ran: Iterable[Ran]) -> list[tuple[str, str, str]]:
    """The days, commits and versions of runs, newest first."""
    found = {(one.day, one.commit, ", ".join(f"{n} {v}" for n, v in sorted(one.with_.items()))) for one in ran}
    return sorted(found, reverse=True)


def cells(ran: Mapping[str, Ran]) -> str:
    """The tables of docs/real-engines.md: a row for each configuration that has run, a column for each check."""
    mine = {name.removeprefix("engines/"): one for name, one in ran.items() if name.startswith(("engines/", "adapters/"))}
    groups = {group: {n: one for n, one in mine.items() if f"/{group}/" in f"/{n}"} for group in GROUPS}
    grouped = {name for found in groups.values() for name in found}
    states = _state(mine.values())
    letters = {state: chr(ord("a") + number) if len(states) > 1 else "" for number, state in enumerate(states)}

    def mark(one: Ran) -> str:
        return letters[_state([one])[0]]

    lines = ["| run | when | commit | with |", "|---|---|---|---|"]
    lines += [f"| {letters[state] or 'all'} | {' | '.join(state)} |" for state in states]
    for engine in ("vllm", "sglang"):
        of = {name: one for name, one in mine.items() if name.startswith(engine) and name not in grouped}
        if not of:
            continue
        checks = sorted({name.rpartition("/")[2] for name in of}, key=_order)
        lines += ["", f"| engine | {' | '.join(checks)} |", "|---" * (len(checks) + 1) + "|"]
        for row in sorted({name.rpartition("/")[0] for name in of}, key=_numbered):
            found = [of.get(f"{row}/{check}") for check in checks]
            said = ["" if one is None else f"{_said(one)} {mark(one)}".strip() for one in found]
            lines.append(f"| {row} | {' | '.join(said)} |")
    for group, of in groups.items():
        lines += ["", f"| {GROUPS[group]} | found |", "|---|---|"] if of else []
        for name in sorted(of, key=_numbered):
            text = of[name].found if of[name].good else _said(of[name])
            lines.append(f"| {name} | {text} {mark(of[name])}".rstrip() + " |")
    return "\n".join(lines) + "\n"


def _order(check: str) -> tuple[int, str]:
    """Updates of a running engine first, then kills, then folders that are followed."""
    return (("kill-", "follow-").index(f"{check.split('-')[0]}-") + 1 if "-" in check else 0, check)


def with_cells(text: str, ran: Mapping[str, Ran]) -> str:
    """Raises ValueError: a marker is missing."""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise ValueError(f"{CELLS}: expected the lines {BEGIN!r} and {END!r}")
    return text[:begin] + BEGIN + "\n\n" + cells(ran) + "\n" + text[end:]


def with_days(text: str, ran: Mapping[str, Ran]) -> str:
    """`text`, of docs/features.md, with the newest day and the releases of what has run, in the rows that ROWS names."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        for begin, (patterns, package) in ROWS.items():
            found = [one for name, one in ran.items() if one.good and any(fnmatch.fnmatchcase(name, p) for p in patterns)]
            if not line.startswith(f"| {begin}") or not found:
                continue
            fields = line.split(" | ")
            fields[3] = max(one.day for one in found)
            releases = sorted({one.with_[package] for one in found if package in one.with_}, key=_numbered, reverse=True)
            if releases:
                fields[1] = ", ".join(releases)
            lines[number] = " | ".join(fields)
    return "".join(lines)


def main() -> int:
    ran = read(str(RECORD))
    stale = 0
    for path, make in ((CELLS, with_cells), (TABLE, with_days)):
        text = path.read_text("utf-8")
        made = make(text, ran)
        stale += made != text
        if "--write" in sys.argv[1:]:
            path.write_text(made, "utf-8")
        elif made != text:
            print(f"{path} differs from what {RECORD} says: python3 -m tools.docs.compatibility --write")
    return 1 if stale and "--write" not in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
