"""How Bazel's status file gives the commit that --version and the status report."""

from __future__ import annotations

import re
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = "common/service/build_commit.sh"


def commit_of(status: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stable-status.txt")
        path.write_text(status)
        header = subprocess.run([SCRIPT, str(path)], check=True, capture_output=True, text=True).stdout
    found = re.findall(r'kBuildCommit = "(.*)";', header)
    assert len(found) == 1, header
    return str(found[0])


class BuildCommitTest(unittest.TestCase):
    def test_a_label_is_the_commit(self) -> None:
        commit = "0123456789abcdef0123456789abcdef01234567"
        self.assertEqual(commit_of(f"BUILD_EMBED_LABEL {commit}\nBUILD_HOST here\n"), commit)
        self.assertEqual(commit_of(f"BUILD_EMBED_LABEL {commit}-modified\n"), f"{commit}-modified")

    def test_without_a_label_the_commit_is_unknown(self) -> None:
        self.assertEqual(commit_of("BUILD_EMBED_LABEL \nBUILD_USER me\n"), "unknown")
        self.assertEqual(commit_of(""), "unknown")

    def test_a_label_that_is_not_a_commit_gives_an_unknown_commit(self) -> None:
        self.assertEqual(commit_of('BUILD_EMBED_LABEL "; system("true\n'), "unknown")


if __name__ == "__main__":
    unittest.main()
