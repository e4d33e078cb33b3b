"""Figures of the source tree, as a table: /usr/bin/python3 -m tools.tidy.figures [REV]

Sizes, prose and assertions of the product's C++ (no tests), of the working tree or of a revision.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tools.tidy import size_rules
from tools.tidy.source_tree import SourceFile, SourceTree, read_tree

_CHECK = re.compile(r"\bDWS_D?CHECK(?:_\w+)?\(")
# Where versions, counts or bytes move.
ASSERTED = ("common/delta", "common/memory", "common/ledger", "common/sync_state", "sender_daemon", "receiver_daemon")
PRODUCT = ("clients", "common", "proto", "receiver_daemon", "sender_daemon", "tools")
_COUNTED = (".h", ".cc", ".cu", ".py", ".proto", ".sh", ".bzl")


def _share(numbers: list[int], share: float) -> int:
    return sorted(numbers)[min(len(numbers) - 1, int(len(numbers) * share))] if numbers else 0


def _prose(files: list[SourceFile]) -> float:
    """Lines that are a comment, of all that are not empty."""
    lines = [line.strip() for file in files for line in file.lines if line.strip()]
    return sum(line.startswith("//") for line in lines) / max(len(lines), 1)


def _documented(headers: list[SourceFile]) -> float:
    """Classes of namespaces that have a comment in front of them, of all."""
    found = documented = 0
    for file in headers:
        lines = file.lines
        for match in size_rules.CLASS.finditer(file.text):
            at = file.text.count("\n", 0, match.start())
            while at > 0 and lines[at - 1].startswith("template"):
                at -= 1
            found += 1
            documented += at > 0 and lines[at - 1].startswith("//")
    return documented / max(found, 1)


def _checks(files: list[SourceFile], folder: str) -> float:
    """Assertions in 100 lines of the .cc below a folder."""
    chosen = [file for file in files if file.path.startswith(folder + "/") and file.suffix == ".cc"]
    lines = sum(len(file.lines) for file in chosen)
    return 100 * sum(len(_CHECK.findall(file.code)) for file in chosen) / max(lines, 1)


def _methods_max(headers: list[SourceFile]) -> tuple[int, str]:
    return max(((count, f"{name} in {file.path}") for file in headers
                for _, name, count in size_rules.class_methods(file.code)), default=(0, ""))


def rows(tree: SourceTree) -> list[tuple[str, str]]:
    cpp = [file for file in tree.cpp() if not file.is_test]
    headers = [file for file in cpp if file.suffix == ".h"]
    sources = [file for file in cpp if file.suffix == ".cc"]
    lines = Counter()
    for file in tree.ending(*_COUNTED):
        lines[file.path.partition("/")[0]] += len(file.lines)
    sizes = {name: [len(file.lines) for file in files] for name, files in (("h", headers), ("cc", sources))}
    silent = [file for file in sources if not any(line.strip().startswith("//") for line in file.lines)]
    methods, longest = _methods_max(headers)
    return [
        ("lines of product", str(sum(lines[folder] for folder in PRODUCT))),
        *((f"  {folder}", str(lines[folder])) for folder in PRODUCT),
        ("lines of tests", str(lines["tests"])),
        ("header lines, median / p95", f"{_share(sizes['h'], 0.5)} / {_share(sizes['h'], 0.95)}"),
        (".cc lines, median / p95", f"{_share(sizes['cc'], 0.5)} / {_share(sizes['cc'], 0.95)}"),
        ("prose in headers / .cc", f"{_prose(headers):.2f} / {_prose(sources):.2f}"),
        (".cc without a comment", f"{len(silent)} of {len(sources)}"),
        ("classes documented", f"{100 * _documented(headers):.0f} %"),
        *((f"assertions a 100 lines, {folder}", f"{_checks(cpp, folder):.2f}") for folder in ASSERTED),
        ("most methods in a class", f"{methods}: {longest}"),
    ]


def _read_revision(revision: str) -> SourceTree:
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        return read_tree(Path(folder))


def main() -> int:
    tree = _read_revision(sys.argv[1]) if len(sys.argv) > 1 else read_tree(Path.cwd())
    for name, value in rows(tree):
        print(f"{name:45} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
