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

    def test_without_transformers_it_skips_and_says_so(self) -> None:
        for arguments, why in (
            ([], "no Python with transformers 5 or newer is named"),
            (["--python", "no/such/python"], "does not exist"),
            (["--python=/usr/bin/python3"], "/usr/bin/python3 has no transformers 5"),
        ):
            ended = self.run_it(*arguments)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertRegex(ended.stdout, f"^skipped: .*{why}")

    def test_an_unknown_argument_is_refused(self) -> None:
        ended = self.run_it("--pyton=x")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("--pyton=x: unknown argument; see --help", ended.stderr)


if __name__ == "__main__":
    unittest.main()
