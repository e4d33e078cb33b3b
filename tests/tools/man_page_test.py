"""The manual pages that tools/package/man_page.py makes from the programs' --help."""

from __future__ import annotations

import re
import subprocess
import unittest

from tools.package.man_page import entries, help_of, page, split

PROGRAMS = {
    "sender_daemon/dws-sender": "1",
    "receiver_daemon/dws-receiver": "1",
    "tools/dwsctl/dwsctl": "1",
    "deploy/tls/certificates.sh": "1",
}


def flags(text: str) -> set[str]:
    plain = re.sub(r"\\f[BR]", "", text).replace(r"\-", "-")
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", plain))


class ManPageTest(unittest.TestCase):
    def test_a_page_has_every_flag_of_the_help(self) -> None:
        for program, section in PROGRAMS.items():
            with self.subTest(program):
                text = help_of(program)
                made = page(program, section, "1.2.3", "2020-01-02")
                self.assertGreater(len(flags(text)), 1)
                self.assertLessEqual(flags(text), flags(made))
                self.assertIn(f'"{section}" "2020-01-02" "dws 1.2.3"', made.splitlines()[0])

    def test_a_page_has_a_section_for_every_subcommand(self) -> None:
        made = page("tools/dwsctl/dwsctl", "1", "1.2.3", "2020-01-02")
        parts = split(help_of("tools/dwsctl/dwsctl"))
        commands = [entry for heading, lines in parts if heading.startswith("Commands") for entry in entries(lines)]
        self.assertGreater(len(commands), 15)
        for name, _ in commands:
            with self.subTest(name):
                heading = name.split()[0].upper().replace("-", r"\-")
                self.assertIn(f'.SH "DWSCTL {heading}"', made)
                self.assertLessEqual(flags(help_of("tools/dwsctl/dwsctl", name.split()[0])), flags(made))

    def test_an_option_that_fills_its_column_is_not_taken_for_its_description(self) -> None:
        help_text = ["  -a          first", "  --fills-it  second", "  --fills-it2 third", "  --is-longer-than-that A in B",
                     "              fourth"]
        self.assertEqual(entries(help_text), [("-a", "first"), ("--fills-it", "second"), ("--fills-it2", "third"),
                                              ("--is-longer-than-that A in B", "fourth")])

    def test_no_text_line_of_a_page_is_taken_for_a_roff_request(self) -> None:
        requests = {".TH", ".SH", ".SS", ".TP", ".PP", ".nf", ".fi"}
        for program, section in PROGRAMS.items():
            for line in page(program, section, "1", "2020-01-02").splitlines():
                with self.subTest(program, line=line):
                    if line.startswith((".", "'")):
                        self.assertIn(line.split()[0], requests)

    def test_the_formatter_accepts_pages_without_a_warning(self) -> None:
        for program, section in PROGRAMS.items():
            with self.subTest(program):
                done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z"], text=True,
                                      input=page(program, section, "1", "2020-01-02"),
                                      capture_output=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
