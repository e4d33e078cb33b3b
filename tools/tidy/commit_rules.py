"""Subjects of commits. Only the command checks them: tests see no history."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Iterator

from tools.tidy.source_tree import Violation

SUBJECT_CHARACTERS_MAX = 72
_SUBJECT = re.compile(r"[\w./*+{}, -]+: \S")
# The rule applies to commits after this one.
FIRST = "be0ad147d607c8d1865441ec2035c6335f04d36e"


def check_subject(commit: str, subject: str) -> Iterator[Violation]:
    if len(subject) > SUBJECT_CHARACTERS_MAX:
        yield Violation("commit-subject", commit, 1, f"{len(subject)} characters, at most {SUBJECT_CHARACTERS_MAX}: {subject}")
    if not _SUBJECT.match(subject):
        yield Violation("commit-subject", commit, 1, f"expected `area: what changes`: {subject}")


def check(root: Path) -> list[Violation] | None:
    """None: there is no such history here."""
    done = subprocess.run(["git", "-C", str(root), "log", "--no-merges", "--format=%h %s", f"{FIRST}..HEAD"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    found: list[Violation] = []
    for line in done.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        found += check_subject(commit, subject)
    return found
