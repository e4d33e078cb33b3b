"""How long files and functions may be, and how many methods a class may have."""

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
CLASS_METHODS_MAX = 25

_SIZED = (".h", ".cc", ".cu", ".py", ".sh", ".bzl", ".proto")
_TYPE_HEAD = re.compile(
    r"^(?:template\s*<.*?>\s*)*(?:typedef\s+|static\s+|inline\s+|constexpr\s+)*"
    r"(?:class|struct|union|enum)\b", re.S)
_ACCESS = re.compile(r"\b(?:public|private|protected)\Z")
CLASS = re.compile(r"^(?:class|struct) (\w+)(?: final)?(?: : [^{;]*)?\s*\{", re.M)
# With what _NO_METHOD names: members that are initialised, parts of types.
_METHOD = re.compile(r"(?<![\w:>.])(~?\w+)\([^()]*(?:\([^()]*\)[^()]*)*\)[^;{}()]*(?:\([^()]*\)[^;{}()]*)*[;{}]")
_NO_METHOD = re.compile(r"\w+_|void|bool|decltype|GUARDED_BY")
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


def class_methods(code: str) -> Iterator[tuple[int, str, int]]:
    """(line, name, number of methods) of the classes of namespaces in blanked C++: what is declared at the depth of a
    class's own body."""
    for match in CLASS.finditer(code):
        depth, end = 1, match.end()
        body = []
        while depth and end < len(code):
            char = code[end]
            depth += (char == "{") - (char == "}")
            if depth == 1:
                body.append(char)
            end += 1
        names = _METHOD.findall("".join(body))
        yield (code.count("\n", 0, match.start()) + 1, match[1],
               sum(_NO_METHOD.fullmatch(name) is None for name in names))


def check_classes(tree: SourceTree, listed: dict[str, int]) -> Iterator[Violation]:
    needed = set()
    for file in tree.cpp():
        if file.is_test:
            continue
        for line, name, count in class_methods(file.code):
            if count > CLASS_METHODS_MAX:
                needed.add(name)
            if count > max(CLASS_METHODS_MAX, listed.get(name, 0)):
                yield Violation("class-size", file.path, line,
                                f"{name} has {count} methods, {listed.get(name, CLASS_METHODS_MAX)} are allowed: "
                                "it is more than one class")
    for name in sorted(set(listed) - needed):
        yield Violation("stale-exception", name, 1, "has few methods: remove it from exceptions.py")


def check(tree: SourceTree, listed: dict[str, int], large_classes: dict[str, int]) -> Iterator[Violation]:
    yield from check_classes(tree, large_classes)
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
