"""How long files and functions may be."""

from __future__ import annotations

import ast
import re
from typing import Iterator

from tools.tidy.source_tree import SourceFile, SourceTree, Violation

FILE_LINES_MAX = 500
# Above these a file needs an entry in exceptions.py, which says how long it may be.
HEADER_LINES = 200
SOURCE_LINES = 500
FUNCTION_LINES_MAX = 70

_SIZED = (".h", ".cc", ".cu", ".py", ".sh", ".bzl", ".proto")
_TYPE_HEAD = re.compile(
    r"^(?:template\s*<.*?>\s*)*(?:typedef\s+|static\s+|inline\s+|constexpr\s+)*"
    r"(?:class|struct|union|enum)\b", re.S)
_ACCESS = re.compile(r"\b(?:public|private|protected)\Z")
_SCOPE_HEAD = re.compile(r'^(?:inline\s+)?namespace\b|^extern\s*"')


def check_file_size(file: SourceFile, listed: dict[str, int]) -> Iterator[Violation]:
    count = len(file.lines)
    if count > FILE_LINES_MAX:
        yield Violation("file-size", file.path, count,
                        f"{count} lines, at most {FILE_LINES_MAX}: split it")
        return
    if file.is_test:
        return
    usual = HEADER_LINES if file.suffix == ".h" else SOURCE_LINES
    if count > max(usual, listed.get(file.path, 0)):
        yield Violation("file-size", file.path, count,
                        f"{count} lines, {listed.get(file.path, usual)} are allowed: split it")


def _strip_preprocessor(code: str) -> str:
    """Directives blanked, with the lines they continue on."""
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: re.sub(r"[^\n]", " ", m[0]), code, flags=re.M)


def cpp_functions(code: str) -> Iterator[tuple[int, int, str]]:
    """(first line, number of lines, head) of the functions in blanked C++, lambdas not counted.

    A brace opens a function when what stands before it has a parenthesis and it lies in namespaces
    and types only: good enough for code in one format.
    """
    code = _strip_preprocessor(code)
    kinds: list[str] = []  # of the open braces: scope, function, other
    starts: list[tuple[int, str]] = []
    head_begin = 0
    for at, char in enumerate(code):
        if char == "{":
            raw = code[head_begin:at]
            head = raw.strip()
            first = head_begin + len(raw) - len(raw.lstrip())
            if any(kind != "scope" for kind in kinds):
                kinds.append("other")
            elif _SCOPE_HEAD.match(head) or _TYPE_HEAD.match(head):
                kinds.append("scope")
            else:
                kinds.append("function" if "(" in head else "other")
            starts.append((code.count("\n", 0, first) + 1, head))
            head_begin = at + 1
        elif char == "}":
            if not kinds:
                return  # unbalanced because of macros; the compiler will tell
            kind = kinds.pop()
            line, head = starts.pop()
            if kind == "function":
                yield line, code.count("\n", 0, at) + 2 - line, head
            head_begin = at + 1
        elif char == ";" or (char == ":" and _ACCESS.search(code, head_begin, at)):
            head_begin = at + 1


def python_functions(text: str) -> Iterator[tuple[int, int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def check_functions(file: SourceFile) -> Iterator[Violation]:
    functions = cpp_functions(file.code) if file.is_cpp else python_functions(file.text)
    for line, count, head in functions:
        if count > FUNCTION_LINES_MAX:
            name = re.split(r"\(", head)[0].split()[-1:] or [head]
            yield Violation("function-size", file.path, line,
                            f"{name[0]} has {count} lines, at most {FUNCTION_LINES_MAX}")


def check(tree: SourceTree, listed: dict[str, int]) -> Iterator[Violation]:
    for file in tree.ending(*_SIZED):
        yield from check_file_size(file, listed)
    for file in tree.ending(".h", ".cc", ".cu", ".py"):
        yield from check_functions(file)
    # The list only shrinks.
    for path, allowed in listed.items():
        found = tree.find(path)
        usual = HEADER_LINES if path.endswith(".h") else SOURCE_LINES
        if found is None or len(found.lines) <= usual:
            yield Violation("stale-exception", path, 1,
                            f"no longer needs {allowed} lines: remove it from exceptions.py")
