"""The commands in the documentation: fenced `sh` blocks, and what runs each of them.

A mark after the block's language says what runs it; renderers do not show it:

  ```sh ci              its commands are what continuous integration runs
  ```sh NAME            a test of that document runs its block of that name (readme_example_test)
  ```sh pair            docs_commands_test runs it beside a running sender and receiver; if a ```text block follows at
                        once, that is what it prints, but for numbers
  ```sh package         tools/package_test.sh runs it in a clean system
  ```sh package-build   tools/package_test.sh runs its commands before that
  ```sh not-run REASON  it cannot be run here; its syntax, programs, flags and files are checked
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Iterator

_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^ *```$", re.M | re.S)
_OUTPUT = re.compile(r"\n\n```text\n(.*?)^```$", re.M | re.S)


@dataclasses.dataclass(frozen=True)
class Block:
    path: str  # from the top of the tree
    line: int
    mark: str  # "" without a mark
    reason: str
    text: str
    output: str | None = None  # the ```text block that follows at once

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """Its commands as words: an approximation that is enough to check programs and flags."""
        text = re.sub(r"\\\n", " ", self.text)
        for line in text.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
            lexer.whitespace_split = True
            command: list[str] = []
            for word in lexer:
                if re.fullmatch(r"[|&;()]+", word):
                    if command:
                        yield command
                    command = []
                else:
                    command.append(word)
            if command:
                yield command


def documents(top: Path) -> list[Path]:
    return sorted([top / "README.md", top / "CONTRIBUTING.md", *top.glob("docs/**/*.md"), *top.glob("deploy/**/*.md")])


def blocks_of(path: Path, top: Path) -> list[Block]:
    found = []
    text = path.read_text()
    for match in _FENCE.finditer(text):
        language, _, rest = match[2].strip().partition(" ")
        if language not in ("sh", "bash", "shell", "console"):
            continue
        mark, _, reason = rest.strip().partition(" ")
        indent = match[1]
        body = "".join(line.removeprefix(indent) for line in match[3].splitlines(keepends=True))
        output = _OUTPUT.match(text, match.end())
        found.append(Block(str(path.relative_to(top)), text.count("\n", 0, match.start()) + 1, mark,
                           reason.strip(), body, output[1] if output else None))
    return found


def all_blocks(top: Path) -> list[Block]:
    return [block for path in documents(top) for block in blocks_of(path, top)]
