"""Every command in the documentation is checked: each block is run by a test (docs_blocks.py says by
which), and blocks that cannot be run name programs, flags and files that exist."""

from __future__ import annotations

import functools
import re
import subprocess
import unittest
from pathlib import Path

from tests.tools.docs_blocks import Block, all_blocks, documents

TOP = Path("WORKSPACE").resolve().parent
PROGRAMS = {
    "dws-sender": "sender_daemon/dws-sender",
    "dws-receiver": "receiver_daemon/dws-receiver",
    "dwsctl": "tools/dwsctl/dwsctl",
    "dws-certificates": "deploy/tls/certificates.sh",
}
MARKS = {"ci", "pair", "package", "package-build", "not-run"}
# Files of the tree named in a command.
_TREE_PATH = re.compile(r"^(?:tools|deploy|docs|tests|clients)/[\w./@-]+$")
_LABEL = re.compile(r"^//[\w/]*(?::[\w.-]+)?$")


@functools.cache
def flags_of(*command: str) -> frozenset[str]:
    """The flags a program, or a subcommand of it, has."""
    done = subprocess.run([PROGRAMS[command[0]], *command[1:], "--help"], capture_output=True,
                          text=True, timeout=60, check=True)
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", done.stdout))


def program_of(words: list[str]) -> tuple[str, list[str]]:
    """(our program, its arguments), or ("", []); also finds it after sudo, environment and similar."""
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name in PROGRAMS:
            return name, words[at + 1:]
    return "", []


class DocsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.blocks = all_blocks(TOP)

    def marked(self, mark: str) -> list[Block]:
        return [block for block in self.blocks if block.mark == mark]

    def test_documents_and_blocks_are_found(self) -> None:
        self.assertGreaterEqual(len(documents(TOP)), 3)
        self.assertGreaterEqual(len(self.blocks), 4)

    def test_every_block_says_who_runs_it(self) -> None:
        for block in self.blocks:
            with self.subTest(str(block)):
                self.assertTrue(block.mark, "```sh MARK: see tests/tools/docs_blocks.py")
                if block.mark == "not-run":
                    self.assertGreaterEqual(len(block.reason.split()), 2, "not-run needs a reason")
                elif block.mark not in MARKS:
                    self.assertTrue(self._tests_of(block), "no test runs the block of this name")

    def _tests_of(self, block: Block) -> list[Path]:
        """The tests that open the document and name the block."""
        name = Path(block.path).name
        return [path for path in TOP.glob("tests/**/*_test.py")
                if name in (text := path.read_text()) and f'"{block.mark}"' in text]

    def test_every_block_is_shell(self) -> None:
        for block in self.blocks:
            with self.subTest(str(block)):
                done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_ci_runs_the_blocks_marked_ci(self) -> None:
        run = (TOP / ".ci/run").read_text()
        self.assertTrue(self.marked("ci"))
        for block in self.marked("ci"):
            for words in block.commands():
                with self.subTest(str(block), command=words):
                    self.assertRegex(run, rf"(?m)^\s*(?:if )?{re.escape(words[0].split('#')[0])}\b")

    def test_the_package_test_runs_the_blocks_marked_package(self) -> None:
        script = (TOP / "tools/package_test.sh").read_text()
        self.assertIn("docs_script.py package ", script)
        self.assertTrue(self.marked("package"))
        for block in self.marked("package-build"):
            for words in block.commands():
                with self.subTest(str(block), command=words):
                    self.assertIn(f"\n  {words[0]}\n", script)

    def test_our_programs_have_the_flags_that_blocks_use(self) -> None:
        seen = 0
        for block in self.blocks:
            for words in block.commands():
                name, rest = program_of(words)
                if not name or name != words[0].rpartition("/")[2] and "sudo" not in words:
                    continue
                known = flags_of(name)
                if name == "dwsctl" and rest and not rest[0].startswith("-"):
                    known |= flags_of(name, rest[0])
                for word in rest:
                    if not word.startswith("--"):
                        continue
                    with self.subTest(str(block), command=words):
                        self.assertIn(word.partition("=")[0], known)
                        seen += 1
        self.assertGreater(seen, 5)

    def test_named_files_of_the_tree_and_targets_exist(self) -> None:
        seen = 0
        for block in self.blocks:
            for words in block.commands():
                for word in words:
                    with self.subTest(str(block), word=word):
                        if _TREE_PATH.match(word):
                            self.assertTrue((TOP / word).exists())
                            seen += 1
                        elif _LABEL.match(word):
                            self.check_label(word)
                            seen += 1
        self.assertGreater(seen, 3)

    def test_named_units_exist(self) -> None:
        units = {unit for block in self.blocks
                 for unit in re.findall(r"\b(dws-[a-z]+)@", block.text)}
        self.assertTrue(units)
        for unit in units:
            with self.subTest(unit):
                self.assertTrue((TOP / f"deploy/systemd/{unit}@.service").exists())

    def check_label(self, label: str) -> None:
        package, _, name = label[2:].partition(":")
        build = (TOP / package / "BUILD.bazel").read_text()
        self.assertRegex(build, rf'name = "{re.escape(name or package.rpartition("/")[2])}"')

    def test_links_between_documents_have_a_target(self) -> None:
        for path in documents(TOP):
            for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
                target, _, anchor = link.partition("#")
                if "://" in link:
                    continue
                with self.subTest(str(path.relative_to(TOP)), link=link):
                    other = (path.parent / target).resolve() if target else path
                    self.assertTrue(other.exists())
                    if anchor and other.suffix == ".md":
                        self.assertIn(anchor, anchors_of(other))


def anchors_of(path: Path) -> set[str]:
    """The anchors that the usual renderers make from headings."""
    headings = re.findall(r"^#+ +(.*?)\s*$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class AlertsTest(unittest.TestCase):
    """Every alert has its section in runbook.md."""

    def test_every_alert_has_its_section(self) -> None:
        rules = (TOP / "deploy/prometheus/dws.rules.yml").read_text()
        alerts = re.findall(r"^\s*-?\s*alert: *(\w+)", rules, re.M)
        self.assertGreaterEqual(len(alerts), 5)
        runbook = TOP / "docs/runbook.md"
        anchors = anchors_of(runbook)
        for alert in alerts:
            with self.subTest(alert):
                self.assertIn(alert.lower(), anchors)

    def test_critical_alerts_come_before_warnings(self) -> None:
        rules = (TOP / "deploy/prometheus/dws.rules.yml").read_text()
        severity = dict(re.findall(r"alert: *(\w+)$.*?severity: (\w+)$", rules, re.M | re.S))
        headings = re.findall(r"^### (Dws\w+)$", (TOP / "docs/runbook.md").read_text(), re.M)
        found = [severity[heading] for heading in headings]
        self.assertEqual(found, sorted(found))
        self.assertEqual(headings[found.index("warning")], "DwsDaemonNotReady")  # the page says so

    def test_every_section_is_about_an_alert_that_exists(self) -> None:
        rules = (TOP / "deploy/prometheus/dws.rules.yml").read_text()
        text = (TOP / "docs/runbook.md").read_text()
        for heading in re.findall(r"^#+ (Dws\w+)$", text, re.M):
            with self.subTest(heading):
                self.assertRegex(rules, rf"alert: *{heading}\b")


if __name__ == "__main__":
    unittest.main()
