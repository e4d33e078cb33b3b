"""The shape of the tree: what each folder says of itself, who may see what, tests that would never run."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Iterator

from tools.tidy.source_tree import SourceFile, SourceTree, Violation

# A line of a BUILD file's head that describes folders below it: "#   kernels/, golden/   what they are".
_DESCRIBED = re.compile(r"^#   ((?:[\w.-]+/(?:, )?)+)", re.M)


def _described_below(build: SourceFile) -> set[str]:
    """The folders that the head of a BUILD file describes, by path."""
    head = re.match(r"(?:#[^\n]*\n)*", build.text)
    package = str(PurePosixPath(build.path).parent)
    prefix = "" if package == "." else package + "/"
    return {prefix + name.rstrip("/") for line in _DESCRIBED.findall(head[0] if head else "")
            for name in line.split(", ")}


def check_folders(tree: SourceTree) -> Iterator[Violation]:
    """Each folder says what is in it: its README.md, the head of its BUILD.bazel, or a line in that of a folder above.
    Folders of tests that mirror a folder need none."""
    described = {str(PurePosixPath(file.path).parent) for file in tree.files
                 if PurePosixPath(file.path).name == "README.md"}
    for file in tree.files:
        if PurePosixPath(file.path).name != "BUILD.bazel":
            continue
        if file.text.startswith("#"):
            described.add(str(PurePosixPath(file.path).parent))
        for folder in _described_below(file):
            described.add(folder)
            if folder not in tree.folders:
                yield Violation("folders", file.path, 1, f"`{folder}` is described and does not exist")
    own = {str(PurePosixPath(file.path).parent) for file in tree.files}
    for folder in sorted(own - {"."}):
        above = {folder, *map(str, PurePosixPath(folder).parents)} - {"."}
        build = next((name for name in [folder, *map(str, PurePosixPath(folder).parents)]
                      if tree.find(f"{name}/BUILD.bazel") is not None), "")
        # A folder without targets of its own may be described by any folder between it and its package.
        near = {name for name in above if name == folder or name.startswith(f"{build}/")}
        mirrors = folder.startswith("tests/") and folder.removeprefix("tests/") in tree.folders
        if not mirrors and not near & described:
            yield Violation("folders", folder, 1,
                            "says nowhere what is in it: begin its BUILD.bazel, or a line of the one above, with that")


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
                            "is no longer public: remove it from exceptions.py")


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
    """If a comment sends the reader to a document, the document must exist."""
    names = {PurePosixPath(file.path).name for file in tree.ending(".md")}
    for file in tree.files:
        if file.path.startswith("tools/tidy/"):
            continue
        for line, text in enumerate(file.lines, 1):
            for name in re.findall(r"[\w-]+\.md\b", text):
                if name not in names:
                    yield Violation("documents", file.path, line, f"there is no {name}")


def check_quoted_tests(tree: SourceTree) -> Iterator[Violation]:
    """If the table of docs/protocol.md that says which test shows a rule quotes a name, a test must
    have it."""
    page = tree.find("docs/protocol.md")
    if page is None:
        return
    names: set[str] = set()
    for file in tree.files:
        if not file.is_test:
            continue
        if file.suffix == ".cc":
            names.update(re.findall(r'TEST_CASE\(\s*"([^"]+)"', re.sub(r'"\s*\n\s*"', "", file.text)))
        elif file.suffix == ".py":
            names.update(name.replace("_", " ") for name in re.findall(r"def test_(\w+)", file.text))
    in_table = False
    for line, text in enumerate(page.lines, 1):
        in_table = text.startswith("|") and (in_table or text == "| rule | test |")
        for name in re.findall(r'"([^"]+)"', text) if in_table else ():
            if name not in names:
                yield Violation("quoted-tests", page.path, line, f'no test is called "{name}"')


def check(tree: SourceTree, public: frozenset[str]) -> Iterator[Violation]:
    yield from check_folders(tree)
    yield from check_visibility(tree, public)
    yield from check_tests_run(tree)
    yield from check_documents(tree)
    yield from check_quoted_tests(tree)
