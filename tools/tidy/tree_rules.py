"""The shape of the tree: README's folder table, who may see what, tests that would never run."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Iterator

from tools.tidy.source_tree import SourceTree, Violation

# Below these every folder has a line of its own; other folders are described by their parent's.
_DETAILED = ("clients", "common", "tools")
_TABLE_ROW = re.compile(r"^\| *`([^`]+?)/?` *\|", re.M)


def folders_to_describe(tree: SourceTree) -> set[str]:
    top = {folder for folder in tree.folders if "/" not in folder}
    wanted = set(top)
    for folder in tree.folders:
        parent, _, name = folder.rpartition("/")
        if parent in _DETAILED:
            wanted.add(folder)
        elif parent == "tests" and name not in top:  # tests mirrors the tree, these are more
            wanted.add(folder)
    return wanted


def check_readme(tree: SourceTree) -> Iterator[Violation]:
    readme = tree.find("README.md")
    if readme is None:
        yield Violation("readme", "README.md", 1, "is missing")
        return
    described = set(_TABLE_ROW.findall(readme.text))
    wanted = folders_to_describe(tree)
    for folder in sorted(wanted - described):
        yield Violation("readme", "README.md", 1, f"the folder table has no line for `{folder}`")
    for folder in sorted(described - set(tree.folders)):
        yield Violation("readme", "README.md", 1, f"`{folder}` is in the folder table and does not exist")


def check_visibility(tree: SourceTree, public: frozenset[str]) -> Iterator[Violation]:
    """Targets are private, or visible to those named; what all may use is listed."""
    for file in tree.ending(".bazel"):
        package = str(PurePosixPath(file.path).parent)
        for line, text in enumerate(file.lines, 1):
            if "//visibility:" + "public" in text and package not in public:
                yield Violation("visibility", file.path, line,
                                "public: name who uses it, or list the package in exceptions.py")
    for package in sorted(public):
        build = tree.find(f"{package}/BUILD.bazel")
        if build is None or "//visibility:" + "public" not in build.text:
            yield Violation("stale-exception", package, 1,
                            "is not public any more: remove it from exceptions.py")


def check_tests_run(tree: SourceTree) -> Iterator[Violation]:
    """A test file that no target names is never run."""
    for file in tree.files:
        path = PurePosixPath(file.path)
        if not path.stem.endswith("_test") or path.suffix not in (".cc", ".py"):
            continue
        build = tree.find(f"{path.parent}/BUILD.bazel")
        if build is None or (f'"{path.stem}"' not in build.text and f'"{path.name}"' not in build.text):
            yield Violation("tests-run", file.path, 1, f"no target in {path.parent}/BUILD.bazel names it")


def check_documents(tree: SourceTree) -> Iterator[Violation]:
    """A comment that sends the reader to a document sends him to one that is there."""
    names = {PurePosixPath(file.path).name for file in tree.ending(".md")}
    for file in tree.files:
        if file.path.startswith("tools/tidy/"):
            continue
        for line, text in enumerate(file.lines, 1):
            for name in re.findall(r"[\w-]+\.md\b", text):
                if name not in names:
                    yield Violation("documents", file.path, line, f"there is no {name}")


def check(tree: SourceTree, public: frozenset[str]) -> Iterator[Violation]:
    yield from check_readme(tree)
    yield from check_visibility(tree, public)
    yield from check_tests_run(tree)
    yield from check_documents(tree)
