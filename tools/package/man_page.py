"""A manual page out of a program's `--help`: man_page.py SECTION VERSION DATE PROGRAM > page

The text is the program's own; this gives it a page's form. Its commands, under headings that begin with "Commands",
become sections of one page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

_HEADING = re.compile(r"^([A-Z][A-Za-z, \[\]-]*):$")
_ENTRY = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")
_DEEP = re.compile(r"^ {8,}(\S.*)$")


def help_of(program: str, *subcommand: str) -> str:
    done = subprocess.run([program, *subcommand, "--help"], capture_output=True, text=True,
                          timeout=60, check=True)
    return done.stdout


def escape(text: str) -> str:
    """For roff: no escapes, no requests at the start of a line."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + text if text.startswith((".", "'")) else text


def entries(lines: list[str]) -> list[tuple[str, str]]:
    """(what stands left, its text) of a section of the help: options, commands."""
    found: list[tuple[str, str]] = []
    column = next((entry.start(2) for line in lines if (entry := _ENTRY.match(line)) and entry[2]), None)
    for line, following in zip(lines, [*lines[1:], ""]):
        deep = _DEEP.match(line)
        entry = _ENTRY.match(line)
        if deep and found:
            name, text = found[-1]
            found[-1] = (name, f"{text} {deep[1]}".strip())
        elif entry and not entry[2] and column and not _DEEP.match(following) and line[column - 1:column] == " ":
            found.append((line[:column].strip(), line[column:]))  # it fills its column: one space remains
        elif entry:
            found.append((entry[1], entry[2] or ""))
    return found


def split(text: str) -> list[tuple[str, list[str]]]:
    """Yields (heading, lines) in order; lines before the first heading have an empty heading."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading:
            sections.append((heading[1], []))
        else:
            sections[-1][1].append(line)
    return [(name, lines) for name, lines in sections if any(line.strip() for line in lines)]


def paragraphs(lines: list[str]) -> list[str]:
    out = []
    for line in lines:
        if not line.strip():
            out.append(".PP")
        elif line.startswith((" ", "\t")):
            out += [".nf", escape(line), ".fi"]
        else:
            out.append(escape(line))
    while out and out[-1] == ".PP":
        out.pop()
    return out


def body(sections: list[tuple[str, list[str]]], request: str) -> list[str]:
    """Each section under `request` (.SH or .SS)."""
    out = []
    for name, lines in sections:
        out.append(f'{request} "{escape(name if request == ".SS" else name.upper())}"')
        if name.lower().startswith(("commands", "positional")) or any(line.startswith("  -") for line in lines):
            for left, text in entries(lines):
                out += [".TP", rf"\fB{escape(left)}\fR", escape(text) or r"\&"]
        else:
            out += paragraphs(lines)
    return out


def page(program: str, section: str, version: str, date: str) -> str:
    name = os.path.basename(program)
    text = help_of(program)
    sections = split(text)
    intro = [line for line in sections[0][1] if line.strip()]
    usage = next(line for line in intro if line.startswith("Usage:"))
    about = [line for line in intro if line is not usage]
    summary = about[0].removeprefix(name).lstrip(": ").rstrip(".")
    out = [
        f'.TH "{name.upper()}" "{section}" "{date}" "dws {version}" "Delta Weight Sync"',
        '.SH "NAME"', f"{escape(name)} \\- {escape(summary)}",
        '.SH "SYNOPSIS"', escape(re.sub(r"^Usage: (\S*/)?", "", usage)),
        '.SH "DESCRIPTION"', *[escape(line) for line in about],
        *body(sections[1:], ".SH"),
    ]
    for heading, lines in sections[1:]:
        if not heading.startswith("Commands"):
            continue
        for left, _ in entries(lines):
            out += command_section(program, name, left.split()[0])
    out += ['.SH "SEE ALSO"', *see_also(name)]
    return "\n".join(out) + "\n"


def command_section(program: str, name: str, subcommand: str) -> list[str]:
    out = [f'.SH "{escape(f"{name} {subcommand}").upper()}"']
    parts = split(help_of(program, subcommand))
    for line in parts[0][1]:
        out += [".PP", *paragraphs([line])] if line.startswith("Usage:") else paragraphs([line])
    return out + body(parts[1:], ".SS")


def see_also(name: str) -> list[str]:
    others = [f"\\fB{escape(other)}\\fR(1)" for other in ("dws-sender", "dws-receiver", "dwsctl", "dws-certificates")
              if other != name]
    return [", ".join(others), ".PP", escape("/usr/share/doc/dws: deploy.md, options.md, events.md, runbook.md")]


def main() -> None:
    section, version, date, program = sys.argv[1:]
    print(page(program, section, version, date), end="")


if __name__ == "__main__":
    main()
