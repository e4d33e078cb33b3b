"""The table of docs/sizing.md: its figures are those of its formulas, and the defaults in these are the daemons'."""

from __future__ import annotations

import re
import subprocess
import unittest

from tools.docs.sizing import CONSTANTS, DOCUMENT, MODELS, computed, computed_document, evaluate, formula_of, rows, shown


class SizingTest(unittest.TestCase):
    def test_each_figure_is_that_of_its_formula(self) -> None:
        text = DOCUMENT.read_text("utf-8")
        self.assertGreater(len(rows(text)), 15)
        self.assertEqual(text, computed_document(text), "run: python3 -m tools.docs.sizing --write")

    def test_the_heading_names_the_models_in_their_order(self) -> None:
        self.assertIn(f"| figure | formula | unit | {' | '.join(MODELS)} |", DOCUMENT.read_text("utf-8"))

    def test_the_document_explains_each_name_in_the_formulas(self) -> None:
        text = DOCUMENT.read_text("utf-8")
        explained = set(re.findall(r"`(\w+)`", "".join(line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `"))))
        used = {name for row in rows(text) for name in re.findall(r"[A-Za-z_]\w*", formula_of(row))}
        self.assertEqual(used - explained - {"min", "max", "MiB", "GiB"}, set())

    def test_defaults_in_the_formulas_are_those_of_the_daemons(self) -> None:
        for program, option, name in (("sender_daemon/dws-sender", "--retain-bytes", "retain_bytes"),
                                      ("sender_daemon/dws-sender", "--retain-versions", "retain_versions"),
                                      ("receiver_daemon/dws-receiver", "--staging-bytes", "staging_bytes")):
            with self.subTest(option):
                done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60, check=True)
                default = re.search(rf"(?m)^  {option} [^=\n]*=(\d+)", done.stdout)
                assert default is not None, done.stdout
                self.assertEqual(float(default[1]), CONSTANTS[name])

    def test_a_wrong_figure_is_found(self) -> None:
        row = computed("| all weights | `P * e` | bytes |")
        self.assertEqual(row, "| all weights | `P * e` | bytes | 16 GB | 140 GB | 710 GB | 2 TB |")
        self.assertEqual(computed(row.replace("140", "141")), row)

    def test_units_and_digits(self) -> None:
        self.assertEqual([shown(value, "bytes") for value in (12, 1234, 5.678e6, 123.4e9, 2e12)],
                         ["12 B", "1.23 kB", "5.68 MB", "123 GB", "2 TB"])
        self.assertEqual([shown(value, "seconds") for value in (0.0123, 1.5, 205.2)], ["12.3 ms", "1.5 s", "205 s"])

    def test_only_arithmetic_is_evaluated(self) -> None:
        self.assertEqual(evaluate("min(P, 2) + 7 // 2", {"P": 5.0}), 5.0)
        for formula in ("Q", "__import__('os')", "P.real", "P if P else 0", "'a'"):
            with self.subTest(formula), self.assertRaises(ValueError):
                evaluate(formula, {"P": 1.0})


if __name__ == "__main__":
    unittest.main()
