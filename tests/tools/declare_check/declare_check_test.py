"""tools/declare_check.sh without transformers: the skip message, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import unittest


class DeclareCheckTest(unittest.TestCase):
    def run_it(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {k: v for k, v in os.environ.items() if k != "DWS_ENGINE_PYTHON"}
        command = ["tools/declare_check.sh", *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    def test_without_a_python_it_skips_and_says_so(self) -> None:
        ended = self.run_it()
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, "^skipped: no Python with transformers 5 or newer is named")

    def test_a_python_that_is_named_and_does_not_do_is_an_error_with_its_cause(self) -> None:
        for arguments, why in (
            (["--python", "no/such/python"], "no/such/python .*: there is no such Python"),
            (
                ["--python=/usr/bin/python3"],
                "(?s)PackageNotFoundError.*/usr/bin/python3 .* has no transformers 5",
            ),
        ):
            ended = self.run_it(*arguments)
            self.assertEqual((ended.returncode, ended.stdout), (1, ""))
            self.assertRegex(ended.stderr, why)

    def test_an_unknown_argument_is_refused(self) -> None:
        ended = self.run_it("--pyton=x")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("--pyton=x: unknown argument; see --help", ended.stderr)


if __name__ == "__main__":
    unittest.main()
