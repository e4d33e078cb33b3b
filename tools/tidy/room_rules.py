"""The rooms of the tree: which way includes go between folders, how many files a folder has, one class one .cc, comments
that name files, and which sources are compiled again with failpoints."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import PurePosixPath
from typing import Iterator

from tools.tidy.source_tree import SourceTree, Violation

FOLDER_FILES_MAX = 25
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
_DEFINITION = re.compile(r"^(?:\w[\w:<>,*&\[\]() ]*? )?[*&]?(\w+)::~?(\w+)\(", re.M)
_FAILPOINT = re.compile(r"\bDWS_(?:FAIL|KILL)POINT\(")
_FAILPOINT_LIST = re.compile(r"^\w+_FAILPOINT_SRCS = \[([^\]]*)\]", re.M)
_FILE_NAME = re.compile(r"(?<![\w.*<-])[\w/-]*\w\.(?:h|cc|cu|py|proto|sh|bzl)\b(?!\.)")


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def includes_between_folders(tree: SourceTree) -> dict[str, dict[str, str]]:
    """Returns for each product folder the folders that it includes, each with one file that does.
    """
    graph: dict[str, dict[str, str]] = defaultdict(dict)
    for file in tree.cpp():
        if file.is_test:
            continue
        for included in _INCLUDE.findall(file.text):
            other = _folder(included)
            if other != _folder(file.path) and not included.startswith(("proto/", "tests/")):
                graph[_folder(file.path)].setdefault(other, file.path)
    return graph


def check_cycles(tree: SourceTree) -> Iterator[Violation]:
    """Includes between folders form no cycle: one of two folders is below the other."""
    graph = includes_between_folders(tree)
    reached: dict[str, set[str]] = {}
    for folder in graph:
        found, ahead = set(), [folder]
        while ahead:
            for other in graph.get(ahead.pop(), {}):
                if other not in found:
                    found.add(other)
                    ahead.append(other)
        reached[folder] = found
    for folder, others in sorted(graph.items()):
        for other, file in sorted(others.items()):
            if folder in reached.get(other, set()):
                yield Violation("cycles", file, 1, f"{folder} includes {other}, which includes {folder} again")


def check_folder_sizes(tree: SourceTree, listed: dict[str, int]) -> Iterator[Violation]:
    counts: dict[str, int] = defaultdict(int)
    for file in tree.files:
        counts[_folder(file.path)] += 1
    for folder, count in sorted(counts.items()):
        allowed = max(FOLDER_FILES_MAX, listed.get(folder, 0))
        if count > allowed:
            yield Violation("folder-size", folder, 1, f"{count} files, {allowed} are allowed: split it into folders")
    for folder in listed:
        if counts[folder] <= FOLDER_FILES_MAX:
            yield Violation("stale-exception", folder, 1, "no longer needs an entry: remove it from exceptions.py")


def check_classes(tree: SourceTree, listed: frozenset[str]) -> Iterator[Violation]:
    """The methods of a class are defined in one .cc."""
    homes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file in tree.ending(".cc"):
        if file.is_test:
            continue
        for name in sorted({match[1] for match in _DEFINITION.finditer(file.code) if match[1][0].isupper()}):
            homes[_folder(file.path), name].append(file.path)
    split = {name: paths for (_, name), paths in homes.items() if len(paths) > 1}
    for name, paths in sorted(split.items()):
        if name not in listed:
            yield Violation("one-class-one-cc", paths[1], 1, f"{name} has methods in {', '.join(paths)}")
    for name in sorted(listed - set(split)):
        yield Violation("stale-exception", name, 1, "is in one .cc: remove it from exceptions.py")


def check_named_files(tree: SourceTree, foreign: frozenset[str]) -> Iterator[Violation]:
    """If a comment names a file, the file must exist."""
    names = {PurePosixPath(file.path).name for file in tree.files}
    for file in tree.files:
        if file.path.startswith("tools/tidy/"):
            continue
        mark = "//" if file.is_cpp or file.suffix == ".proto" else "#" if file.suffix in (".py", ".sh", ".bazel", ".bzl") else ""
        for line, text in enumerate(file.lines, 1):
            comment = text if file.suffix == ".md" else text.partition(mark)[2] if mark else ""
            if text.lstrip().startswith("#include"):
                continue
            for name in _FILE_NAME.findall(comment):
                base = PurePosixPath(name).name
                if base not in names and base not in foreign:
                    yield Violation("named-files", file.path, line, f"there is no {name}")


def check_failpoints(tree: SourceTree) -> Iterator[Violation]:
    """Targets with failpoints must compile again exactly those .cc files of a daemon that reach
    one."""
    for daemon in ("receiver_daemon/", "sender_daemon/"):
        build = tree.find(daemon + "BUILD.bazel")
        lists = _FAILPOINT_LIST.findall(build.text) if build is not None else []
        listed = {daemon + name for one in lists for name in re.findall(r'"([^"]+)"', one)}
        reached = {file.path for file in tree.ending(".cc")
                   if file.path.startswith(daemon) and _FAILPOINT.search(file.code)}
        for path in sorted(reached ^ listed):
            what = "has a failpoint, and is in no list" if path in reached else "has no failpoint, and is in a list"
            yield Violation("failpoint-sources", path, 1, f"{what} ..._FAILPOINT_SRCS of {daemon}BUILD.bazel")


def check(tree: SourceTree, folder_sizes: dict[str, int], split_classes: frozenset[str],
          foreign_files: frozenset[str]) -> Iterator[Violation]:
    yield from check_cycles(tree)
    yield from check_folder_sizes(tree, folder_sizes)
    yield from check_classes(tree, split_classes)
    yield from check_named_files(tree, foreign_files)
    yield from check_failpoints(tree)
