"""docs/options.md, made from the programs' --help.

  tools/bazel.sh build //sender_daemon:dws-sender //receiver_daemon:dws-receiver //tools/dwsctl
  python3 -m tools.docs.options bazel-bin          prints the document
  python3 -m tools.docs.options bazel-bin --write  writes it
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

from tools.package.man_page import entries, help_of, split

DOCUMENT = Path("docs/options.md")
DAEMONS = ("sender_daemon/dws-sender", "receiver_daemon/dws-receiver")
TOOL = "tools/dwsctl/dwsctl"
# An option that so many commands of dwsctl have alike is listed once.
_SHARED_BY = 5
_INTRO = """\
# Options

Every option of `dws-sender`, `dws-receiver` and `dwsctl`.
`python3 -m tools.docs.options bazel-bin --write` makes this page from `--help`, and a test compares it with the programs.

A daemon's option `--some-name` is also the key `some-name` of the file that `--config` names, and `DWS_SOME_NAME` in the environment ([configuration](deploy.md#configuration)).
An option with *repeated* may be given several times: in the file it is an array, in the environment it has commas.
Sizes are bytes, or have a unit, as `4GiB`.
"""


@dataclasses.dataclass(frozen=True)
class Option:
    name: str
    value: str
    default: str
    text: str

    def row(self) -> str:
        cells = (f"`{self.name}`", self.value, self.default, re.sub(r"[<*]", r"\\\g<0>", self.text))
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _outside_brackets(text: str, character: str) -> int:
    """Where `character` first stands outside of brackets; -1: nowhere."""
    depth = 0
    for at, found in enumerate(text):
        if found == character and depth == 0:
            return at
        depth += (found in "[{(") - (found in "]})")
    return -1


def _value(text: str) -> str:
    """ "SECONDS:INT in [0 - 9]" is SECONDS, 0 to 9; "TEXT:{a,b}" is a|b. """
    span = re.fullmatch(r"(\w+):\w+ in \[(\S+) - (\S+)\]", text)
    if span is not None:
        name = "" if span[1] in ("UINT", "INT", "FLOAT") else f"{span[1]}, "
        return f"{name}{span[2]} to {span[3]}"
    choice = re.fullmatch(r"\w+:\{(.*)\}", text)
    return f"`{choice[1].replace(',', '|')}`" if choice else f"`{text}`" if text else ""


def _size(text: str) -> str:
    number = int(text)
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number and number % (1 << shift) == 0:
            return f"{number >> shift}{unit}"
    return text


def option_of(left: str, text: str) -> Option:
    """An entry of the help: its name with what CLI11 writes behind it, and its description."""
    name, _, rest = left.partition(" ")
    notes = []
    for pattern, note in ((r"\s*\(Env:(\w+)\)", "In the environment: `{}`."), (r"\s*Excludes: (--[\w-]+)", "Not with `{}`.")):
        match = re.search(pattern, rest)
        if match is not None:
            notes.append(note.format(match[1]))
            rest = rest.replace(match[0], "")
    required = rest.endswith("REQUIRED")
    rest = rest.removesuffix("REQUIRED").strip()
    repeated = rest.endswith(" ...")
    rest = rest.removesuffix(" ...").strip()
    at = _outside_brackets(rest, "=")
    value, default = (rest, "") if at < 0 else (rest[:at], rest[at + 1:])
    said = re.search(r" ?\(default:? (.*?)\)(?=$|[;.,])", text)
    if said is not None:  # what the program would compute, which may differ from machine to machine
        default = f"`{said[1]}`" if said[1].startswith(("/", "$", "-")) else said[1]
        text = text.replace(said[0], "")
    elif default:
        default = f"`{_size(default) if value == 'SIZE' else default}`"
    text = ". ".join([text[:1].upper() + text[1:], *notes]) if notes else text[:1].upper() + text[1:]
    return Option(name, _value(value) + (", repeated" if repeated else ""), "required" if required else default, text)


def table(options: list[Option]) -> str:
    return "\n".join(["| option | value | default | what it does |", "|---|---|---|---|", *[option.row() for option in options]]) + "\n"


def _options(lines: list[str]) -> list[Option]:
    return [option_of(left, text) for left, text in entries(lines) if not left.startswith("-h,")]


def daemon_part(program: Path) -> str:
    text = help_of(str(program))
    parts = split(text)
    out = [f"## {program.name}", parts[0][1][0]]
    for heading, lines in parts:
        if not heading.lower().endswith("options") and not heading.startswith("Experimental options"):
            continue
        if heading != "Options":
            out.append(f"### {program.name}: {heading[0].lower()}{heading[1:]}")
        out.append(table(_options(lines)).rstrip("\n"))
    return "\n\n".join(out) + "\n"


def tool_part(program: Path) -> str:
    commands = [left.split()[0] for heading, lines in split(help_of(str(program))) if heading.startswith("Commands")
                for left, _ in entries(lines)]
    helps = {command: dict(split(help_of(str(program), command))) for command in commands}
    found = {command: _options(parts["Options"]) for command, parts in helps.items()}
    users: dict[Option, list[str]] = {}
    for command, options in found.items():
        for option in options:
            users.setdefault(option, []).append(command)
    shared = [option for option, by in users.items() if len(by) >= _SHARED_BY]
    out = [f"## {program.name}", "### Options of several commands",
           "\n".join(["| option | value | default | what it does | commands |", "|---|---|---|---|---|",
                      *[f"{option.row()} {', '.join(f'`{name}`' for name in users[option])} |" for option in shared]])]
    for command, parts in helps.items():
        out += [f"### {program.name} {command}", parts[""][0]]
        usage = next(line for line in parts[""] if line.startswith("Usage:"))
        out.append(f"`{usage.removeprefix('Usage: ')}`")
        own = [option_of(left, text) for left, text in entries(parts.get("Positionals", []))]
        own += [option for option in found[command] if option not in shared]
        if own:
            out.append(table(own).rstrip("\n"))
    return "\n\n".join(out) + "\n"


def document(folder: Path) -> str:
    """The whole page, from the programs below `folder`."""
    return "\n".join([_INTRO, *[daemon_part(folder / name) for name in DAEMONS], tool_part(folder / TOOL)])


def main() -> None:
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--write"]):
        raise SystemExit(__doc__)
    text = document(Path(sys.argv[1]))
    if sys.argv[2:]:
        DOCUMENT.write_text(text, "utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
