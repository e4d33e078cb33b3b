"""The rooms of the tree: a folder is a target, how many files it has, one class one .cc, comments that name files, and which
sources are compiled again with failpoints."""

from __future__ import annotations

import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath
from typing import Iterator

from tools.tidy.source_tree import SourceTree, Violation

FOLDER_FILES_MAX = 40
# Each folder below that has C++ is a target of its own, so that what it includes is what it depends on.
_LAYERED = ("common/", "receiver_daemon/", "sender_daemon/")
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
_DEFINITION = re.compile(r"^(?:\w[\w:<>,*&\[\]() ]*? )?[*&]?(\w+)::~?(\w+)\(", re.M)
_FAILPOINT = re.compile(r"\bDWS_(?:FAIL|KILL)POINT\(")
_FAILPOINT_LIST = re.compile(r"^    failpoint_srcs = \[([^\]]*)\]", re.M)
_FILE_NAME = re.compile(r"(?<![\w.*<-])[\w/-]*\w\.(?:h|cc|cu|py|proto|sh|bzl)\b(?!\.)")


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


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


def check_targets(tree: SourceTree) -> Iterator[Violation]:
    """A folder of C++ is a target, and no target has the files of another folder."""
    for folder in sorted({_folder(file.path) for file in tree.cpp() if file.path.startswith(_LAYERED)}):
        build = tree.find(f"{folder}/BUILD.bazel")
        if build is None:
            yield Violation("folder-target", folder, 1, "has C++ and no BUILD.bazel: make it a dws_cc_folder")
        elif match := re.search(r'"(?:[\w.*-]+/)+[\w.*-]+\.(?:h|cc)"', build.text):
            yield Violation("folder-target", build.path, 1, f"{match[0]} is in another folder, which is a target of its own")


def check_cycles(tree: SourceTree) -> Iterator[Violation]:
    """Includes between folders of tools form no cycle. Elsewhere the compiler says so; a program of tools has several folders."""
    graph: dict[str, set[str]] = defaultdict(set)
    for file in tree.cpp():
        if file.path.startswith("tools/"):
            graph[_folder(file.path)] |= {_folder(name) for name in _INCLUDE.findall(file.text)} - {_folder(file.path)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        yield Violation("cycles", cycle.args[1][0], 1, "is included by ".join(f"{folder} " for folder in cycle.args[1]))


def check_failpoints(tree: SourceTree) -> Iterator[Violation]:
    """The failpoint_srcs of a folder are exactly its .cc that reach a failpoint, and each daemon compiles those of all its
    folders again."""
    for build in tree.ending(".bazel"):
        folder = _folder(build.path)
        if not build.path.startswith(_LAYERED):
            continue
        listed = {f"{folder}/{name}" for one in _FAILPOINT_LIST.findall(build.text) for name in re.findall(r'"([^"]+)"', one)}
        reached = {file.path for file in tree.ending(".cc")
                   if _folder(file.path) == folder and _FAILPOINT.search(file.code)}
        for path in sorted(reached ^ listed):
            what = "has a failpoint, and is not in" if path in reached else "has no failpoint, and is in"
            yield Violation("failpoint-sources", path, 1, f"{what} the failpoint_srcs of {build.path}")
        daemon = tree.find(folder.partition("/")[0] + "/BUILD.bazel")
        if reached and daemon is not None and f'"//{folder}:failpoint_srcs"' not in daemon.text:
            yield Violation("failpoint-sources", daemon.path, 1, f"no program compiles //{folder}:failpoint_srcs again")


def check(tree: SourceTree, folder_sizes: dict[str, int], split_classes: frozenset[str],
          foreign_files: frozenset[str]) -> Iterator[Violation]:
    yield from check_targets(tree)
    yield from check_cycles(tree)
    yield from check_folder_sizes(tree, folder_sizes)
    yield from check_classes(tree, split_classes)
    yield from check_named_files(tree, foreign_files)
    yield from check_failpoints(tree)
