"""tools/declare_check.sh without transformers: what it says, and what it refuses."""

from __future__ import annotations

import unittest

from tests.tools import optional_python_case


class DeclareCheckTest(optional_python_case.OptionalPythonCase):
    SCRIPT = "tools/declare_check.sh"
    VARIABLE = "DWS_ENGINE_PYTHON"
    WHAT = "transformers 5 or newer"
    CAUSE = "PackageNotFoundError"

    def test_an_unknown_argument_is_refused(self) -> None:
        ended = self.run_it("--pyton=x")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("--pyton=x: unknown argument; see --help", ended.stderr)


if __name__ == "__main__":
    unittest.main()
