"""The files of the source tree, and the form in which the rules look at them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator

CPP = (".h", ".cc", ".cu")
TEXT = CPP + (".py", ".proto", ".sh", ".bzl", ".bazel", ".md", ".txt", ".toml", ".supp", ".service")
# Text files without an extension.
TEXT_NAMES = ("WORKSPACE", ".bazelrc", ".bazelignore", ".clang-format", ".clang-tidy", ".gitignore", "run")
# Hidden folders are caches, except this one; bazel-* are Bazel's links to its output.
HIDDEN_FOLDERS = (".ci",)


@dataclass(frozen=True)
class Violation:
    rule: str
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message} [{self.rule}]"


@dataclass
class SourceFile:
    path: str  # from the top of the tree
    text: str
    _code: str | None = field(default=None, repr=False)

    @property
    def suffix(self) -> str:
        return Path(self.path).suffix

    @property
    def is_cpp(self) -> bool:
        return self.suffix in CPP

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def code(self) -> str:
        """C++ with comments and the insides of literals blanked; line numbers do not change."""
        if self._code is None:
            self._code = blank_comments_and_literals(self.text)
        return self._code


CPP_TOKEN = re.compile(
    r"""//[^\n]*
      | /\*.*?\*/
      | R"(?P<delimiter>[^(\s]*)\(.*?\)(?P=delimiter)"
      | "(?:\\.|[^"\\\n])*"
      | (?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'     # not the ' of 200'000
    """,
    re.X | re.S,
)


def blank_comments_and_literals(text: str) -> str:
    def blank(match: re.Match[str]) -> str:
        token = match[0]
        if token.startswith("/"):
            return re.sub(r"[^\n]", " ", token)
        quote = token[-1]
        return quote + re.sub(r"[^\n]", " ", token[1:-1]) + quote

    return CPP_TOKEN.sub(blank, text)


@dataclass
class SourceTree:
    root: Path
    files: list[SourceFile]
    folders: list[str]  # from the top, without hidden ones

    def cpp(self) -> Iterator[SourceFile]:
        return (file for file in self.files if file.is_cpp)

    def ending(self, *suffixes: str) -> Iterator[SourceFile]:
        return (file for file in self.files if file.suffix in suffixes)

    def find(self, path: str) -> SourceFile | None:
        return next((file for file in self.files if file.path == path), None)


def _is_ours(folder: str) -> bool:
    if folder.startswith("."):
        return folder in HIDDEN_FOLDERS
    return not folder.startswith("bazel-") and folder != "__pycache__"


def read_tree(root: Path) -> SourceTree:
    files: list[SourceFile] = []
    folders: list[str] = []
    for place, below, names in os.walk(root):
        below[:] = sorted(name for name in below if _is_ours(name))
        here = Path(place).relative_to(root)
        folders += [str(here / name) for name in below]
        for name in sorted(names):
            if name.endswith(TEXT) or name in TEXT_NAMES:
                text = (Path(place) / name).read_text(encoding="utf-8")
                files.append(SourceFile(str(here / name), text))
    return SourceTree(root, files, folders)
