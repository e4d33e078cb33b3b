"""What the checks that need a Python with packages which Debian does not have say without one.

Import the module, not the class: unittest runs every class that a test's module has.
"""

from __future__ import annotations

import os
import subprocess
import unittest


class OptionalPythonCase(unittest.TestCase):
    """Attributes:
    SCRIPT: the check.
    VARIABLE: the environment variable that names the Python, too.
    WHAT: a pattern, in the messages, of the packages that the Python must have.
    CAUSE: a pattern of what Debian's Python says that lacks it.
    OPTIONS: passed with it.
    """

    SCRIPT = ""
    VARIABLE = ""
    WHAT = ""
    CAUSE = ""
    OPTIONS: tuple[str, ...] = ()

    def run_it(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {k: v for k, v in os.environ.items() if k != self.VARIABLE}
        command = [self.SCRIPT, *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    def test_without_a_python_it_skips_and_says_so(self) -> None:
        ended = self.run_it()
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, f"^skipped: no Python with {self.WHAT} is named")

    def test_a_python_that_is_named_and_does_not_do_is_an_error_with_its_cause(self) -> None:
        for arguments, why in (
            (["--python", "no/such/python"], "no/such/python .*: there is no such Python"),
            (
                ["--python=/usr/bin/python3", *self.OPTIONS],
                f"(?s){self.CAUSE}.*/usr/bin/python3 .* has no {self.WHAT}",
            ),
        ):
            ended = self.run_it(*arguments)
            self.assertEqual((ended.returncode, ended.stdout), (1, ""))
            self.assertRegex(ended.stderr, why)
