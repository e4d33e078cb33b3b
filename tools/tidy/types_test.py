"""The Python that others import or run is typed: mypy --strict on the client package and the tools."""

import os
import shutil
import subprocess
import unittest
from pathlib import Path

CHECKED = ("clients/examples", "clients/python/dws", "tools/count_tests.py", "tools/docs", "tools/tidy/tidy.py")


@unittest.skipUnless(shutil.which("mypy"), "mypy is not installed")
class TypesTest(unittest.TestCase):
    def test_mypy_is_content(self) -> None:
        root = Path(os.path.realpath("WORKSPACE")).parent
        # Generated messages, torch and the like carry no types.
        result = subprocess.run(
            ["mypy", "--strict", "--ignore-missing-imports", "--python-executable=/usr/bin/python3",
             "--cache-dir=/dev/null", *CHECKED],
            cwd=root, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, "\n" + result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
