"""Runs promtool for the tests that need it; they are skipped where tools/promtool.sh finds none."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import unittest
from typing import Optional


def find_promtool() -> Optional[str]:
    """The promtool that tools/promtool.sh finds; a test has no HOME."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    cached = os.path.join(home, ".cache", "dws", "promtool")
    found = shutil.which("promtool")
    return found or (cached if os.access(cached, os.X_OK) else None)


needs_promtool = unittest.skipUnless(
    find_promtool(), "SKIPPED: there is no promtool; run tools/promtool.sh --fetch"
)


def promtool(*arguments: str, stdin: str = "") -> str:
    """Runs promtool and returns its output.

    Raises:
      AssertionError: promtool found an error; the message has its output.
    """
    path = find_promtool()
    assert path is not None
    done = subprocess.run(
        [path, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=120
    )
    output = done.stdout + done.stderr
    if done.returncode != 0:
        raise AssertionError(f"promtool {' '.join(arguments)}: status {done.returncode}\n{output}")
    return output
