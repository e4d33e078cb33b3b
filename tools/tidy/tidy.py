"""Checks the source tree against the style's rules: /usr/bin/python3 -m tools.tidy.tidy

Run from the top of the tree; prints a line a violation. tools/tidy:tidy_test does the same in
`bazel test`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.tidy import (
    commit_rules, exceptions, format_rules, include_rules, prose_rules, room_rules, size_rules, text_rules,
    tree_rules)
from tools.tidy.source_tree import SourceTree, Violation, read_tree


def find_violations(tree: SourceTree) -> list[Violation]:
    """The violations of all rules but the format's."""
    return [
        *include_rules.check(tree),
        *size_rules.check(tree, exceptions.LONG_FILES, exceptions.LARGE_CLASSES),
        *prose_rules.check(tree),
        *text_rules.check(tree),
        *tree_rules.check(tree, exceptions.PUBLIC_PACKAGES),
        *room_rules.check(tree, exceptions.LARGE_FOLDERS, exceptions.SPLIT_CLASSES, exceptions.FOREIGN_FILES),
    ]


def main() -> int:
    tree = read_tree(Path.cwd())
    violations = find_violations(tree)
    if format_rules.available():
        violations += format_rules.check(tree)
    else:
        print("clang-format is not installed: the format is not checked")
    commits = commit_rules.check(tree.root)
    if commits is None:
        print("no history from git: subjects of commits are not checked")
    violations += commits or []
    for violation in violations:
        print(violation)
    print(f"{len(tree.files)} files, {len(violations)} violations")
    return 1 if violations or not tree.files else 0


if __name__ == "__main__":
    sys.exit(main())
