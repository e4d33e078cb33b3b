"""What stands in files: names, comments on top, and words that do not belong."""

from __future__ import annotations

import ast
import re
from typing import Iterator

from tools.tidy.source_tree import SourceFile, SourceTree, Violation

# These names say what a type is made of, not what it is for.
_EMPTY_NAME = re.compile(
    r"\b(?:class|struct|enum class|enum|using)\s+(?:\[\[\w+\]\]\s*)?"
    r"(\w*(?:Manager|Utils?|Helper|Handler|Info|Data))\s*(?:final\b|[{=]|:(?!:)|$)", re.M)
_EMPTY_NAME_PYTHON = re.compile(
    r"^\s*class\s+(\w*(?:Manager|Utils?|Helper|Handler|Info|Data))\b", re.M)

# A call that has one home: (pattern, why not, homes).
_BANNED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (r"\bsleep_(?:for|until)\b|\busleep\b", "wait for the event, with a deadline",
     ("tests/fakes/eventually.h",)),
    # The simulation unwinds the stack of a process that dies.
    (r"\bthrow\b", "errors are Status values", ("tests/simulation/fiber.cc",)),
    (r"\busing namespace\b", "name what is used", ()),
    (r"\babsl::(?:Mutex|CondVar)\b", "use common/base/threads/mutex.h: ThreadSanitizer sees it", ()),
    (r"\bstd::(?:recursive_)?mutex\b", "use common/base/threads/mutex.h: it is annotated",
     ("common/base/threads/mutex.h",)),
    (r"\bassert\s*\(", "use DWS_CHECK: it stays in release builds", ()),
)

_LOGS = re.compile(r"\bLog(?:Debug|Info|Warning|Error)\(")
_QUOTED_NAME = re.compile(r'"(\w+)"')
_EVENT_COUNTED = re.compile(
    r'\.logged\(\s*"(\w+)"|(?:\bassertNotIn\(\s*"[ \w]+",|"[ \w]+" not in )[^\n]*\blog(?:_tail)?\b')
# A name with an underscore, alone in its literal, on a line that looks through a log; no metric.
_EVENT_SEEN = re.compile(r'(?<!metric\()"\s*([a-z]+(?:_[a-z]+)+)\s*"(?=[^\n]*\.log_tail\()|\.log_tail\([^\n]*"\s*([a-z]+(?:_[a-z]+)+)\s*"')

COMMENT_COLUMNS_MAX = 100

# Written in two halves so that the rule does not find this file.
_FOREIGN_WORDS = tuple(re.compile(pattern, re.I) for pattern in (
    "/wo" r"rk/",
    "/tmp/b" r"z-|/tmp/sk" r"el",
    r"\biss" r"ues? #?\d",
    r"\bthis sess" r"ion of\b",
    # Package registries: only the system's package manager downloads anything.
    r"\bpy" r"pi\.org|pythonhost" r"ed\.org|\banacon" r"da\.org",
    r"\bdeb\.deb" r"ian\.org|\barchive\.ubu" r"ntu\.com",
    r"\bnpm" r"js\.|\bcrat" r"es\.io|\bmav" r"en\.org|\bproxy\.gol" r"ang\.",
    r"\bdock" r"er\.io|\bghc" r"r\.io|\bqu" r"ay\.io|\bnvc" r"r\.io|\bhugging" r"face\.co",
))


def check_names(file: SourceFile) -> Iterator[Violation]:
    pattern, text = (_EMPTY_NAME, file.code) if file.is_cpp else (_EMPTY_NAME_PYTHON, file.text)
    for match in pattern.finditer(text):
        line = text.count("\n", 0, match.start(1)) + 1
        yield Violation("names", file.path, line,
                        f"{match[1]}: name it for what it is, not Manager, Util, Helper, Handler, "
                        "Info or Data")


def check_calls(file: SourceFile) -> Iterator[Violation]:
    for pattern, why, homes in _BANNED:
        if file.path.startswith(homes):
            continue
        for match in re.finditer(pattern, file.code):
            line = file.code.count("\n", 0, match.start()) + 1
            yield Violation("calls", file.path, line, f"{match[0].strip()}: {why}")


def check_top(file: SourceFile) -> Iterator[Violation]:
    """A contract on top of each header, each .proto and each Python module; in each .cc a comment that says why."""
    if file.suffix in (".h", ".proto"):
        if not file.text.startswith("// "):
            yield Violation("file-comment", file.path, 1, "starts with a comment: what this is, who uses it")
        if file.suffix == ".h" and "\n#pragma once\n" not in file.text:
            yield Violation("file-comment", file.path, 1, "has no #pragma once")
    elif file.suffix == ".cc":
        if not any(line.lstrip().startswith("//") for line in file.lines):
            yield Violation("file-comment", file.path, 1, "has no comment: say why it is as it is, in a sentence")
    elif file.suffix == ".py" and file.text and ast.get_docstring(ast.parse(file.text)) is None:
        yield Violation("file-comment", file.path, 1, "starts with a docstring: what this is")


def check_events(tree: SourceTree) -> Iterator[Violation]:
    """A test that counts an event, looks for it, or holds that it is not logged, names one that exists."""
    # Not only the argument of a call: some names are chosen, or set for another part.
    logged = {name for file in tree.ending(".cc") if not file.is_test and _LOGS.search(file.code)
              for name in _QUOTED_NAME.findall(file.text)}
    for file in tree.ending(".py"):
        if file.path.startswith("tools/tidy/"):
            continue
        for match in _EVENT_COUNTED.finditer(file.text):
            line = file.text.count("\n", 0, match.start()) + 1
            if match[1] is None:
                yield Violation("events", file.path, line, "count it, logged(EVENT): a name that nothing logs is never in a log")
            elif match[1] not in logged:
                yield Violation("events", file.path, line, f"nothing logs the event {match[1]}")
        for match in _EVENT_SEEN.finditer(file.text):
            if (name := match[1] or match[2]) not in logged:
                line = file.text.count("\n", 0, match.start()) + 1
                yield Violation("events", file.path, line, f"nothing logs the event {name}")


def check_comment_columns(file: SourceFile) -> Iterator[Violation]:
    """clang-format leaves comments alone."""
    for line, (text, code) in enumerate(zip(file.lines, file.code.splitlines()), 1):
        if len(text) > COMMENT_COLUMNS_MAX and len(code.rstrip()) < len(text):
            yield Violation("comment-columns", file.path, line, f"{len(text)} columns, at most {COMMENT_COLUMNS_MAX}")


def check_words(file: SourceFile) -> Iterator[Violation]:
    for line, text in enumerate(file.lines, 1):
        for pattern in _FOREIGN_WORDS:
            if match := pattern.search(text):
                yield Violation("foreign-words", file.path, line,
                                f"'{match[0]}' is not of this project")


def check(tree: SourceTree) -> Iterator[Violation]:
    yield from check_events(tree)
    for file in tree.files:
        yield from check_words(file)
    for file in tree.ending(".h", ".cc", ".proto", ".py"):
        if file.suffix != ".cc" or not file.is_test:
            yield from check_top(file)
    for file in tree.cpp():
        yield from check_calls(file)
    for file in tree.ending(".h", ".cc", ".cu", ".proto"):
        yield from check_comment_columns(file)
    for file in tree.ending(".h", ".cc", ".cu", ".py"):
        yield from check_names(file)
