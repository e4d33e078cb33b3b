"""The excerpt unpacks to the steps it was made from, and `make` makes it again from them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

EXCERPT = Path("tests/data/rl_trace_excerpt")


class Excerpt(unittest.TestCase):
    def run_script(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(EXCERPT / "excerpt.py"), *arguments],
                              check=False, capture_output=True, text=True)

    def test_an_excerpt_made_from_the_unpacked_steps_is_the_same(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            steps, again = Path(folder) / "steps", Path(folder) / "again"
            again.mkdir()
            unpacked = self.run_script("unpack", str(steps))
            self.assertEqual(unpacked.returncode, 0, unpacked.stderr)
            self.assertEqual(len(list(steps.glob("*.safetensors"))), 4)
            made = self.run_script("make", str(steps), str(again))
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertEqual(json.loads((again / "layout.json").read_text()),
                             json.loads((EXCERPT / "layout.json").read_text()))

    def test_without_arguments_it_prints_its_usage(self) -> None:
        called = self.run_script()
        self.assertEqual(called.returncode, 2)
        self.assertIn("excerpt.py unpack DIR", called.stderr)


if __name__ == "__main__":
    unittest.main()
