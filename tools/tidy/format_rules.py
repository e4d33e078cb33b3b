"""clang-format, as .clang-format at the top says."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Iterator

from tools.tidy.source_tree import SourceTree, Violation

_COMPLAINT = re.compile(r"^(?P<path>[^:\n]+):(?P<line>\d+):\d+: error: code should be clang-formatted",
                        re.M)


def available() -> bool:
    return shutil.which("clang-format") is not None


def check(tree: SourceTree) -> Iterator[Violation]:
    """One violation a file: the first place that differs."""
    paths = [file.path for file in tree.cpp()]
    if not paths:
        return
    result = subprocess.run(["clang-format", "--dry-run", "-Werror", *paths], cwd=tree.root,
                            capture_output=True, text=True, check=False)
    seen: set[str] = set()
    for match in _COMPLAINT.finditer(result.stderr):
        if match["path"] not in seen:
            seen.add(match["path"])
            yield Violation("format", match["path"], int(match["line"]),
                            f"run: clang-format -i {match['path']}")
    if result.returncode != 0 and not seen:
        yield Violation("format", ".clang-format", 1, f"clang-format failed: {result.stderr.strip()}")
