"""Comments in plain English: subject, verb, object. Finds the beginnings of fragments, and a few words
for which there is a usual one."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import Iterator

from tools.tidy.source_tree import CPP_TOKEN, SourceFile, SourceTree, Violation

# Folders and files whose comments have not been rewritten yet. An entry without a violation is a violation.
NOT_YET: tuple[str, ...] = ()

# How a sentence may not begin, and what to write instead.
_BEGINNINGS = tuple((re.compile(pattern), advice) for pattern, advice in (
    (r"Of (?!course\b)", "name the thing itself: not 'Of the slice.' but 'The digest of the slice.'"),
    (r"Whether\b", "'Returns whether ...' for a function, 'True if ...' for a value"),
    (r"As [^,]*$", "'Like ...', 'Errors as ...' or 'See ...'"),
    (r"Likewise\b", "say what it does"),
    (r"The same(?: (?:of|for|in|with|without|as|at|after|again|to|but|through)\b|[.,:;]|$)",
     "'Like ..., but ...'"),
    (r"Who(?:m|se|ever)?\b(?!.*\?)", "name the one who does it"),
))
# Words that have a usual one.
_WORDS = tuple((re.compile(pattern), advice) for pattern, advice in (
    (r"\bany more\b(?! than)", "'no longer'"),
    (r"\bbe had\b", "'is available'"),
    (r"\b[Ww]hoever\b", "name the one who does it"),
    (r"\bcut otherwise\b", "'cut differently'"),
))
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_BULLET = re.compile(r"(?:[*-]|\d+[.)])\s+")


def _joined(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """(line, paragraph) of a comment of several lines."""
    first, words = 0, ""
    for line, text in lines:
        if not text or _BULLET.match(text):
            if words:
                yield first, words
            first, words = line, _BULLET.sub("", text, count=1)
        else:
            first, words = (first, f"{words} {text}") if words else (line, text)
    if words:
        yield first, words


def _cpp_comments(text: str) -> Iterator[tuple[int, str]]:
    block: list[tuple[int, str]] = []
    for match in CPP_TOKEN.finditer(text):
        if not match[0].startswith("//"):
            continue
        line = text.count("\n", 0, match.start()) + 1
        alone = not text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip()
        if block and (not alone or line != block[-1][0] + 1):
            yield from _joined(block)
            block = []
        block.append((line, match[0].lstrip("/").strip()))
        if not alone:
            yield from _joined(block)
            block = []
    yield from _joined(block)


def _python_comments(text: str) -> Iterator[tuple[int, str]]:
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, alone = token.start[0], not token.line[:token.start[1]].strip()
        if block and (not alone or line != block[-1][0] + 1):
            yield from _joined(block)
            block = []
        block.append((line, token.string.lstrip("#").strip()))
    yield from _joined(block)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                first = node.body[0].lineno
                yield from _joined([(first + i, line.strip())
                                    for i, line in enumerate(docstring.splitlines())])


def _line_comments(text: str) -> Iterator[tuple[int, str]]:
    block: list[tuple[int, str]] = []
    for line, raw in enumerate(text.splitlines(), 1):
        if raw.lstrip().startswith("#") and not raw.startswith("#!"):
            block.append((line, raw.lstrip().lstrip("#").strip()))
        else:
            yield from _joined(block)
            block = []
    yield from _joined(block)


def comments(file: SourceFile) -> Iterator[tuple[int, str]]:
    """(line, paragraph) of each comment and docstring."""
    if file.is_cpp or file.suffix == ".proto":
        return _cpp_comments(file.text)
    if file.suffix == ".py":
        return _python_comments(file.text)
    return _line_comments(file.text) if file.suffix in (".sh", ".bazel", ".bzl") else iter(())


def check_file(file: SourceFile) -> Iterator[Violation]:
    for line, paragraph in comments(file):
        for sentence in _SENTENCE_END.split(paragraph):
            for pattern, advice in _BEGINNINGS:
                if pattern.match(sentence):
                    yield Violation("prose", file.path, line, f"'{sentence[:40]}': {advice}")
            for pattern, advice in _WORDS:
                if match := pattern.search(sentence):
                    yield Violation("prose", file.path, line, f"'{match[0]}': {advice}")


def check(tree: SourceTree, not_yet: tuple[str, ...] = NOT_YET) -> Iterator[Violation]:
    needed: set[str] = set()
    for file in tree.files:
        for violation in check_file(file):
            listed = next((prefix for prefix in not_yet if file.path.startswith(prefix)), None)
            if listed is None:
                yield violation
            else:
                needed.add(listed)
    for prefix in not_yet:
        if prefix not in needed:
            yield Violation("stale-exception", prefix, 1, "is done: remove it from prose_rules.NOT_YET")
