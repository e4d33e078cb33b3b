"""tools/quantise_check.sh without the libraries: what it says, and what it refuses."""

from __future__ import annotations

import unittest

from tests.tools import optional_python_case


class QuantiseCheckTest(optional_python_case.OptionalPythonCase):
    SCRIPT = "tools/quantise_check.sh"
    VARIABLE = "DWS_QUANTISE_PYTHON"
    WHAT = "torch with float8_e4m3fn"
    CAUSE = "(AttributeError|ModuleNotFoundError)"

    def test_an_unknown_argument_is_refused(self) -> None:
        ended = self.run_it("--verbos")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("--verbos: unknown argument; see --help", ended.stderr)


if __name__ == "__main__":
    unittest.main()
