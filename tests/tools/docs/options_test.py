"""docs/options.md has every option of the programs, as their --help has it."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

from tools.docs.options import DAEMONS, DOCUMENT, TOOL, Option, document, option_of
from tools.package.man_page import help_of

PROGRAMS = (*DAEMONS, TOOL)


class OptionsTest(unittest.TestCase):
    def test_the_document_is_what_the_programs_say(self) -> None:
        self.maxDiff = None
        self.assertEqual(DOCUMENT.read_text("utf-8"), document(Path(".")), "run: python3 -m tools.docs.options bazel-bin --write")

    def test_each_option_of_a_daemon_has_a_row(self) -> None:
        """Independent of how the help is read: every word of it that begins a line with --."""
        parts = re.split(r"(?m)^## ", DOCUMENT.read_text("utf-8"))
        for program in DAEMONS:
            part = next(part for part in parts if part.startswith(Path(program).name + "\n"))
            names = re.findall(r"(?m)^  (--[a-z][\w-]*)", help_of(program))
            self.assertGreater(len(names), 40)
            self.assertEqual(sorted(re.findall(r"(?m)^\| `(--[\w-]+)`", part)), sorted(names))

    def test_each_command_has_a_section(self) -> None:
        commands = re.findall(r"(?m)^  ([a-z][a-z-]*)  ", help_of(TOOL))
        self.assertGreater(len(commands), 15)
        sections = re.findall(r"(?m)^### dwsctl ([a-z-]+)$", DOCUMENT.read_text("utf-8"))
        self.assertEqual(sections, commands)

    def test_no_figure_is_this_machine_s(self) -> None:
        self.assertIn("| `--threads` | 1 to 1024 | all cores | Threads that capture weights |", DOCUMENT.read_text("utf-8"))

    def test_an_entry_is_taken_apart(self) -> None:
        for left, text, option in (
            ("--a UINT:UINT in [0 - 9]=3", "what", Option("--a", "0 to 9", "`3`", "What")),
            ("--a SECONDS:INT in [0 - 9] REQUIRED", "what", Option("--a", "SECONDS, 0 to 9", "required", "What")),
            ("--a TEXT:{x,y}=x", "what", Option("--a", "`x|y`", "`x`", "What")),
            ("--a NAME[,except=PATTERN] ...", "what", Option("--a", "`NAME[,except=PATTERN]`, repeated", "", "What")),
            ("--a SIZE=1073741824", "what", Option("--a", "`SIZE`", "`1GiB`", "What")),
            ("--a N=2", "what (default: all cores); more", Option("--a", "`N`", "all cores", "What; more")),
            ("--a PATH (Env:DWS_A)", "what", Option("--a", "`PATH`", "", "What. In the environment: `DWS_A`.")),
            ("--a Excludes: --b", "what", Option("--a", "", "", "What. Not with `--b`.")),
        ):
            with self.subTest(left):
                self.assertEqual(option_of(left, text), option)


if __name__ == "__main__":
    unittest.main()
